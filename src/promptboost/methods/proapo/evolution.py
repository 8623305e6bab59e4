"""ProAPO's evolution of sets of prompts, and the fitness of classifiers on the training images."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import LabelError

if TYPE_CHECKING:
    from promptboost.methods.proapo import ProAPO

#: A set of elements, given by their numbers.
Candidate = frozenset[int]
Score = Callable[[Sequence[Candidate]], NDArray[np.float64]]
Rows = NDArray[np.float32]

# Duplicate children are drawn again, up to this number of times.
_FURTHER_TRIES = 64
# The same in all released settings.
_LOSS_WEIGHT = 10.0
# Candidates are scored in chunks of about this many logits.
_SCORES_AT_ONCE = 4_000_000


def draw(
    elements: Collection[int],
    count: int,
    rng: np.random.Generator,
    weights: NDArray[np.float64] | float = 1.0,
) -> Candidate:
    """Draw distinct elements in proportion to the weights of the sorted elements."""
    ordered = sorted(elements)  # draws must not depend on the order of a set
    waiting = rng.standard_exponential(len(ordered)) / weights
    return frozenset(ordered[i] for i in waiting.argsort()[:count])


@dataclass(frozen=True)
class Evolution:
    """An evolution of candidates, each with an element of every owner.

    The sizes of a generation are those of `effort`. Operators return None if there is no such child.
    """

    effort: "ProAPO"
    rng: np.random.Generator
    owners: Sequence[int]  # of each element
    core: Candidate = frozenset()  # which mutations extend
    weights: NDArray[np.float64] | None = None  # of elements to draw; uniform if None

    def run(
        self, starts: Sequence[Candidate], score: Score, epochs: int
    ) -> tuple[Candidate, float]:
        """Return the best candidate after `epochs` generations from `starts`, and its score."""
        scores = dict(zip(starts, score(starts).tolist(), strict=True))
        for epoch in range(epochs):
            # Sorting is stable: ties go to the older candidate.
            parents = sorted(scores, key=lambda s: -scores[s])[: self.effort.top]
            if fresh := self._generation(parents, scores, epoch):  # a small space runs out
                scores.update(zip(fresh, score(fresh).tolist(), strict=True))
        best = max(scores, key=lambda s: scores[s])
        return best, scores[best]

    def _generation(
        self, parents: Sequence[Candidate], scored: Collection[Candidate], epoch: int
    ) -> list[Candidate]:
        fresh: dict[Candidate, None] = {}
        n_owners = len(set(self.owners))

        def make(
            count: int, operator: Callable[..., Candidate | None], *parameters: object
        ) -> None:
            wanted = len(fresh) + count
            for _ in range(count + _FURTHER_TRIES):
                if len(fresh) == wanted or (child := operator(*parameters)) is None:
                    return
                if child not in scored and len({self.owners[i] for i in child}) == n_owners:
                    fresh.setdefault(child)

        for parent in parents:
            make(self.effort.adds, self.add, parent)
            make(self.effort.removes, self.remove, parent)
            make(self.effort.replaces, self.replace, parent)
        make(self.effort.mutations, self.mutate, 2 + epoch)
        make(self.effort.crossovers, self.cross, parents)
        return list(fresh)

    def add(self, parent: Candidate) -> Candidate | None:
        """Return the parent with a further element."""
        unused = self._unused(parent)
        return parent | self.draw(unused) if unused else None

    def remove(self, parent: Candidate) -> Candidate | None:
        """Return the parent without one of at least three elements."""
        return parent - self.draw(parent, worst=True) if len(parent) > 2 else None

    def replace(self, parent: Candidate) -> Candidate | None:
        """Return the parent with one element replaced."""
        unused = self._unused(parent)
        return parent - self.draw(parent, worst=True) | self.draw(unused) if unused else None

    def mutate(self, size: int) -> Candidate | None:
        """Return the core with `size` random elements."""
        unused = self._unused(self.core)
        return self.core | self.draw(unused, size) if unused else None

    def cross(self, parents: Sequence[Candidate]) -> Candidate | None:
        """Return the elements of all parents, and random others in proportion to their frequency."""
        having = Counter(element for parent in parents for element in parent)
        common = frozenset(element for element, count in having.items() if count == len(parents))
        others = sorted(having.keys() - common)
        if not others:
            return None
        count = int(self.rng.integers(1, len(others) + 1))
        shares = np.array([having[element] for element in others], dtype=np.float64)
        return common | draw(others, count, self.rng, shares)

    def draw(self, elements: Collection[int], count: int = 1, *, worst: bool = False) -> Candidate:
        """Draw elements, the best or the worst most often."""
        if self.weights is None:
            return draw(elements, count, self.rng)
        # As in the released code: never zero, and turned around for removals.
        shares = self.weights[sorted(elements)] + 1e-4
        shares = shares - min(shares.min() - 1e-4, 0.0)
        shares = shares / shares.sum()
        return draw(elements, count, self.rng, 1 - shares + 1e-4 if worst else shares)

    def _unused(self, candidate: Candidate) -> list[int]:
        return [i for i in range(len(self.owners)) if i not in candidate]


class Measured(NamedTuple):
    """Fitness and accuracy, in percent, of several classifiers."""

    fitness: NDArray[np.float64]
    top1: NDArray[np.float64]


@dataclass(frozen=True)
class Fitness:
    """The fitness of classifiers, given by class rows of any length."""

    images: Rows
    labels: NDArray[np.int64]
    scale: float
    top1_weight: float
    top5_weight: float
    redundancy: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise LabelError("there are no images to learn from")

    def scores(self, rows: Rows) -> Rows:
        """Return the logits of the images, shape (n, K)."""
        return np.asarray(self.images @ unit(rows).T * np.float32(self.scale))

    def of(self, rows: Rows) -> Measured:
        """Measure one classifier, shape (K, D), or several, shape (B, K, D)."""
        several = rows.reshape(-1, *rows.shape[-2:])
        measured = self.of_changed(several[0], np.arange(several.shape[1]), several)
        if not self.redundancy:
            return measured
        # The norm of the cosines of all pairs of classes.
        norms = [float(np.linalg.norm(np.triu(each @ each.T, 1))) for each in unit(several)]
        return measured._replace(fitness=measured.fitness + self.redundancy * np.array(norms))

    def of_changed(self, base: Rows, classes: NDArray[np.intp], rows: Rows) -> Measured:
        """Measure classifiers that differ from `base`, (K, D), in `rows`, (B, g, D), of some classes."""
        common = self.scores(base)
        n_chunks = min(len(rows), -(-len(rows) * common.size // _SCORES_AT_ONCE))
        chunks = np.array_split(rows, n_chunks)
        losses, top1, top5 = np.concatenate(
            [self._measure(common, classes, chunk) for chunk in chunks], axis=1
        )
        fitness = self.top1_weight * top1 + self.top5_weight * top5 - _LOSS_WEIGHT * losses
        return Measured(fitness, top1)

    def _measure(self, common: Rows, classes: NDArray[np.intp], rows: Rows) -> NDArray[np.float64]:
        """Return mean losses, top-1 and top-5 accuracies in percent, shape (3, B)."""
        b, g, _ = rows.shape
        n = len(common)
        scores = np.repeat(common[None], b, axis=0)
        changed = self.scores(rows.reshape(b * g, -1)).reshape(n, b, g)
        scores[:, :, classes] = changed.transpose(1, 0, 2)
        true = scores[:, np.arange(n), self.labels][:, :, None]
        highest = scores.max(axis=2)
        total = highest + np.log(np.exp(scores - highest[:, :, None]).sum(axis=2))
        losses = (total - true[:, :, 0]).mean(axis=1, dtype=np.float64)
        # Ties go to the first class, as in prediction.
        earlier = np.arange(scores.shape[2]) < self.labels[:, None]
        ranks = ((scores > true) | ((scores == true) & earlier)).sum(axis=2)
        return np.stack([losses, *(100 * (ranks < best).mean(axis=1) for best in (1, 5))])


def unit(rows: Rows) -> Rows:
    """Scale sums of rows to length one."""
    lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
    return np.asarray(rows / np.maximum(lengths, np.float32(1e-12)))


def falls_too_far(top1: NDArray[np.float64], base: float, n_classes: int) -> NDArray[np.bool_]:
    """Return a mask of the candidates with too little accuracy to be searched."""
    return np.asarray(top1 <= base - (200 / n_classes + 0.1))
