"""ProAPO's second stage: where it begins, which classes it edits, and what it keeps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from promptboost.encoders.base import UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.methods.proapo import ProAPO, class_search
from promptboost.methods.proapo.class_search import ClassSearch, ClassUnits, State, units_of
from promptboost.methods.proapo.evolution import Fitness

COLOURS = ("red", "blue", "green", "yellow", "black", "white")
NAMES = ("fire", "ice", "leaf", "sun", "coal", "snow")
TEMPLATES = ("a photo of a {}.", "the {}.")


class Deaf(FakeEncoder):
    """Understands nothing where there is noise."""

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        return super().encode_texts(["noise" if "noise" in text else text for text in texts])


def search_of(said: Sequence[Sequence[str]], **settings: Any) -> ClassSearch:
    encoder = Deaf(dim=32)
    rows = encoder.encode_texts([f"{shade} {c}" for c in COLOURS for shade in ("dark", "pale")])
    labels = np.repeat(np.arange(len(COLOURS)), 2)
    fitness = Fitness(rows, labels, 20.0, top1_weight=0.1, top5_weight=0.1)
    own = [units_of(name, [], sentences) for name, sentences in zip(NAMES, said, strict=True)]
    usual = {"group_epochs": 2, "importance": False}
    rng = np.random.default_rng(0)
    units = ClassUnits(own, TEMPLATES, encoder)
    return ClassSearch(units, fitness, rng, ProAPO(**(usual | settings)))


def names_only() -> State:
    return [frozenset({0}) for _ in NAMES]


def worth(search: ClassSearch, state: State) -> float:
    return float(search.fitness.of(search.class_rows(state)).fitness[0])


HELPFUL = [[f"it is {color} {color}", "everybody knows it"] for color in COLOURS]


def test_names_only_is_the_templates_of_the_first_stage() -> None:
    search = search_of(HELPFUL)
    filled = [["a photo of fire.", "the fire."], ["a photo of ice.", "the ice."]]
    expected = np.stack([Deaf(dim=32).encode_texts(texts).mean(axis=0) for texts in filled])
    np.testing.assert_allclose(search.class_rows(names_only())[:2], expected, rtol=1e-5)


def test_as_many_groups_are_edited_as_asked_for_and_fitness_never_falls() -> None:
    search = search_of(HELPFUL)
    start = names_only()
    state, edited = search.run(start, loops=1, groups=1)
    assert len(edited) == 1
    untouched = [k for k in range(6) if k not in edited[0]]
    assert untouched
    assert all(state[k] == start[k] for k in untouched)
    further, both = search.run(state, loops=2, groups=1)
    assert len(both) == 2
    assert worth(search, start) < worth(search, state) <= worth(search, further)


def test_what_gains_comes_first_and_what_loses_is_left_alone() -> None:
    said = [*HELPFUL[:3], ["it is black black"], ["it is yellow yellow"], HELPFUL[5]]
    search = search_of(said, importance=True)
    _, edited = search.run(names_only(), loops=1, groups=1)
    (group,) = edited
    assert len(group) > 1
    assert set(group) <= {0, 1, 2, 5}


def test_a_class_without_sentences_is_not_edited() -> None:
    said = [[], HELPFUL[1], [], HELPFUL[3], [], []]
    state, edited = search_of(said).run([frozenset({0})] * 6, loops=2, groups=2)
    assert {k for group in edited for k in group} == {1, 3}
    assert [k for k, own in enumerate(state) if own != {0}] in ([1], [3], [1, 3])
    assert search_of([[]] * 6).run([frozenset({0})] * 6, loops=1, groups=1)[1] == []


def test_units_that_harm_are_not_tried_but_those_there_are_stay() -> None:
    # Adding noise to a class, itself noise already, changes nothing; to a good one it is harmful.
    said = [[f"it is {c} {c}", *(f"noise {i}" for i in range(5))] for c in COLOURS]
    search = search_of(said)
    start = [frozenset({0, 1})] * 5 + [frozenset({2, 3})]
    state, _ = search.run(start, loops=1, groups=2)
    assert worth(search, state) > worth(search, start)
    assert 1 in state[5]


def test_what_is_there_stays_when_everything_else_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_of_them(top1: np.ndarray, base: float, n_classes: int) -> np.ndarray:
        return np.ones(len(top1), dtype=bool)

    monkeypatch.setattr(class_search, "falls_too_far", all_of_them)
    start = [frozenset({1})] * 6
    state, edited = search_of(HELPFUL).run(start, loops=1, groups=2)
    assert edited
    assert state == start
