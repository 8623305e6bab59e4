"""ProAPO's evolution: sets of prompts that are added to, taken from, mixed and drawn anew.

A candidate is a set of numbers. What the numbers stand for (templates, or sentences about some
classes) and what a set is worth is known to the caller alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Candidate = frozenset[int]
Score = Callable[[Sequence[Candidate]], NDArray[np.float64]]

# Draws that give a set seen before are repeated, but not for ever: small spaces run out.
_FURTHER_TRIES = 64


@dataclass(frozen=True)
class EvolutionEffort:
    """How many candidates each operator makes in a generation.

    `adds`, `removes` and `replaces` are children of each of the `top` parents, the best of all that
    were ever scored; `mutations` and `crossovers` are of all of them together.
    """

    top: int = 4
    adds: int = 8
    removes: int = 8
    replaces: int = 8
    mutations: int = 8
    crossovers: int = 16


@dataclass(frozen=True)
class Space:
    """What sets can be made of.

    An element belongs to its `owner`, a class; a set has something for each. `weights` say how likely
    an element is drawn, their inverse how likely it is taken out. A mutation adds to the `core`.
    """

    owner: NDArray[np.intp]
    weights: NDArray[np.float64]
    core: Candidate = frozenset()

    def allows(self, candidate: Candidate) -> bool:
        """Return whether every owner has an element."""
        return len({self._owners[i] for i in candidate}) == len(set(self._owners))

    def draw(
        self, among: Collection[int], count: int, rng: np.random.Generator, *, out: bool = False
    ) -> list[int]:
        """Draw distinct elements by their weights; to take `out`, by the inverse."""
        # Sorted: draws must not depend on the order of a set.
        elements = sorted(among)
        weights = self.weights[elements]
        return [elements[i] for i in _drawn(1.0 / weights if out else weights, count, rng)]

    @cached_property
    def _owners(self) -> list[int]:
        return [int(k) for k in self.owner]

    def unused(self, candidate: Candidate) -> list[int]:
        """Return the elements that are not in a set."""
        return [i for i in range(len(self.owner)) if i not in candidate]


def add(parent: Candidate, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Add an element that the parent does not have."""
    unused = space.unused(parent)
    return parent | set(space.draw(unused, 1, rng)) if unused else None


def remove(parent: Candidate, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Take one element of at least three out."""
    return parent - set(space.draw(parent, 1, rng, out=True)) if len(parent) > 2 else None


def replace_one(parent: Candidate, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Put another element in the place of one."""
    unused = space.unused(parent)
    if not unused:
        return None
    return parent - set(space.draw(parent, 1, rng, out=True)) | set(space.draw(unused, 1, rng))


def mutate(size: int, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Draw `size` elements anew, besides the core."""
    unused = space.unused(space.core)
    return space.core | set(space.draw(unused, size, rng)) if unused else None


def cross(parents: Sequence[Candidate], rng: np.random.Generator) -> Candidate | None:
    """Take what all parents have, and some of what only some have: the more have it, the likelier."""
    having = Counter(element for parent in parents for element in parent)
    common = frozenset(element for element, count in having.items() if count == len(parents))
    others = sorted(having.keys() - common)
    if not others:
        return None
    shares = np.array([having[element] for element in others], dtype=np.float64)
    count = int(rng.integers(1, len(others) + 1))
    return common | {others[i] for i in _drawn(shares, count, rng)}


def evolve(
    space: Space,
    starts: Sequence[Candidate],
    score: Score,
    *,
    epochs: int,
    effort: EvolutionEffort,
    rng: np.random.Generator,
) -> tuple[Candidate, float]:
    """Search: every candidate ever scored may be a parent, and the best of all is the result.

    `starts` are scored first; then there are `epochs` generations. Returns the best set and its score.
    """
    known = dict(zip(starts, score(starts).tolist(), strict=True))
    for epoch in range(epochs):
        # Sorting is stable: of equals the one that was found first stays ahead.
        parents = sorted(known, key=lambda s: -known[s])[: effort.top]
        fresh = _generation(space, parents, known, epoch, effort, rng)
        if fresh:  # a small space runs out
            known.update(zip(fresh, score(fresh).tolist(), strict=True))
    best = max(known, key=lambda s: known[s])
    return best, known[best]


def _drawn(weights: NDArray[np.float64], count: int, rng: np.random.Generator) -> list[int]:
    """Draw distinct places in proportion to weights: where waiting times end first."""
    waiting = rng.standard_exponential(len(weights)) / weights
    return [int(i) for i in waiting.argsort()[:count]]


def _generation(
    space: Space,
    parents: Sequence[Candidate],
    known: Collection[Candidate],
    epoch: int,
    effort: EvolutionEffort,
    rng: np.random.Generator,
) -> list[Candidate]:
    fresh: dict[Candidate, None] = {}

    def make(count: int, operator: Callable[[], Candidate | None]) -> None:
        wanted = len(fresh) + count
        for _ in range(count + _FURTHER_TRIES):
            if len(fresh) == wanted or (child := operator()) is None:
                return
            if child not in known and space.allows(child):
                fresh.setdefault(child)

    for parent in parents:
        make(effort.adds, lambda p=parent: add(p, space, rng))  # type: ignore[misc]
        make(effort.removes, lambda p=parent: remove(p, space, rng))  # type: ignore[misc]
        make(effort.replaces, lambda p=parent: replace_one(p, space, rng))  # type: ignore[misc]
    make(effort.mutations, lambda: mutate(2 + epoch, space, rng))
    make(effort.crossovers, lambda: cross(parents, rng))
    return list(fresh)
