"""ProAPO's first stage: which templates, for all classes alike; with what both stages share.

Both evolve candidates, sets of numbers (of templates, or of sentences about some classes), by their
fitness.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError
from promptboost.methods.fitted import embed_distinct
from promptboost.pool import fill
from promptboost.pool.templates import PLAIN_TEMPLATE

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


Rows = NDArray[np.float32]

# The same in all settings that were released.
_LOSS_WEIGHT = 10.0
# Candidates are measured together, as many as fit into so many scores.
_SCORES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Measured:
    """What classifiers achieve on the training images, one number each; top1 and top5 in percent."""

    fitness: NDArray[np.float64]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    loss: NDArray[np.float64]


@dataclass
class Fitness:
    """The training images, and what counts: the weights are what a percent is worth.

    A unit of cross-entropy is worth 10. `measured` counts the classifiers so far.
    """

    images: Rows
    labels: NDArray[np.int64]
    scale: float
    top1_weight: float
    top5_weight: float
    measured: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise LabelError("there are no images to learn from")

    def scores(self, rows: Rows) -> Rows:
        """Score the images with class rows of any length: shape (n, K)."""
        return np.asarray(self.images @ unit(rows).T * np.float32(self.scale))

    def of(self, rows: Rows) -> Measured:
        """Measure one classifier, shape (K, D), or several, shape (B, K, D)."""
        several = rows if rows.ndim == 3 else rows[None]
        return self.of_changed(several[0], np.arange(several.shape[1]), several)

    def of_changed(self, base: Rows, classes: NDArray[np.intp], rows: Rows) -> Measured:
        """Measure classifiers that differ from `base`, (K, D), in a few `classes`.

        `rows`, (B, g, D), are what each has there.
        """
        common = self.scores(base)
        parts = max(1, -(-len(rows) * common.size // _SCORES_AT_ONCE))
        chunks = np.array_split(rows, parts) if len(rows) else []
        measured = [self._chunk(common, classes, chunk) for chunk in chunks if len(chunk)]
        loss, rank_below_1, rank_below_5 = (
            np.concatenate([m[i] for m in measured]) if measured else np.zeros(0) for i in range(3)
        )
        self.measured += len(rows)
        top1, top5 = 100 * rank_below_1, 100 * rank_below_5
        fitness = self.top1_weight * top1 + self.top5_weight * top5 - _LOSS_WEIGHT * loss
        return Measured(fitness, top1, top5, loss)

    def _chunk(
        self, common: Rows, classes: NDArray[np.intp], rows: Rows
    ) -> tuple[NDArray[np.float64], ...]:
        b, g, _ = rows.shape
        n = len(common)
        scores = np.repeat(common[None], b, axis=0)
        changed = self.scores(rows.reshape(b * g, -1)).reshape(n, b, g)
        scores[:, :, classes] = changed.transpose(1, 0, 2)
        true = scores[:, np.arange(n), self.labels][:, :, None]
        highest = scores.max(axis=2)
        total = highest + np.log(np.exp(scores - highest[:, :, None]).sum(axis=2))
        losses = total - true[:, :, 0]
        # Of equal scores the first class wins, as it does when images are classified.
        before = np.arange(scores.shape[2]) < self.labels[:, None]
        ranks = ((scores > true) | ((scores == true) & before)).sum(axis=2)
        return (
            losses.mean(axis=1, dtype=np.float64),
            (ranks < 1).mean(axis=1),
            (ranks < 5).mean(axis=1),
        )


def unit(rows: Rows) -> Rows:
    """Scale sums of rows to length one."""
    lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
    return np.asarray(rows / np.maximum(lengths, np.float32(1e-12)))


# A template far below the base could else have a weight of zero or less.
_LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class Chosen:
    """The templates of the first stage, the fitness of their mean, and how many were searched."""

    templates: tuple[str, ...]
    fitness: float
    in_library: int


def library(templates: Sequence[str], type_words: Sequence[str]) -> tuple[str, ...]:
    """Write templates in small letters, and once more with each word for the type of the classes."""
    small = [template.lower() for template in templates]
    variants = list(small)
    for word in type_words:
        for template in small:
            if template.endswith("."):
                variants.append(f"{template[:-1]}, a type of {word}.")
            variants.append(template.replace(" {}", f" {word}: {{}}"))
            variants += [template.replace("photo", new) for new in (word, f"{word} photo")]
    # A template without the word that is replaced comes out as it went in.
    return tuple(dict.fromkeys(variants))


def written(template: str, name: str) -> str:
    """Fill a template, in small letters throughout."""
    return fill(template, name).lower()


def falls_too_far(top1: NDArray[np.float64], base: float, n_classes: int) -> NDArray[np.bool_]:
    """Return which candidates lose so much accuracy that they are left out of the search."""
    return np.asarray(top1 <= base - (200 / n_classes + 0.1))


def drawing_weights(
    fitness: NDArray[np.float64], base: float, *, weighted: bool
) -> NDArray[np.float64]:
    """Return how likely each is drawn: all the same, or by what it is worth alone."""
    if not weighted:
        return np.ones(len(fitness))
    return np.asarray(np.maximum(fitness - base + 1.0, _LEAST_WEIGHT))


def choose_templates(
    templates: Sequence[str],
    class_names: Sequence[str],
    encoder: Encoder,
    fitness: Fitness,
    *,
    epochs: int,
    effort: EvolutionEffort,
    most: int | None,
    weighted: bool,
    rng: np.random.Generator,
) -> Chosen:
    """Search for the templates whose mean is fittest.

    If `most` is given, only so many are searched, those that are fittest alone. If `weighted`,
    templates are drawn by what they are worth alone.
    """
    tried = [*templates, PLAIN_TEMPLATE]
    texts = [written(template, name) for template in tried for name in class_names]
    rows = embed_distinct(texts, encoder).reshape(len(tried), len(class_names), -1)
    alone = fitness.of(rows)
    kept = _prune(alone, len(class_names), most)
    base = float(alone.fitness[-1])
    space = Space(
        owner=np.zeros(len(kept), dtype=np.intp),
        weights=drawing_weights(alone.fitness[kept], base, weighted=weighted),
    )
    flat = rows[kept].reshape(len(kept), -1)

    def score(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        mean = _means(candidates, flat).reshape(len(candidates), len(class_names), -1)
        return fitness.of(mean).fitness

    first = rng.choice(len(kept), size=min(effort.top, len(kept)), replace=False)
    starts = [frozenset({int(i)}) for i in first]
    best, worth = evolve(space, starts, score, epochs=epochs, effort=effort, rng=rng)
    chosen = tuple(templates[int(kept[i])] for i in sorted(best))
    return Chosen(chosen, worth, in_library=len(kept))


def _prune(alone: Measured, n_classes: int, most: int | None) -> NDArray[np.intp]:
    """Leave out templates that are far worse than the base, which is the last; keep some at least."""
    bad = falls_too_far(alone.top1[:-1], float(alone.top1[-1]), n_classes)
    kept = np.flatnonzero(~bad)
    if not len(kept):
        kept = np.array([int(alone.fitness[:-1].argmax())])
    if most is not None and len(kept) > most:
        best = np.argsort(-alone.fitness[kept], kind="stable")[:most]
        kept = np.sort(kept[best])
    return kept


def _means(candidates: Sequence[Candidate], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    shares = np.zeros((len(candidates), len(rows)), dtype=np.float32)
    for share, candidate in zip(shares, candidates, strict=True):
        share[list(candidate)] = 1.0 / len(candidate)
    return np.asarray(shares @ rows)
