"""ProAPO's second stage: which names and sentences each class has behind the templates."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import Encoder
from promptboost.methods.fitted import embed_distinct
from promptboost.methods.proapo.template_search import (
    Candidate,
    EvolutionEffort,
    Fitness,
    Space,
    drawing_weights,
    evolve,
    falls_too_far,
    unit,
    written,
)


@dataclass(frozen=True)
class Unit:
    """A name of a class, and perhaps a sentence that follows it."""

    label: str
    sentence: str | None = None

    def text(self, template: str) -> str:
        """Write the unit behind a template."""
        start = written(template, self.label)
        if self.sentence is None:
            return start
        sentence, name = self.sentence.lower(), self.label.lower().replace("_", " ")
        # DCLIP's sentences repeat the name that the template has just said.
        if sentence.startswith(f"{name}, which "):
            return start.rstrip(".") + sentence[len(name) :]
        return f"{start} {sentence}"


def units_of(name: str, synonyms: Sequence[str], sentences: Sequence[str]) -> tuple[Unit, ...]:
    """Return each name alone, and each name with each sentence, in which it stands for the class's."""
    plain = name.replace("_", " ")
    named = re.compile(rf"\b{re.escape(plain)}\b", re.IGNORECASE)
    units = [Unit(plain), *(Unit(plain, sentence) for sentence in sentences)]
    for other in synonyms:
        if other.lower() != plain.lower():
            literal = other.replace("\\", r"\\")
            units.append(Unit(other))
            units += [Unit(other, named.sub(literal, sentence)) for sentence in sentences]
    return tuple(dict.fromkeys(units))


