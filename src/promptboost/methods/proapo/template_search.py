"""ProAPO's first stage, the templates of all classes, and the evolution that both stages share.

Candidates are sets of indices, of templates or of units of some classes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError
from promptboost.methods.fitted import embed_distinct
from promptboost.pool import fill
from promptboost.pool.templates import LITERAL, plain_template

if TYPE_CHECKING:
    from promptboost.methods.proapo import ProAPO

Candidate = frozenset[int]
Score = Callable[[Sequence[Candidate]], NDArray[np.float64]]

# Duplicate children are drawn again, up to this number of times.
_FURTHER_TRIES = 64


@dataclass(frozen=True)
class Space:
    """The elements of candidates.

    An element belongs to its `owner`, a class; a candidate has an element of each. Mutations extend the
    `core`.
    """

    owner: NDArray[np.intp]
    core: Candidate = frozenset()
    weights: NDArray[np.float64] | None = None  # of elements to draw; uniform if None

    def allows(self, candidate: Candidate) -> bool:
        """Return whether every owner has an element."""
        return len({self._owners[i] for i in candidate}) == len(set(self._owners))

    @cached_property
    def _owners(self) -> list[int]:
        return [int(k) for k in self.owner]

    def draw(
        self,
        elements: Collection[int],
        rng: np.random.Generator,
        *,
        worst: bool = False,
        count: int = 1,
    ) -> Candidate:
        """Draw elements, the best or the worst most often."""
        if self.weights is None:
            return draw(elements, count, rng)
        # As in the released code: never zero, and turned around for removals.
        shares = self.weights[sorted(elements)] + 1e-4
        shares = shares - min(shares.min() - 1e-4, 0.0)
        shares = shares / shares.sum()
        return draw(elements, count, rng, 1 - shares + 1e-4 if worst else shares)

    def unused(self, candidate: Candidate) -> list[int]:
        """Return the elements that are not in a candidate."""
        return [i for i in range(len(self.owner)) if i not in candidate]


def add(parent: Candidate, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Return the parent with a further element."""
    unused = space.unused(parent)
    return parent | space.draw(unused, rng) if unused else None


