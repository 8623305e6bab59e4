"""Prompts without an object for each: products of templates and sentences.

Eighty templates and a hundred sentences are eight thousand concatenations. Only the eighty and
the hundred are kept; which of their pairs are prompts is known by number.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from promptboost.pool.text import text_key

__all__ = ["Listed", "Part", "Product", "Prompt", "sentences_of"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sentence of a pool, and where it comes from.

    Attributes
    ----------
    text : str
        What is embedded and shown.
    source : str
        ``"template"``, ``"descriptions"`` or the name given to them, or ``"concat"``.
    template : str or None
        The template it was made with, ``{}`` and all.
    sentence : str or None
        The description it was made with; of a concatenation, its second half.
    origin : str or None
        Of a concatenation, the source of its sentence.

    Examples
    --------
    >>> Prompt("a photo of an owl.", "template", template="a photo of a {}.").text
    'a photo of an owl.'
    """

    text: str
    source: str
    template: str | None = None
    sentence: str | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """All pairs of some templates and some sentences, or some of the pairs; templates count first.

    ``None`` as the only template or sentence stands for prompts that have none.

    Attributes
    ----------
    source, origin : str, str or None
        As every prompt of it has them.
    templates : tuple of str, or ``(None,)``
        With ``{}``.
    starts : tuple of str, or ``(None,)``
        The same, filled with the name of the class.
    sentences : tuple of str, or ``(None,)``
        The second halves.
    kept : array of int, optional
        Which pairs: the number of the template times the number of sentences, plus the number of
        the sentence. All by default.

    Examples
    --------
    >>> pairs = Product("concat", ("a {}.", "the {}."), ("an owl.", "the owl."), ("eyes", "beak"))
    >>> len(pairs), pairs.text(3), list(pairs.texts())[0]
    (4, 'the owl. beak', 'an owl. eyes')
    """

    source: str
    templates: tuple[str | None, ...]
    starts: tuple[str | None, ...]
    sentences: tuple[str | None, ...]
    origin: str | None = None
    kept: "array[int] | None" = None

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
        """Leave out prompts whose text is in `seen` but for case and space; add the others to it."""
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
        """Give the text of prompt `i`."""
        return self.prompts[i].text

    def prompt(self, i: int) -> Prompt:
        """Give prompt `i`."""
        return self.prompts[i]

    def texts(self) -> Iterator[str]:
        """Give all texts, in order."""
        return (prompt.text for prompt in self.prompts)

    def distinct(self, seen: set[str]) -> "Listed":
        """Leave out prompts whose text is in `seen` but for case and space; add the others to it."""
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
