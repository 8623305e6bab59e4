"""Few-shot sets and towers for the methods that learn by gradients."""

from functools import cache

import numpy as np
import pytest

from promptboost.encoders import load_encoder
from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import MissingExtraError
from promptboost.methods import FewShotSet
from promptboost.methods.base import RowImages

NAMES = ("red", "dark blue", "green")
SEEN = {
    "red": ["red", "bright red", "red day"],
    "dark blue": ["blue", "dark blue sky", "blue night"],
    "green": ["green", "green tree", "pale green"],
}


def colored(*encoders, views=1, names=NAMES):
    """Three images a class, as encoders that know words see them."""
    texts = [text for name in names for text in SEEN[name]]
    rows = {}
    for encoder in encoders:
        crops = [encoder.encode_texts([f"{t} {'photo ' * v}" for t in texts]) for v in range(views)]
        rows[encoder.id] = np.stack(crops, axis=1)
    return FewShotSet(RowImages(rows), np.repeat(np.arange(len(names)), 3), names)


def emoji(encoder, names, shots):
    """A few real images of each class."""
    from promptboost.data.emoji import load_emoji

    chosen = []
    images = load_emoji().images
    for name in names:
        chosen += [p for p in images if p.label == name][: 4 * shots : 4]
    rows = encoder.encode_images(image.open() for image in chosen)[:, None]
    labels = np.repeat(np.arange(len(names)), shots)
    return FewShotSet(RowImages({encoder.id: rows}), labels, tuple(names))


@cache
def real(name):
    """Load an encoder with real weights, once for all tests, or skip."""
    try:
        return load_encoder(name, device="cpu")
    except MissingExtraError as missing:
        pytest.skip(str(missing))


def accuracy(fitted, shots):
    return float((fitted.predict(shots.images) == shots.labels).mean())


class NoTower:
    """An encoder as a user may write it: it has no differentiable text tower."""

    def __init__(self):
        inner = FakeEncoder()
        self.id, self.fingerprint, self.dim = "mine", "0", inner.dim
        self.context_length, self.causal_text, self.logit_scale = 77, True, 20.0
        self.encode_texts, self.encode_images = inner.encode_texts, inner.encode_images
        self.count_tokens = inner.count_tokens
