"""A task of two classes, and classifiers of it, for the tests of what all methods share."""

import dataclasses
from typing import Any

import numpy as np

from promptboost.encoders.fake import FakeEncoder
from promptboost.methods import FewShotSet
from promptboost.methods.base import Origin, RowImages
from promptboost.methods.fitted import LinearClassifier, TextClassifier
from promptboost.pool import build_pool

ENCODER, OTHER = FakeEncoder(dim=16), FakeEncoder(dim=16, seed=1)
NAMES = ("fire", "ice")
COLOURS = ("red", "blue")


def rows_of(encoder: FakeEncoder, *texts: str) -> np.ndarray:
    return encoder.encode_texts(texts)[:, None]


IMAGES = RowImages(
    {e.id: rows_of(e, "red", "dark red", "blue", "sky blue") for e in (ENCODER, OTHER)}
)
SHOTS = FewShotSet(IMAGES, np.array([0, 0, 1, 1]), NAMES)
SAID = {name: [f"it is {color}", "it is old"] for name, color in zip(NAMES, COLOURS, strict=True)}
POOL = build_pool(NAMES, descriptions={"proapo:CuPL_full": SAID, "mine": {"fire": ["it burns"]}})


def text_classifier(**changes: Any) -> TextClassifier:
    banks = ({"something red": 2.0, "flames": 1.0}, {"something blue": 1.0})
    made = TextClassifier(Origin("some?setting=1", NAMES, ENCODER), banks, details={"rounds": 3})
    return dataclasses.replace(made, **changes)


def linear_classifier() -> LinearClassifier:
    return LinearClassifier(
        Origin("linear", NAMES, ENCODER),
        ENCODER.encode_texts(COLOURS) * 5,
        np.array([0.5, -0.5], dtype=np.float32),
        details={"C": 10.0},
    )
