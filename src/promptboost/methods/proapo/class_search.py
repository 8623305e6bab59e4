"""ProAPO's second stage: the names and sentences of each class, behind the templates."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses
from promptboost.encoders.base import Encoder
from promptboost.methods.fitted import embed_distinct
from promptboost.methods.proapo.evolution import (
    Candidate,
    Evolution,
    Fitness,
    Rows,
    draw,
    falls_too_far,
    unit,
)
from promptboost.pool import fill
from promptboost.pool.text import plain_name

if TYPE_CHECKING:
    from promptboost.methods.proapo import ProAPO


class Unit(NamedTuple):
    """A name of a class, and optionally a sentence that follows it."""

    label: str
    sentence: str | None = None

    def text(self, template: str) -> str:
        """Return the unit in a template, in lower case."""
        start = fill(template, self.label).lower()
        if self.sentence is None:
            return start
        sentence, name = self.sentence.lower(), self.label.lower().replace("_", " ")
        # DCLIP's sentences repeat the name.
        if sentence.startswith(f"{name}, which "):
            return start.rstrip(".") + sentence[len(name) :]
        return f"{start} {sentence}"


def units_of(name: str, synonyms: Sequence[str], sentences: Sequence[str]) -> tuple[Unit, ...]:
    """Return each name alone, and with each sentence, in which it replaces the class name."""
    plain = plain_name(name)
    named = re.compile(rf"\b{re.escape(plain)}\b", re.IGNORECASE)
    units = [Unit(plain), *(Unit(plain, sentence) for sentence in sentences)]
    for other in synonyms:
        if other.lower() != plain.lower():
            literal = other.replace("\\", r"\\")
            units.append(Unit(other))
            units += [Unit(other, named.sub(literal, sentence)) for sentence in sentences]
    return tuple(dict.fromkeys(units))


class ClassUnits:
    """The units of every class, and their mean embeddings over the templates, made when needed.

    The first unit of a class is its name alone.
    """

    def __init__(
        self, units: Sequence[Sequence[Unit]], templates: Sequence[str], encoder: Encoder
    ) -> None:
        self.units = units
        self._templates, self._encoder = templates, encoder
        self._rows: dict[tuple[int, int], Rows] = {}
        self._previews: dict[int, Rows] = {}

    def texts(self, k: int, u: int) -> list[str]:
        """Return a unit of a class in all templates."""
        return [self.units[k][u].text(template) for template in self._templates]

    def embed(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Embed units, given as (class, unit), at once."""
        missing = [key for key in dict.fromkeys(wanted) if key not in self._rows]
        if missing:
            rows = embed_distinct(
                [text for key in missing for text in self.texts(*key)], self._encoder
            )
            means = rows.reshape(len(missing), len(self._templates), -1).mean(axis=1)
            self._rows.update(zip(missing, means, strict=True))

    def rows(self, k: int, numbers: Sequence[int]) -> Rows:
        """Return the embeddings of some units of a class."""
        self.embed((k, u) for u in numbers)
        return np.stack([self._rows[k, u] for u in numbers])

    def previews(self, k: int) -> Rows:
        """Return a cheap embedding of each unit of a class: sentences without the templates."""
        if k not in self._previews:
            sentences = {u: unit.sentence for u, unit in enumerate(self.units[k]) if unit.sentence}
            names = [u for u in range(len(self.units[k])) if u not in sentences]
            rows = np.zeros((len(self.units[k]), self._encoder.dim), dtype=np.float32)
            rows[names] = self.rows(k, names)
            if sentences:
                rows[list(sentences)] = self._encoder.encode_texts(list(sentences.values()))
            self._previews[k] = rows
        return self._previews[k]

    def bank(self, k: int, numbers: Iterable[int]) -> dict[str, float]:
        """Return some units of a class in all templates, with their weights."""
        counts = Counter(text for u in sorted(numbers) for text in self.texts(k, u))
        return {text: float(count) for text, count in counts.items()}


# Random choices of sentences to begin with.
_STARTS = 32

