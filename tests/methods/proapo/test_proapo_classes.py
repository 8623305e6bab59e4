"""ProAPO's second stage: where it begins, which classes it edits, and what it keeps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from promptboost.encoders.base import UnitRows
from promptboost.encoders.fake import FakeEncoder
from promptboost.methods.proapo import class_search
from promptboost.methods.proapo.class_search import ClassSearch, ClassUnits, units_of
from promptboost.methods.proapo.template_search import EvolutionEffort, Fitness

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
    usual = {"epochs": 2, "weighted": False, "importance": False, "exact": False}
    rng = np.random.default_rng(0)
    units = ClassUnits(own, TEMPLATES, encoder)
    return ClassSearch(units, fitness, rng, effort=EvolutionEffort(), **(usual | settings))


HELPFUL = [[f"it is {color} {color}", "everybody knows it"] for color in COLOURS]


def test_names_only_is_the_templates_of_the_first_stage() -> None:
    search = search_of(HELPFUL)
    filled = [["a photo of a fire.", "the fire."], ["a photo of an ice.", "the ice."]]
    expected = np.stack([Deaf(dim=32).encode_texts(texts).mean(axis=0) for texts in filled])
    np.testing.assert_allclose(search.class_rows(search.names_only())[:2], expected, rtol=1e-5)


@pytest.mark.parametrize("said", [HELPFUL, [["noise one", "noise two"]] * 6])
def test_a_sampled_start_is_no_worse_than_names_or_everything(said: list[list[str]]) -> None:
    search = search_of(said)
    everything = [frozenset({0, 1, 2})] * 6
    found = search.sampled()
    assert search.worth(found) >= max(search.worth(search.names_only()), search.worth(everything))
    assert all(own and own <= {0, 1, 2} for own in found)


def test_as_many_groups_are_edited_as_asked_for_and_fitness_never_falls() -> None:
    search = search_of(HELPFUL)
    start = search.names_only()
    state, edited = search.run(start, loops=1, groups=1)
    assert len(edited) == 1
    untouched = [k for k in range(6) if k not in edited[0]]
    assert untouched
    assert all(state[k] == start[k] for k in untouched)
    further, both = search.run(state, loops=2, groups=1)
    assert len(both) == 2
    assert search.worth(start) < search.worth(state) <= search.worth(further)


@pytest.mark.parametrize("exact", [False, True])
def test_what_gains_comes_first_and_what_loses_is_left_alone(exact: bool) -> None:
    said = [*HELPFUL[:3], ["it is black black"], ["it is yellow yellow"], HELPFUL[5]]
    search = search_of(said, importance=True, exact=exact)
    _, edited = search.run(search.names_only(), loops=1, groups=1)
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
    search = search_of(said, exact=True)
    start = [frozenset({0, 1})] * 5 + [frozenset({2, 3})]
    state, _ = search.run(start, loops=1, groups=2)
    assert search.worth(state) > search.worth(start)
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
