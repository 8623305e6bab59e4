"""ProAPO's second stage: which names and sentences each class has behind the templates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.methods.proapo_fitness import Fitness, unit
from promptboost.methods.proapo_groups import confusion_groups, gain_groups, group_size
from promptboost.methods.proapo_search import Candidate, Effort, Space, evolve
from promptboost.methods.proapo_templates import drawing_weights, falls_too_far
from promptboost.methods.proapo_units import ClassUnits

__all__ = ["ClassSearch", "State"]

#: For each class the numbers of its units.
State = list[frozenset[int]]

_RANDOM_STARTS = 16


@dataclass
class ClassSearch:
    """The search, group by group.

    Parameters
    ----------
    units : ClassUnits
        What there is.
    fitness : Fitness
        What is raised.
    rng : Generator
        For all draws.
    effort : Effort
        Sizes of a generation.
    epochs : int
        Generations for each group.
    weighted : bool
        Draw units by what they are worth when they are added.
    importance : bool
        Begin with classes that gain by their sentences, and leave those alone that lose most.
    exact : bool
        Try sentences behind the templates before the search too, not as they stand.
    """

    units: ClassUnits
    fitness: Fitness
    rng: np.random.Generator
    effort: Effort
    epochs: int
    weighted: bool
    importance: bool
    exact: bool

    def names_only(self) -> State:
        """Give the state in which every class is its name alone."""
        return [frozenset({0}) for _ in self.units.units]

    def sampled(self) -> State:
        """Give the best of 34 states: all sentences, names only, and random parts of them."""
        sizes = np.array([len(own) for own in self.units.units])
        trials = [self.names_only(), [frozenset(range(size)) for size in sizes]]
        for _ in range(_RANDOM_STARTS):
            trials.append(self._some(self.rng.uniform(1 / 3, 1, size=len(sizes))))
        for _ in range(_RANDOM_STARTS):
            trials.append(self._some(np.full(len(sizes), self.rng.uniform(1 / 3, 1))))
        return max(trials, key=lambda state: self.worth(state))

    def run(self, state: State, *, loops: int, groups: int) -> tuple[State, list[tuple[int, ...]]]:
        """Edit some groups in each of some loops, each from where the last one ended.

        Returns
        -------
        State
            The fittest.
        list of tuple of int
            The groups, in the order in which they were edited.
        """
        edited = []
        for _ in range(loops):
            for group in self._groups(state)[:groups]:
                state = self._edit(state, group)
                edited.append(group)
        return state, edited

    def worth(self, state: State) -> float:
        """Measure a state."""
        return float(self.fitness.of(self.class_rows(state)).fitness[0])

    def class_rows(self, state: State) -> NDArray[np.float32]:
        """Give the mean row of each class."""
        self.units.embed((k, u) for k, own in enumerate(state) for u in sorted(own))
        return np.stack([self.units.rows(k, sorted(own)).mean(0) for k, own in enumerate(state)])

    def _some(self, shares: NDArray[np.float64]) -> State:
        state = []
        for own, share in zip(self.units.units, shares, strict=True):
            count = max(1, round(share * len(own)))
            state.append(frozenset(self.rng.choice(len(own), count, replace=False).tolist()))
        return state

    def _groups(self, state: State) -> list[tuple[int, ...]]:
        """Choose classes that have something to be edited with."""
        size = group_size(len(state))
        rows = self.class_rows(state)
        editable = np.array([len(own) > 1 for own in self.units.units])
        first: list[tuple[int, ...]] = []
        if self.importance and editable.any():
            first, allowed = gain_groups(self._gains(rows), size)
            editable &= allowed
        first = [group for group in first if all(editable[k] for k in group)]
        return first + confusion_groups(
            self.fitness.scores(rows),
            self.fitness.labels,
            unit(rows),
            editable,
            size=size,
            taken=first,
            rng=self.rng,
        )

    def _gains(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Give what each class gains when it gets all of its units."""
        now = float(self.fitness.of(rows).fitness[0])
        gains = np.zeros(len(rows))
        for k, own in enumerate(self.units.units):
            if len(own) > 1:
                everything = self.units.previews(k, exact=self.exact).mean(axis=0)[None, None]
                changed = self.fitness.of_changed(rows, np.array([k]), everything)
                gains[k] = changed.fitness[0] - now
        return gains

    def _edit(self, state: State, group: tuple[int, ...]) -> State:
        """Evolve the units of one group's classes together."""
        rows = self.class_rows(state)
        elements, weights = self._library(state, group, rows)
        number = {element: i for i, element in enumerate(elements)}
        start = frozenset(number[k, u] for k in group for u in state[k])
        space = Space(np.array([k for k, _ in elements]), weights, core=start)
        classes = np.array(group)

        def score(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
            self.units.embed(elements[i] for candidate in candidates for i in sorted(candidate))
            means = _group_means(candidates, elements, group, self.units)
            return self.fitness.of_changed(rows, classes, means).fitness

        best, _ = evolve(
            space, [start], score, epochs=self.epochs, effort=self.effort, rng=self.rng
        )
        edited = list(state)
        for k in group:
            edited[k] = frozenset(u for i in best for owner, u in [elements[i]] if owner == k)
        return edited

    def _library(
        self, state: State, group: tuple[int, ...], rows: NDArray[np.float32]
    ) -> tuple[list[tuple[int, int]], NDArray[np.float64]]:
        """Give the units that do no harm when each is added to its class, and their weights."""
        now = self.fitness.of(rows)
        elements: list[tuple[int, int]] = []
        worth: list[float] = []
        for k in group:
            previews = self.units.previews(k, exact=self.exact)
            own = len(state[k])
            added = (rows[k] * own + previews) / np.float32(own + 1)
            tried = self.fitness.of_changed(rows, np.array([k]), added[:, None])
            bad = falls_too_far(tried.top1, float(now.top1[0]), len(state))
            bad[sorted(state[k])] = False
            kept = np.flatnonzero(~bad)
            elements += [(k, int(u)) for u in kept]
            worth += tried.fitness[kept].tolist()
        base = float(now.fitness[0])
        return elements, drawing_weights(np.array(worth), base, weighted=self.weighted)


def _group_means(
    candidates: Sequence[Candidate],
    elements: Sequence[tuple[int, int]],
    group: tuple[int, ...],
    units: ClassUnits,
) -> NDArray[np.float32]:
    """Give the mean row of each class of a group for each candidate: shape (B, g, D)."""
    held = np.zeros((len(candidates), len(elements)), dtype=np.float32)
    for row, candidate in zip(held, candidates, strict=True):
        row[list(candidate)] = 1.0
    looked_at = held.max(axis=0) > 0
    means = []
    for k in group:
        own = [i for i, (owner, _) in enumerate(elements) if owner == k and looked_at[i]]
        rows = units.rows(k, [elements[i][1] for i in own])
        share = held[:, own]
        means.append(share @ rows / np.maximum(share.sum(axis=1, keepdims=True), 1.0))
    return np.stack(means, axis=1)