#: For each class the numbers of its units.
State = list[frozenset[int]]
#: Classes that are edited together.
Group = tuple[int, ...]


@dataclass(frozen=True)
class ClassSearch:
    """The search, group by group, for the units that raise the fitness."""

    units: ClassUnits
    fitness: Fitness
    rng: np.random.Generator
    settings: "ProAPO"

    def names_only(self) -> State:
        """Return the state of every class with its name alone."""
        return [frozenset({0})] * len(self.units.units)

    def sampled_start(self) -> State:
        """Return the fittest of all sentences, names only, and 32 random choices of sentences.

        Half of those have as many sentences of each class, the others draw the number for each.
        """
        numbers = [range(1, len(units)) or range(1) for units in self.units.units]
        counts = np.array([len(each) for each in numbers])
        states: list[State] = [[frozenset(each) for each in numbers], self.names_only()]
        for trial in range(_STARTS):
            most = counts.max() if trial % 2 else counts
            sizes = np.broadcast_to(self.rng.integers(-(-most // 3), most + 1), counts.shape)
            states.append(
                [draw(n, int(size), self.rng) for n, size in zip(numbers, sizes, strict=True)]
            )
        return max(states, key=lambda state: self.fitness.of(self.class_rows(state)).fitness[0])

    def run(self, state: State, *, loops: int, groups: int) -> tuple[State, list[Group]]:
        """Edit groups in each loop; return the final state, and the groups in order."""
        edited = []
        for _ in range(loops):
            for group in self._groups(state)[:groups]:
                state = self._edit(state, group)
                edited.append(group)
        return state, edited

    def class_rows(self, state: State) -> Rows:
        """Return the mean row of each class."""
        self.units.embed((k, u) for k, chosen in enumerate(state) for u in sorted(chosen))
        return np.stack([self.units.rows(k, sorted(c)).mean(0) for k, c in enumerate(state)])

    def _groups(self, state: State) -> list[Group]:
        """Return groups of classes that have more than their name."""
        size = group_size(len(state))
        rows = self.class_rows(state)
        editable = np.array([len(units) > 1 for units in self.units.units])
        first: list[Group] = []
        if self.settings.importance and editable.any():
            first, allowed = gain_groups(self._gains(rows), size)
            editable &= allowed
        return first + confusion_groups(
            self.fitness.scores(rows),
            self.fitness.labels,
            unit(rows),
            editable,
            size=size,
            taken=first,
            rng=self.rng,
        )

    def _gains(self, rows: Rows) -> NDArray[np.float64]:
        """Return the gain in fitness of each class from all of its units."""
        now = self.fitness.of(rows).fitness[0]
        gains = np.zeros(len(rows))
        for k, units in enumerate(self.units.units):
            if len(units) > 1:
                everything = self.units.previews(k).mean(axis=0)[None, None]
                changed = self.fitness.of_changed(rows, np.array([k]), everything)
                gains[k] = changed.fitness[0] - now
        return gains

    def _edit(self, state: State, group: Group) -> State:
        """Evolve the units of one group's classes together."""
        rows = self.class_rows(state)
        elements = self._library(state, group, rows)
        owners = [k for k, _ in elements]
        start = frozenset(i for i, (k, u) in enumerate(elements) if u in state[k])

        def score(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
            means = self._means(candidates, elements, group)
            return self.fitness.of_changed(rows, np.array(group), means).fitness

        evolution = Evolution(self.settings, self.rng, owners, core=start)
        best, _ = evolution.run([start], score, self.settings.group_epochs)
        edited = list(state)
        for k in group:
            edited[k] = frozenset(elements[i][1] for i in best if owners[i] == k)
        return edited

    def _library(self, state: State, group: Group, rows: Rows) -> list[tuple[int, int]]:
        """Return the units, as (class, unit), that do no harm when each is added to its class alone."""
        now = self.fitness.of(rows)
        elements: list[tuple[int, int]] = []
        for k in group:
            size = len(state[k])
            added = (rows[k] * size + self.units.previews(k)) / np.float32(size + 1)
            tried = self.fitness.of_changed(rows, np.array([k]), added[:, None])
            bad = falls_too_far(tried.top1, float(now.top1[0]), len(state))
            bad[sorted(state[k])] = False
            elements += [(k, int(u)) for u in np.flatnonzero(~bad)]
        return elements

    def _means(
        self, candidates: Sequence[Candidate], elements: Sequence[tuple[int, int]], group: Group
    ) -> Rows:
        """Return the mean embedding of each class of a group for each candidate, shape (B, g, D)."""
        used = sorted(frozenset().union(*candidates))
        self.units.embed(elements[i] for i in used)
        means = []
        for k in group:
            of_class = [i for i in used if elements[i][0] == k]
            held = np.array([[i in c for i in of_class] for c in candidates], dtype=np.float32)
            rows = self.units.rows(k, [elements[i][1] for i in of_class])
            means.append(held @ rows / held.sum(axis=1, keepdims=True))
        return np.stack(means, axis=1)


# The released code groups classes by ranks and labels, the easiest first; this by label, the hardest first.

# Smallest gain in fitness for which a class starts a group.
_LEAST_GAIN = 0.1
_SHARE_LEFT_OUT = 0.4
# Smallest share of a class's images with the other class among their best five.
_LEAST_CONFUSED = 0.04
_BEST = 5
_LEAST_CLUSTERS = 5


def group_size(n_classes: int) -> int:
    """Return the maximal number of classes in a group."""
    return max(2, int(2.5 * log(n_classes))) if n_classes > 1 else 1


def gain_groups(gains: NDArray[np.float64], size: int) -> tuple[list[Group], NDArray[np.bool_]]:
    """Return groups of classes, the highest gains first, and a mask of all but the 40 % lowest."""
    order = np.argsort(-gains, kind="stable")
    highest = order[: len(order) - int(_SHARE_LEFT_OUT * len(order))]
    allowed = np.isin(np.arange(len(gains)), highest)
    gaining = [int(k) for k in highest if gains[k] > _LEAST_GAIN]
    return [tuple(gaining[i : i + size]) for i in range(0, len(gaining), size)], allowed


def best_clusters(rows: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the clusters of unit rows with the highest silhouette.

    The number of clusters is odd, from 5 to a fifth of the rows; fewer than 25 rows are one cluster.
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
    scores: Rows,
    labels: NDArray[np.int64],
    rows: Rows,
    allowed: NDArray[np.bool_],
    *,
    size: int,
    taken: Sequence[Group],
    rng: np.random.Generator,
) -> list[Group]:
    """Group classes with those they are confused with, the hardest first.

    `scores` are the logits of the training images. Groups are filled with the nearest classes of the
    same cluster, by the unit `rows`. Only `allowed` classes are edited; those in `taken` start no group.
    """
    n_classes = scores.shape[1]
    best = np.zeros(scores.shape)
    np.put_along_axis(best, np.argsort(-scores, axis=1, kind="stable")[:, :_BEST], 1.0, axis=1)
    losses = log_losses(scores, labels).astype(scores.dtype)
    clusters = best_clusters(rows, rng)
    likeness = rows @ rows.T
    covered = {k for group in taken for k in group}
    most = max(size, int(10 * log(n_classes)))
    groups: list[Group] = []
    classes = np.unique(labels)
    hardness = np.array([losses[labels == k].mean() for k in classes])
    for k in classes[np.argsort(-hardness, kind="stable")].tolist():
        if k in covered or not allowed[k] or len(covered) >= most:
            continue
        # Classes among the best of its images, the most frequent first, then by their mean score.
        images = labels == k
        shares, means = best[images].mean(axis=0), scores[images].mean(axis=0)
        ranked = [
            j for j in np.lexsort((-means, -shares)) if shares[j] >= _LEAST_CONFUSED and j != k
        ]
        mates = np.flatnonzero(clusters == clusters[k])
        ranked += mates[np.argsort(-likeness[k, mates], kind="stable")].tolist()
        members = dict.fromkeys([k, *(int(j) for j in ranked if allowed[j])])
        groups.append(tuple(members)[:size])
        covered.update(groups[-1])
    return groups
