"""ProAPO's first stage: the library, what is left out of it, and the search."""

from collections.abc import Sequence

import numpy as np
import pytest

from promptboost.encoders.base import UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.methods.proapo import Chosen, ProAPO, choose_templates
from promptboost.methods.proapo.evolution import Fitness, falls_too_far

NAMES = ("red", "blue", "green", "yellow", "black")
ENCODER = FakeEncoder(dim=16)


def fitness() -> Fitness:
    rows = ENCODER.encode_texts([f"{shade} {name}" for name in NAMES for shade in ("dark", "pale")])
    labels = np.repeat(np.arange(len(NAMES)), 2)
    return Fitness(rows, labels, ENCODER.logit_scale, top1_weight=0.1, top5_weight=0.1)


def choose(templates: list[str], *, encoder: FakeEncoder = ENCODER) -> Chosen:
    return choose_templates(
        templates, NAMES, encoder, fitness(), ProAPO(epochs=4), np.random.default_rng(0)
    )


def test_what_falls_too_far_depends_on_the_number_of_classes() -> None:
    top1 = np.array([57.9, 57.95, 60.0])
    assert falls_too_far(top1, 60.0, 100).tolist() == [True, False, False]
    assert not falls_too_far(np.array([0.0]), 100.0, 2).any()


class Deaf(FakeEncoder):
    """Understands nothing where there is noise."""

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        return super().encode_texts(["noise" if "noise" in text else text for text in texts])


def test_templates_that_harm_are_left_out() -> None:
    chosen = choose(["noise {}.", "a photo of a {}.", "a {}."], encoder=Deaf(dim=16))
    assert chosen.in_library == 2
    assert "noise {}." not in chosen.templates


def test_something_is_left_even_if_all_harm() -> None:
    chosen = choose(["noise {}.", "{} in noise."], encoder=Deaf(dim=16))
    assert chosen.in_library == 1


def test_the_search_finds_the_best_of_all_sets() -> None:
    templates = ["a {}.", "dark {}.", "pale {}.", "some {}."]
    score = fitness()
    worths = {}
    for mask in range(1, 16):
        own = tuple(t for i, t in enumerate(templates) if mask >> i & 1)
        texts = [[t.replace("{}", n) for t in own] for n in NAMES]
        rows = np.stack([ENCODER.encode_texts(each).mean(axis=0) for each in texts])
        worths[own] = float(score.of(rows).fitness[0])
    chosen = choose(templates)
    assert chosen.templates == max(worths, key=lambda own: worths[own])
    assert chosen.fitness == pytest.approx(max(worths.values()), abs=1e-4)
