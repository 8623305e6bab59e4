"""ProAPO's operators and its generations."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from promptboost.methods.proapo import ProAPO
from promptboost.methods.proapo.evolution import Candidate, Evolution, draw


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def evolution_of(
    size: int, core: Candidate = frozenset(), *, seed: int = 0, effort: ProAPO | None = None
) -> Evolution:
    return Evolution(effort or ProAPO(), rng(seed), [0] * size, core)


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(0, 1000))
def test_each_operator_changes_what_it_says(members: set[int], seed: int) -> None:
    parent, evolution = frozenset(members), evolution_of(10, seed=seed)
    more = evolution.add(parent)
    assert more is None if len(parent) == 10 else more is not None and more > parent
    assert more is None or len(more) == len(parent) + 1
    fewer = evolution.remove(parent)
    assert fewer is None if len(parent) <= 2 else fewer is not None and fewer < parent
    assert fewer is None or len(fewer) == len(parent) - 1
    other = evolution.replace(parent)
    if len(parent) < 10:
        assert other is not None
        assert len(other) == len(parent)
        assert len(other - parent) == 1


def test_a_mutation_is_drawn_anew_beside_the_core() -> None:
    drawn = [evolution_of(10, seed=seed).mutate(3) for seed in range(20)]
    assert all(each is not None and len(each) == 3 for each in drawn)
    assert len(set(drawn)) > 10
    with_core = evolution_of(10, frozenset({7, 8})).mutate(3)
    assert with_core is not None
    assert with_core > {7, 8}
    assert len(with_core) == 5
    assert evolution_of(2, frozenset({0, 1})).mutate(3) is None


def test_a_crossover_keeps_what_all_parents_have() -> None:
    parents = [frozenset({1, 2, 3}), frozenset({1, 3, 4}), frozenset({1, 3, 5})]
    children = [evolution_of(6, seed=seed).cross(parents) for seed in range(300)]
    for child in children:
        assert child is not None
        assert {1, 3} < child <= {1, 2, 3, 4, 5}
    sizes = Counter(len(child) for child in children if child is not None)
    # One, two or three of the three others, each as likely.
    assert set(sizes) == {3, 4, 5}
    assert min(sizes.values()) > 60
    assert evolution_of(2).cross([frozenset({1}), frozenset({1})]) is None


def test_a_crossover_prefers_what_more_parents_have() -> None:
    parents = [frozenset({0, 1}), frozenset({0, 1}), frozenset({0, 1}), frozenset({0, 2})]
    children = [evolution_of(6, seed=seed).cross(parents) for seed in range(600)]
    single = Counter(next(iter(c - {0})) for c in children if c is not None and len(c) == 2)
    assert single[1] / single[2] == pytest.approx(3, rel=0.4)


def test_draws_are_in_proportion_to_weights() -> None:
    weights = np.array([3.0, 1.0])
    drawn = Counter(next(iter(draw([1, 0], 1, rng(seed), weights))) for seed in range(600))
    assert drawn[0] / drawn[1] == pytest.approx(3, rel=0.3)
    assert draw([1, 0], 2, rng()) == {0, 1}


class Recorder:
    """Scores sets, and remembers the generations."""

    def __init__(self, good: Candidate) -> None:
        self.good = good
        self.generations: list[list[Candidate]] = []

    def __call__(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        self.generations.append(list(candidates))
        return np.array([self.worth(candidate) for candidate in candidates])

    def worth(self, candidate: Candidate) -> float:
        return len(candidate & self.good) - 0.3 * len(candidate - self.good)


def test_a_generation_has_the_sizes_that_were_asked_for() -> None:
    score = Recorder(frozenset({1, 5, 9}))
    starts = [frozenset({i}) for i in range(4)]
    evolution_of(200).run(starts, score, 2)
    # Singles have nothing to remove: 4 × (8 + 8) and 8 + 16 (crossovers of 4 others: 15 sets).
    first, second = score.generations[1:]
    assert 4 * 16 + 8 <= len(first) <= 4 * 16 + 8 + 16
    assert len(second) <= 4 * 24 + 8 + 16


def test_mutations_grow_with_the_generations() -> None:
    score = Recorder(frozenset({1}))
    effort = ProAPO(adds=0, removes=0, replaces=0, mutations=5, crossovers=0)
    evolution_of(30, effort=effort).run([frozenset({1})], score, 3)
    sizes = [[len(candidate) for candidate in generation] for generation in score.generations[1:]]
    assert sizes == [[2] * 5, [3] * 5, [4] * 5]


def test_no_set_is_scored_twice_and_the_best_ever_is_the_result() -> None:
    score = Recorder(frozenset({1, 5, 9}))
    starts = [frozenset({2}), frozenset({3})]
    best, worth = evolution_of(12).run(starts, score, 6)
    scored = [candidate for generation in score.generations for candidate in generation]
    assert len(scored) == len(set(scored))
    assert worth == max(map(score.worth, scored)) == 3.0
    assert best == score.good


def test_parents_are_the_best_of_all_that_were_ever_scored() -> None:
    score = Recorder(frozenset({1}))
    effort = ProAPO(top=1, adds=3, removes=0, replaces=0, mutations=0, crossovers=0)
    evolution_of(20, effort=effort).run([frozenset({1})], score, 3)
    # Whatever is added makes it worse, so the first one stays the parent of every generation.
    assert all(len(c) == 2 and 1 in c for generation in score.generations[1:] for c in generation)


def test_every_owner_keeps_an_element() -> None:
    evolution = Evolution(ProAPO(), rng(), [0, 0, 0, 1, 1], core=frozenset({0, 3}))
    score = Recorder(frozenset({0, 1, 2}))  # nothing of the second owner is worth anything
    best, _ = evolution.run([frozenset({0, 3})], score, 6)
    for generation in score.generations:
        for candidate in generation:
            assert candidate & {0, 1, 2}
            assert candidate & {3, 4}
    assert best in (frozenset({0, 1, 2, 3}), frozenset({0, 1, 2, 4}))


def test_a_space_that_runs_out_ends_quietly() -> None:
    score = Recorder(frozenset({0}))
    best, _ = evolution_of(2).run([frozenset({1})], score, 5)
    assert best == {0}
    assert sum(map(len, score.generations)) == 3


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_makes_the_same_generations(seed: int) -> None:
    runs = []
    for _ in range(2):
        score = Recorder(frozenset({1, 5}))
        evolution_of(30, seed=seed).run([frozenset({0})], score, 3)
        runs.append(score.generations)
    assert runs[0] == runs[1]
