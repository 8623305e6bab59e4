"""Prompts without an object for each: products of templates and sentences.

Eighty templates and a hundred sentences are eight thousand concatenations. Only the eighty and
the hundred are kept; which of their pairs are prompts is known by number.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar, overload

from promptboost.pool.templates import fill
from promptboost.pool.text import text_key


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sentence of a pool, and where it comes from.

    Examples
    --------
    >>> Prompt("a photo of an owl.", "template", template="a photo of a {}.").text
    'a photo of an owl.'
    """

    text: str  # what is embedded and shown
    source: str  # "template", "descriptions" or the name given to them, or "concat"
    template: str | None = None  # the template it was made with, {} and all
    sentence: str | None = None  # the description; of a concatenation, its second half
    origin: str | None = None  # of a concatenation, the source of its sentence


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """All pairs of some templates and some sentences, or some of the pairs; templates count first.

    ``None`` as the only template or sentence stands for prompts that have none.
    """

    source: str
    templates: tuple[str | None, ...]
    starts: tuple[str | None, ...]  # the templates, filled with the name of the class
    sentences: tuple[str | None, ...]  # the second halves
    origin: str | None = None
    kept: "array[int] | None" = None  # which pairs: template × sentences + sentence

    def __len__(self) -> int:
        return len(self._numbers())

    def text(self, i: int) -> str:
        """Make the text of prompt `i`."""
        t, s = divmod(self._numbers()[i], len(self.sentences))
        return " ".join(part for part in (self.starts[t], self.sentences[s]) if part is not None)

    def prompt(self, i: int) -> Prompt:
        """Make prompt `i`."""
        t, s = divmod(self._numbers()[i], len(self.sentences))
        return Prompt(self.text(i), self.source, self.templates[t], self.sentences[s], self.origin)

    def texts(self) -> Iterator[str]:
        """Make all texts, in order."""
        return self._made_of(self.starts, self.sentences)

    def distinct(self, seen: set[str]) -> "Product":
        """Leave out prompts whose text is in `seen`, whatever its case and space; add the others to it."""
        # The space between the halves keeps them apart under every step of text_key, so the key of
        # a pair is the pair of the keys: a few hundred to compute, not ten thousand.
        keys = self._made_of(*(_keys(parts) for parts in (self.starts, self.sentences)))
        kept = array("q")
        for number, key in zip(self._numbers(), keys, strict=True):
            if key not in seen:
                seen.add(key)
                kept.append(number)
        return self if len(kept) == len(self) else replace(self, kept=kept)

    def counts(self) -> Counter[str]:
        """Count prompts by source."""
        return Counter({self.source: len(self)})

    def sources(self) -> list[str]:
        """Name the sources, that of the sentences of concatenations among them."""
        return [source for source in (self.source, self.origin) if source is not None]

    def of(self, sources: Collection[str]) -> "Product | None":
        """Keep what comes from these sources; a concatenation also comes from its sentence's."""
        return self if self.source in sources or self.origin in sources else None

    def _numbers(self) -> "Sequence[int] | array[int]":
        return range(len(self.starts) * len(self.sentences)) if self.kept is None else self.kept

    def _made_of(
        self, firsts: Sequence[str | None], seconds: Sequence[str | None]
    ) -> Iterator[str]:
        space = "" if seconds[:1] == (None,) else " "
        heads = ["" if first is None else first + space for first in firsts]
        tails = ["" if second is None else second for second in seconds]
        if self.kept is None:
            return (head + tail for head in heads for tail in tails)
        pairs = (divmod(number, len(tails)) for number in self.kept)
        return (heads[t] + tails[s] for t, s in pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Prompts that no template and sentence make again, such as those written by hand."""

    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def text(self, i: int) -> str:
        """Return the text of prompt `i`."""
        return self.prompts[i].text

    def prompt(self, i: int) -> Prompt:
        """Return prompt `i`."""
        return self.prompts[i]

    def texts(self) -> Iterator[str]:
        """Return all texts, in order."""
        return (prompt.text for prompt in self.prompts)

    def distinct(self, seen: set[str]) -> "Listed":
        """Leave out prompts whose text is in `seen`, whatever its case and space; add the others to it."""
        kept = []
        for prompt in self.prompts:
            if (key := text_key(prompt.text)) not in seen:
                seen.add(key)
                kept.append(prompt)
        return Listed(tuple(kept))

    def counts(self) -> Counter[str]:
        """Count prompts by source."""
        return Counter(prompt.source for prompt in self.prompts)

    def sources(self) -> list[str]:
        """Name the sources, that of the sentences of concatenations among them."""
        both = (source for prompt in self.prompts for source in (prompt.source, prompt.origin))
        return list(dict.fromkeys(source for source in both if source is not None))

    def of(self, sources: Collection[str]) -> "Listed | None":
        """Keep what comes from these sources; a concatenation also comes from its sentence's."""
        return Listed(tuple(p for p in self.prompts if p.source in sources or p.origin in sources))


Part = Product | Listed


def sentences_of(source: str, sentences: Iterable[str]) -> Product:
    """Make prompts that are sentences as they are."""
    return Product(source, (None,), (None,), tuple(sentences))


def _keys(parts: tuple[str | None, ...]) -> tuple[str | None, ...]:
    return tuple(None if part is None else text_key(part) for part in parts)


_SHOWN = 10
_Item = TypeVar("_Item", covariant=True)


class _Made(Sequence[_Item]):
    """Items made when asked for; equal to any list or tuple of the same items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Made | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))


class ClassPrompts(_Made[Prompt]):
    """The prompts of one class, made when asked for."""

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(part for part in parts if len(part))
        self._ends = tuple(accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Prompt, ...]: ...
    def __getitem__(self, index: int | slice) -> Prompt | tuple[Prompt, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        part, i = self._find(index)
        return part.prompt(i)

    def __iter__(self) -> Iterator[Prompt]:
        return (part.prompt(i) for part in self.parts for i in range(len(part)))

    def text(self, index: int) -> str:
        """Make the text of one prompt."""
        part, i = self._find(index)
        return part.text(i)

    def texts(self) -> Iterator[str]:
        """Make all texts, in order."""
        return (text for part in self.parts for text in part.texts())

    def counts(self) -> Counter[str]:
        """Count prompts by source."""
        return sum((part.counts() for part in self.parts), Counter())

    def sources(self) -> list[str]:
        """Name all sources, those of the sentences of concatenations among them."""
        return list(dict.fromkeys(source for part in self.parts for source in part.sources()))

    def distinct(self) -> "ClassPrompts":
        """Keep the first of the prompts that differ only in case and white space."""
        seen: set[str] = set()
        return ClassPrompts([part.distinct(seen) for part in self.parts])

    def of(self, sources: Collection[str]) -> "ClassPrompts":
        """Keep the prompts that come from some sources."""
        return ClassPrompts(part for whole in self.parts if (part := whole.of(sources)))

    def _find(self, index: int) -> tuple[Part, int]:
        i = range(len(self))[index]  # counts negative ones from the end, refuses those beyond
        p = bisect_right(self._ends, i)
        return self.parts[p], i - (self._ends[p - 1] if p else 0)

    def __repr__(self) -> str:
        return f"<{len(self)} prompts>"


class Texts(_Made[str]):
    """The texts of prompts, made when asked for; equal to any list or tuple of the same texts."""

    __slots__ = ("_prompts",)

    def __init__(self, prompts: ClassPrompts) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        return self._prompts.text(index)

    def __iter__(self) -> Iterator[str]:
        return self._prompts.texts()

    def __repr__(self) -> str:
        if len(self) <= _SHOWN:
            return repr(tuple(self))
        return f"<{len(self)} texts, from {self[0]!r} to {self[-1]!r}>"


def pack(class_name: str, prompts: Sequence[Prompt]) -> ClassPrompts:
    """Put the prompts of a class into little room; their order and content stay."""
    if isinstance(prompts, ClassPrompts):
        return prompts
    packer = Packer(class_name)
    for prompt in prompts:
        packer.add(prompt)
    return packer.packed()


class Packer:
    """Takes the prompts of one class one by one, and keeps each template and sentence once."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self._parts: list[Part] = []
        self._filled: dict[str, str] = {}
        self._start_run(None)

    def add(self, prompt: Prompt) -> None:
        """Take one prompt."""
        shape = None
        if self._can_be_made_again(prompt):
            # Prompts of one shape in a row make one product.
            has = (prompt.template is not None, prompt.sentence is not None)
            shape = (prompt.source, prompt.origin, has)
        if shape != self._shape:
            self._end_run()
            self._start_run(shape)
        if shape is None:
            self._odd.append(prompt)
        else:
            self._rows.append(self._templates.setdefault(prompt.template, len(self._templates)))
            self._columns.append(self._sentences.setdefault(prompt.sentence, len(self._sentences)))

    def packed(self) -> ClassPrompts:
        """Return all prompts taken so far."""
        self._end_run()
        self._start_run(None)
        return ClassPrompts(self._parts)

    def _can_be_made_again(self, prompt: Prompt) -> bool:
        parts = []
        if prompt.template is not None:
            if prompt.template not in self._filled:
                self._filled[prompt.template] = fill(prompt.template, self.class_name)
            parts.append(self._filled[prompt.template])
        if prompt.sentence is not None:
            parts.append(prompt.sentence)
        return bool(parts) and all(parts) and prompt.text == " ".join(parts)

    def _start_run(self, shape: tuple[str, str | None, tuple[bool, bool]] | None) -> None:
        self._shape = shape
        self._odd: list[Prompt] = []
        self._templates: dict[str | None, int] = {}
        self._sentences: dict[str | None, int] = {}
        self._rows, self._columns = array("q"), array("q")

    def _end_run(self) -> None:
        if self._odd:
            self._parts.append(Listed(tuple(self._odd)))
        if self._shape is None or not self._rows:
            return
        source, origin, _ = self._shape
        templates, sentences = tuple(self._templates), tuple(self._sentences)
        width = len(sentences)
        kept = array("q", (t * width + s for t, s in zip(self._rows, self._columns, strict=True)))
        whole = kept == array("q", range(len(templates) * width))
        starts = tuple(None if t is None else self._filled[t] for t in templates)
        pairs = None if whole else kept
        self._parts.append(Product(source, templates, starts, sentences, origin, pairs))
