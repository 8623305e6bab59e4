"""What ProAPO's second stage puts behind templates: names of a class, and sentences about it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.methods.proapo_templates import written

__all__ = ["ClassUnits", "Unit", "units_of"]


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
    """Give each name alone, and each name with each sentence, in which it stands for the class's.

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
    >>> from promptboost.testing import FakeEncoder
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
        """Give the rows of some units of a class."""
        self.embed((k, u) for u in numbers)
        return self._rows[k][list(numbers)]

    def previews(self, k: int, *, exact: bool) -> NDArray[np.float32]:
        """Give a row for each unit of a class before the search looks at any.

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