def remove(parent: Candidate, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Return the parent without one of at least three elements."""
    return parent - space.draw(parent, rng, worst=True) if len(parent) > 2 else None


def replace_one(parent: Candidate, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Return the parent with one element replaced."""
    unused = space.unused(parent)
    if not unused:
        return None
    return parent - space.draw(parent, rng, worst=True) | space.draw(unused, rng)


def mutate(size: int, space: Space, rng: np.random.Generator) -> Candidate | None:
    """Return the core with `size` random elements."""
    unused = space.unused(space.core)
    return space.core | space.draw(unused, rng, count=size) if unused else None


def cross(parents: Sequence[Candidate], rng: np.random.Generator) -> Candidate | None:
    """Return the elements of all parents, and random others in proportion to their frequency."""
    having = Counter(element for parent in parents for element in parent)
    common = frozenset(element for element, count in having.items() if count == len(parents))
    others = sorted(having.keys() - common)
    if not others:
        return None
    shares = np.array([having[element] for element in others], dtype=np.float64)
    count = int(rng.integers(1, len(others) + 1))
    return common | draw(others, count, rng, shares)


def evolve(
    space: Space,
    starts: Sequence[Candidate],
    score: Score,
    *,
    epochs: int,
    effort: "ProAPO",
    rng: np.random.Generator,
) -> tuple[Candidate, float]:
    """Return the best candidate after `epochs` generations from `starts`, and its score.

    Parents are the best of all candidates so far. The sizes of a generation are those of `effort`.
    """
    scores = dict(zip(starts, score(starts).tolist(), strict=True))
    for epoch in range(epochs):
        # Sorting is stable: ties go to the older candidate.
        parents = sorted(scores, key=lambda s: -scores[s])[: effort.top]
        fresh = _generation(space, parents, scores, epoch, effort, rng)
        if fresh:  # a small space runs out
            scores.update(zip(fresh, score(fresh).tolist(), strict=True))
    best = max(scores, key=lambda s: scores[s])
    return best, scores[best]


def draw(
    elements: Collection[int],
    count: int,
    rng: np.random.Generator,
    weights: NDArray[np.float64] | float = 1.0,
) -> frozenset[int]:
    """Draw distinct elements in proportion to the weights of the sorted elements."""
    ordered = sorted(elements)  # draws must not depend on the order of a set
    waiting = rng.standard_exponential(len(ordered)) / weights
    return frozenset(ordered[i] for i in waiting.argsort()[:count])


def _generation(
    space: Space,
    parents: Sequence[Candidate],
    scored: Collection[Candidate],
    epoch: int,
    effort: "ProAPO",
    rng: np.random.Generator,
) -> list[Candidate]:
    fresh: dict[Candidate, None] = {}

    def make(count: int, operator: Callable[[], Candidate | None]) -> None:
        wanted = len(fresh) + count
        for _ in range(count + _FURTHER_TRIES):
            if len(fresh) == wanted or (child := operator()) is None:
                return
            if child not in scored and space.allows(child):
                fresh.setdefault(child)

    for parent in parents:
        make(effort.adds, lambda p=parent: add(p, space, rng))  # type: ignore[misc]
        make(effort.removes, lambda p=parent: remove(p, space, rng))  # type: ignore[misc]
        make(effort.replaces, lambda p=parent: replace_one(p, space, rng))  # type: ignore[misc]
    make(effort.mutations, lambda: mutate(2 + epoch, space, rng))
    make(effort.crossovers, lambda: cross(parents, rng))
    return list(fresh)


Rows = NDArray[np.float32]

# The same in all released settings.
_LOSS_WEIGHT = 10.0
# Candidates are scored in chunks of about this many logits.
_SCORES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Measured:
    """Results of classifiers on the training images, arrays; top1 and top5 in percent."""

    fitness: NDArray[np.float64]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    loss: NDArray[np.float64]


@dataclass
class Fitness:
    """The fitness function; `measured` counts the classifiers so far."""

    images: Rows
    labels: NDArray[np.int64]
    scale: float
    top1_weight: float
    top5_weight: float
    redundancy: float = 0.0
    measured: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise LabelError("there are no images to learn from")

    def scores(self, rows: Rows) -> Rows:
        """Return the logits of the images for class rows of any length, shape (n, K)."""
        return np.asarray(self.images @ unit(rows).T * np.float32(self.scale))

    def of(self, rows: Rows) -> Measured:
        """Measure one classifier, shape (K, D), or several, shape (B, K, D)."""
        several = rows if rows.ndim == 3 else rows[None]
        measured = self.of_changed(several[0], np.arange(several.shape[1]), several)
        if not self.redundancy:
            return measured
        norms = np.array([_similarity(classes) for classes in unit(several)])
        return replace(measured, fitness=measured.fitness + self.redundancy * norms)

    def of_changed(self, base: Rows, classes: NDArray[np.intp], rows: Rows) -> Measured:
        """Measure classifiers that differ from `base`, (K, D), in `rows`, (B, g, D), of some classes."""
        common = self.scores(base)
        n_chunks = max(1, -(-len(rows) * common.size // _SCORES_AT_ONCE))
        chunks = np.array_split(rows, n_chunks) if len(rows) else []
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
        # Ties go to the first class, as in prediction.
        earlier = np.arange(scores.shape[2]) < self.labels[:, None]
        ranks = ((scores > true) | ((scores == true) & earlier)).sum(axis=2)
        return (
            losses.mean(axis=1, dtype=np.float64),
            (ranks < 1).mean(axis=1),
            (ranks < 5).mean(axis=1),
        )


def unit(rows: Rows) -> Rows:
    """Scale sums of rows to length one."""
    lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
    return np.asarray(rows / np.maximum(lengths, np.float32(1e-12)))


def _similarity(rows: Rows) -> float:
    """Return the Euclidean norm of the cosines of all pairs of classes."""
    cosines = rows @ rows.T
    return float(np.linalg.norm(np.triu(cosines, 1)))


def template_variants(templates: Iterable[str], type_words: str) -> list[str]:
    """Return the templates in lower case, and their variants with each type word.

    Examples
    --------
    >>> template_variants(["A photo of a {c}."], "pet")[1:3]
    ['a photo of a {c}, a type of pet.', 'a photo of a pet: {c}.']
    """
    variants: dict[str, None] = {}
    for template in map(str.lower, templates):
        variants[template] = None
        for word in filter(None, type_words.lower().split("+")):
            placeholder = LITERAL if LITERAL in template else "{}"
            variants[template.replace(".", f", a type of {word}.")] = None
            variants[template.replace(f" {placeholder}", f" {word}: {placeholder}")] = None
            variants[template.replace("photo", word)] = None
            variants[template.replace("photo", f"{word} photo")] = None
    return list(variants)


@dataclass(frozen=True)
class Chosen:
    """The templates of the first stage, the fitness of their mean, and the number searched."""

    templates: tuple[str, ...]
    fitness: float
    in_library: int


def written(template: str, name: str) -> str:
    """Fill a template, in lower case."""
    return fill(template, name).lower()


def falls_too_far(top1: NDArray[np.float64], base: float, n_classes: int) -> NDArray[np.bool_]:
    """Return a mask of the candidates with too little accuracy to be searched."""
    return np.asarray(top1 <= base - (200 / n_classes + 0.1))


def choose_templates(
    templates: Sequence[str],
    class_names: Sequence[str],
    encoder: Encoder,
    fitness: Fitness,
    *,
    epochs: int,
    effort: "ProAPO",
    rng: np.random.Generator,
) -> Chosen:
    """Search for the templates with the fittest mean."""
    tried = [*templates, plain_template(templates)]
    texts = [written(template, name) for template in tried for name in class_names]
    rows = embed_distinct(texts, encoder).reshape(len(tried), len(class_names), -1)
    alone = fitness.of(rows)
    searched = _prune(alone, len(class_names))
    if effort.most_templates is not None and len(searched) > effort.most_templates:
        best = np.argsort(-alone.fitness[searched], kind="stable")[: effort.most_templates]
        searched = np.sort(searched[best])
    weights = alone.fitness[searched] - alone.fitness[-1] + 1 if effort.weighted else None
    space = Space(owner=np.zeros(len(searched), dtype=np.intp), weights=weights)
    flat = rows[searched].reshape(len(searched), -1)

    def score(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        mean = _means(candidates, flat).reshape(len(candidates), len(class_names), -1)
        return fitness.of(mean).fitness

    first = rng.choice(len(searched), size=min(effort.top, len(searched)), replace=False)
    starts = [frozenset({int(i)}) for i in first]
    fittest, worth = evolve(space, starts, score, epochs=epochs, effort=effort, rng=rng)
    chosen = tuple(templates[int(searched[i])] for i in sorted(fittest))
    return Chosen(chosen, worth, in_library=len(searched))


def _prune(alone: Measured, n_classes: int) -> NDArray[np.intp]:
    """Return the templates that are not far worse than the base, which is the last; at least one."""
    bad = falls_too_far(alone.top1[:-1], float(alone.top1[-1]), n_classes)
    good = np.flatnonzero(~bad)
    if not len(good):
        good = np.array([int(alone.fitness[:-1].argmax())])
    return good


def _means(candidates: Sequence[Candidate], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    shares = np.zeros((len(candidates), len(rows)), dtype=np.float32)
    for share, candidate in zip(shares, candidates, strict=True):
        share[list(candidate)] = 1.0 / len(candidate)
    return np.asarray(shares @ rows)