class ClassUnits:
    """The units of every class, and their rows: embedded when first looked at.

    A unit's row is the mean over the templates. The first unit of a class is its name alone. Most
    units no search ever looks at; `texts_embedded` counts what was embedded behind templates.
    """

    def __init__(
        self, units: Sequence[Sequence[Unit]], templates: Sequence[str], encoder: Encoder
    ) -> None:
        self.units = units
        self.templates = templates
        self.texts_embedded = 0
        self._encoder = encoder
        self._rows = [np.zeros((len(these), encoder.dim), dtype=np.float32) for these in units]
        self._known = [np.zeros(len(these), dtype=np.bool_) for these in units]
        self._plain: dict[int, NDArray[np.float32]] = {}

    def embed(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Embed units, given as (class, unit), behind the templates; all in one go."""
        missing = [(k, u) for k, u in dict.fromkeys(wanted) if not self._known[k][u]]
        if not missing:
            return
        texts = [self.units[k][u].text(t) for k, u in missing for t in self.templates]
        rows = embed_distinct(texts, self._encoder)
        self.texts_embedded += len(set(texts))
        means = rows.reshape(len(missing), len(self.templates), -1).mean(axis=1)
        for (k, u), mean in zip(missing, means, strict=True):
            self._rows[k][u] = mean
            self._known[k][u] = True

    def rows(self, k: int, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return the rows of some units of a class."""
        self.embed((k, u) for u in numbers)
        return self._rows[k][list(numbers)]

    def previews(self, k: int, *, exact: bool) -> NDArray[np.float32]:
        """Return a row for each unit of a class before the search looks at any.

        If they are not exact, sentences stand alone, as the pool has them, which needs no new text.
        """
        if exact:
            return self.rows(k, range(len(self.units[k])))
        if k not in self._plain:
            sentence_of = {u: one.sentence for u, one in enumerate(self.units[k])}
            sentences = {u: sentence for u, sentence in sentence_of.items() if sentence is not None}
            names = [u for u in sentence_of if u not in sentences]
            rows = np.zeros_like(self._rows[k])
            rows[names] = self.rows(k, names)
            if sentences:
                rows[list(sentences)] = self._encoder.encode_texts(list(sentences.values()))
            self._plain[k] = rows
        return self._plain[k]

    def bank(self, k: int, numbers: Iterable[int]) -> dict[str, float]:
        """Write some units of a class behind all templates: text → weight."""
        bank: dict[str, float] = {}
        for u in sorted(numbers):
            for template in self.templates:
                text = self.units[k][u].text(template)
                bank[text] = bank.get(text, 0.0) + 1.0
        return bank


#: For each class the numbers of its units.
State = list[frozenset[int]]

_RANDOM_STARTS = 16


@dataclass
class ClassSearch:
    """The search, group by group, for the units that raise the fitness.

    Each group gets `epochs` generations of the size of `effort`. The other settings are those of
    :class:`~promptboost.methods.proapo.ProAPO`.
    """

    units: ClassUnits
    fitness: Fitness
    rng: np.random.Generator
    effort: EvolutionEffort
    epochs: int
    weighted: bool
    importance: bool
    exact: bool

    def names_only(self) -> State:
        """Return the state in which every class is its name alone."""
        return [frozenset({0}) for _ in self.units.units]

    def sampled(self) -> State:
        """Return the best of 34 states: all sentences, names only, and random parts of them."""
        sizes = np.array([len(units) for units in self.units.units])
        trials = [self.names_only(), [frozenset(range(size)) for size in sizes]]
        for _ in range(_RANDOM_STARTS):
            trials.append(self._some(self.rng.uniform(1 / 3, 1, size=len(sizes))))
        for _ in range(_RANDOM_STARTS):
            trials.append(self._some(np.full(len(sizes), self.rng.uniform(1 / 3, 1))))
        return max(trials, key=self.worth)

    def run(self, state: State, *, loops: int, groups: int) -> tuple[State, list[tuple[int, ...]]]:
        """Edit some groups in each of some loops, each from where the last one ended.

        Returns the fittest state, and the groups in the order in which they were edited.
        """
        edited = []
        for _ in range(loops):
            for group in self._groups(state)[:groups]:
                state = self._edit(state, group)
                edited.append(group)
        return state, edited

    def worth(self, state: State) -> float:
        """Return the fitness of a state."""
        return float(self.fitness.of(self.class_rows(state)).fitness[0])

    def class_rows(self, state: State) -> NDArray[np.float32]:
        """Return the mean row of each class."""
        self.units.embed((k, u) for k, chosen in enumerate(state) for u in sorted(chosen))
        return np.stack([self.units.rows(k, sorted(c)).mean(0) for k, c in enumerate(state)])

    def _some(self, shares: NDArray[np.float64]) -> State:
        state = []
        for units, share in zip(self.units.units, shares, strict=True):
            count = max(1, round(share * len(units)))
            state.append(frozenset(self.rng.choice(len(units), count, replace=False).tolist()))
        return state

    def _groups(self, state: State) -> list[tuple[int, ...]]:
        """Choose classes that have something to be edited with."""
        size = group_size(len(state))
        rows = self.class_rows(state)
        editable = np.array([len(units) > 1 for units in self.units.units])
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
        """Return what each class gains when it gets all of its units."""
        now = float(self.fitness.of(rows).fitness[0])
        gains = np.zeros(len(rows))
        for k, units in enumerate(self.units.units):
            if len(units) > 1:
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
        """Return the units that do no harm when each is added to its class, and their weights."""
        now = self.fitness.of(rows)
        elements: list[tuple[int, int]] = []
        worth: list[float] = []
        for k in group:
            previews = self.units.previews(k, exact=self.exact)
            size = len(state[k])
            added = (rows[k] * size + previews) / np.float32(size + 1)
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
    """Return the mean row of each class of a group for each candidate: shape (B, g, D)."""
    held = np.zeros((len(candidates), len(elements)), dtype=np.float32)
    for row, candidate in zip(held, candidates, strict=True):
        row[list(candidate)] = 1.0
    looked_at = held.max(axis=0) > 0
    means = []
    for k in group:
        of_class = [i for i, (owner, _) in enumerate(elements) if owner == k and looked_at[i]]
        rows = units.rows(k, [elements[i][1] for i in of_class])
        share = held[:, of_class]
        means.append(share @ rows / np.maximum(share.sum(axis=1, keepdims=True), 1.0))
    return np.stack(means, axis=1)


# The released code mixes ranks and labels to group classes, and begins with the easiest ones. This goes by
# label, and begins with the hardest.
Classes = tuple[int, ...]

# A class that gains less than this by its sentences is no reason to begin there.
_LEAST_GAIN = 0.1
_SHARE_LEFT_OUT = 0.4
# Of a class's images, how many must have another class among their best five.
_LEAST_CONFUSED = 0.04
_BEST = 5
_LEAST_CLUSTERS = 5


def group_size(n_classes: int) -> int:
    """Return how many classes a group has at most."""
    return max(2, int(2.5 * log(n_classes))) if n_classes > 1 else 1


def gain_groups(gains: NDArray[np.float64], size: int) -> tuple[list[Classes], NDArray[np.bool_]]:
    """Begin with the classes that gain most by all their sentences at once.

    Returns groups, the highest gains first, and which classes may be edited at all: all but the 40 %
    that gain least.
    """
    order = np.argsort(-gains, kind="stable")
    left = order[: len(order) - int(_SHARE_LEFT_OUT * len(order))]
    allowed = np.zeros(len(gains), dtype=np.bool_)
    allowed[left] = True
    gaining = [int(k) for k in left if gains[k] > _LEAST_GAIN]
    return [tuple(gaining[i : i + size]) for i in range(0, len(gaining), size)], allowed


def best_clusters(rows: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the cluster of each unit row, of the division with the highest silhouette.

    There are an odd number of them, from 5 to a fifth of the rows; fewer than 25 rows are one cluster.
    """
    best, score = np.zeros(len(rows), dtype=np.intp), -1.0
    for k in range(_LEAST_CLUSTERS, len(rows) // 5 + 1, 2):
        from sklearn.cluster import KMeans
        from sklearn.metrics import silhouette_score

        means = KMeans(k, n_init=1, random_state=int(rng.integers(2**31)))
        clusters = means.fit_predict(rows.astype(np.float64))
        if len(set(clusters)) > 1 and (value := silhouette_score(rows, clusters)) > score:
            best, score = clusters.astype(np.intp), value
    return best


def confusion_groups(
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    rows: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    *,
    size: int,
    taken: Sequence[Classes],
    rng: np.random.Generator,
) -> list[Classes]:
    """Group classes with those they are confused with, the hardest first.

    `scores` are those of the training images, on the scale of a softmax. Places left over go to a
    class's nearest, by the unit `rows`, in its cluster. Only classes that are `allowed` are edited, and
    none of a group in `taken` begins another one.
    """
    n_classes = scores.shape[1]
    confused, likely = _confused(scores, labels)
    clusters = best_clusters(rows, rng)
    likeness = rows @ rows.T
    covered = {k for group in taken for k in group}
    most = max(size, int(10 * log(n_classes))) if n_classes > 1 else 1
    groups = []
    for k in _hardest_first(scores, labels):
        if k in covered or not allowed[k] or len(covered) >= most:
            continue
        mates = np.flatnonzero(clusters == clusters[k])
        ranked = [
            *(j for j in np.lexsort((-likely[k], -confused[k])) if confused[k, j]),
            *mates[np.argsort(-likeness[k, mates], kind="stable")],
        ]
        members = dict.fromkeys([k, *(int(j) for j in ranked if allowed[j])])
        groups.append(tuple(members)[:size])
        covered.update(groups[-1])
    return groups


def _hardest_first(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> list[int]:
    """Order the classes that have images by their cross-entropy."""
    losses = log_losses(scores, labels).astype(scores.dtype)
    classes = np.unique(labels)
    means = np.array([losses[labels == k].mean() for k in classes])
    return [int(k) for k in classes[np.argsort(-means, kind="stable")]]


def _confused(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how often and how strongly classes are confused, as two arrays (K, K).

    The first is the share of the images of a class that has the other among its best five; 0 if rare.
    The second is the mean score of the other: it decides between equal shares, of which small tasks
    are full.
    """
    n, n_classes = scores.shape
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_BEST]
    among = np.zeros((n, n_classes))
    np.put_along_axis(among, best, 1.0, axis=1)
    shares, means = np.zeros((2, n_classes, n_classes))
    for k in np.unique(labels):
        shares[k] = among[labels == k].mean(axis=0)
        means[k] = scores[labels == k].mean(axis=0)
    np.fill_diagonal(shares, 0.0)
    return np.where(shares >= _LEAST_CONFUSED, shares, 0.0), means
