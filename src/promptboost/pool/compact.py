"""The prompts of one class, and their texts, as sequences that make each one when it is asked for."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from promptboost.pool.products import Part, Prompt

__all__ = ["ClassPrompts", "Texts"]

_SHOWN = 10


class ClassPrompts(Sequence[Prompt]):
    """The prompts of one class, made when asked for.

    Parameters
    ----------
    parts : iterable of Product or Listed
        One after the other; empty ones are left out.

    Examples
    --------
    >>> from promptboost.pool.products import sentences_of
    >>> prompts = ClassPrompts([sentences_of("mine", ["round eyes", "a beak"])])
    >>> len(prompts), prompts[-1].text
    (2, 'a beak')
    """

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassPrompts | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} prompts>"


class Texts(Sequence[str]):
    """The texts of prompts, made when asked for; equal to any list or tuple of the same texts.

    Examples
    --------
    >>> texts = Texts((Prompt("an owl", "mine"), Prompt("a beak", "mine")))
    >>> texts, texts[-1], texts == ["an owl", "a beak"]
    (('an owl', 'a beak'), 'a beak', True)
    """

    __slots__ = ("_prompts",)

    def __init__(self, prompts: Sequence[Prompt]) -> None:
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
        if isinstance(self._prompts, ClassPrompts):
            return self._prompts.text(index)
        return self._prompts[index].text

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._prompts, ClassPrompts):
            return self._prompts.texts()
        return (prompt.text for prompt in self._prompts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        if len(self) <= _SHOWN:
            return repr(tuple(self))
        return f"<{len(self)} texts, from {self[0]!r} to {self[-1]!r}>"
