"""ProAPO's second stage: which names and sentences each class has behind the templates."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.methods.proapo.evolution import Candidate, Effort, Space, evolve
from promptboost.methods.proapo.groups import confusion_groups, gain_groups, group_size
from promptboost.methods.proapo.template_search import (
    Fitness,
    drawing_weights,
    falls_too_far,
    unit,
    written,
)

__all__ = ["ClassUnits", "Unit", "units_of", "ClassSearch", "State"]


@dataclass(frozen=True)
class Unit:
    """A name of a class, and perhaps a sentence that follows it.

    Attributes
    ----------
    label : str
        The name of the class, or another name that it has.
    sentence : str or None
        A description.
    """

    label: str
    sentence: str | None = None

    def text(self, template: str) -> str:
        """Write the unit behind a template.

        Examples
        --------
        >>> Unit("owl", "An owl has large eyes.").text("a photo of a {}.")
        'a photo of an owl. an owl has large eyes.'
        >>> Unit("owl", "owl, which has large eyes.").text("a photo of a {}.")
        'a photo of an owl, which has large eyes.'
        """
        start = written(template, self.label)
        if self.sentence is None:
            return start
        said, named = self.sentence.lower(), self.label.lower().replace("_", " ")
        # DCLIP's sentences repeat the name that the template has just said.
        if said.startswith(f"{named}, which "):
            return start.rstrip(".") + said[len(named) :]
        return f"{start} {said}"


def units_of(name: str, synonyms: Sequence[str], sentences: Sequence[str]) -> tuple[Unit, ...]:
    """Return each name alone, and each name with each sentence, in which it stands for the class's.

    Examples
    --------
    >>> units = units_of("owl", ["night bird"], ["An owl hoots."])
    >>> [unit.sentence for unit in units if unit.label == "night bird"]
    [None, 'An night bird hoots.']
    """
    said = name.replace("_", " ")
    named = re.compile(rf"\b{re.escape(said)}\b", re.IGNORECASE)
    units = [Unit(said)]
    units += [Unit(said, sentence) for sentence in sentences]
    for other in synonyms:
        if other.lower() != said.lower():
            literal = other.replace("\\", r"\\")
            units.append(Unit(other))
            units += [Unit(other, named.sub(literal, sentence)) for sentence in sentences]
    return tuple(dict.fromkeys(units))


class ClassUnits:
    """The units of every class, and their rows: embedded when first looked at.

    A unit's row is the mean over the templates. With 10 templates and 60 sentences that is 600
    texts a class, most of which no search ever looks at.

    Parameters
    ----------
    units : sequence of sequences of Unit
        For each class; the first is its name alone.
    templates : sequence of str
        What they are put behind.
    encoder : Encoder
        What embeds.

    Attributes
    ----------
    texts_embedded : int
        How many texts that took so far, those of the plain sentences not counted.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> own = units_of("owl", [], ["large eyes", "a beak"])
    >>> units = ClassUnits([own], ["a photo of a {}.", "a drawing of a {}."], FakeEncoder(dim=8))
    >>> units.rows(0, [0, 2]).shape, units.texts_embedded
    ((2, 8), 4)
    """

    def __init__(
        self, units: Sequence[Sequence[Unit]], templates: Sequence[str], encoder: Encoder
    ) -> None:
        self.units = units
        self.templates = templates
        self.texts_embedded = 0
        self._encoder = encoder
        self._rows = [np.zeros((len(own), encoder.dim), dtype=np.float32) for own in units]
        self._known = [np.zeros(len(own), dtype=np.bool_) for own in units]
        self._plain: dict[int, NDArray[np.float32]] = {}

    def embed(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Embed units, given as (class, unit), behind the templates; all in one go."""
        missing = [(k, u) for k, u in dict.fromkeys(wanted) if not self._known[k][u]]
        if not missing:
            return
        texts = [self.units[k][u].text(t) for k, u in missing for t in self.templates]
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        rows = self._encoder.encode_texts(list(distinct))[[distinct[text] for text in texts]]
        self.texts_embedded += len(distinct)
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

        Parameters
        ----------
        k : int
            The class.
        exact : bool
            Behind the templates; if not, sentences stand alone, as the pool has them, which needs
            no new text.
        """
        own = self.units[k]
        if exact:
            return self.rows(k, range(len(own)))
        if k not in self._plain:
            named = [u for u, unit in enumerate(own) if unit.sentence is None]
            said = [unit.sentence for unit in own if unit.sentence is not None]
            rows = np.zeros_like(self._rows[k])
            rows[named] = self.rows(k, named)
            if said:
                rest = [u for u in range(len(own)) if u not in named]
                rows[rest] = self._encoder.encode_texts(said)
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
        """Return the state in which every class is its name alone."""
        return [frozenset({0}) for _ in self.units.units]

    def sampled(self) -> State:
        """Return the best of 34 states: all sentences, names only, and random parts of them."""
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
        """Return the mean row of each class."""
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
        """Return what each class gains when it gets all of its units."""
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
        """Return the units that do no harm when each is added to its class, and their weights."""
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
    """Return the mean row of each class of a group for each candidate: shape (B, g, D)."""
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
