"""Which classes a sentence names."""

import re
from collections.abc import Iterator, Sequence

from promptboost.pool.spellings import singular

__all__ = ["NameFinder"]

_WORD = re.compile(r"[^\W_]+")


class NameFinder:
    """Finds the names of classes in sentences, word by word without regard to case.

    The longest name wins: "a tiger cat" names the class "tiger cat" and not "cat".

    Parameters
    ----------
    class_names : sequence of str
        The names.
    plurals : bool, default=False
        "Tiger cats" name the class "tiger cat" too; not where that makes two names one ("glass",
        "glasses").

    Examples
    --------
    >>> finder = NameFinder(["cat", "tiger cat", "dog"])
    >>> list(finder.named("A tiger cat is no dog; dogged."))
    ['tiger cat', 'dog']
    >>> list(NameFinder(["cat", "dog"], plurals=True).named("Dogs and cats"))
    ['dog', 'cat']
    """

    def __init__(self, class_names: Sequence[str], *, plurals: bool = False) -> None:
        self._plurals = plurals and len({*map(_singular_words, class_names)}) == len(class_names)
        self._names = {words: name for name in class_names if (words := self._words(name))}
        lengths: dict[str, set[int]] = {}
        for words in self._names:
            lengths.setdefault(words[0], set()).add(len(words))
        self._lengths = {word: sorted(sizes, reverse=True) for word, sizes in lengths.items()}

    def named(self, text: str) -> Iterator[str]:
        """Read from left to right and give the names met; a name found is stepped over whole."""
        words = self._words(text)
        i = 0
        while i < len(words):
            sizes = self._lengths.get(words[i], ())
            size = next((n for n in sizes if words[i : i + n] in self._names), 0)
            if size:
                yield self._names[words[i : i + size]]
            i += max(size, 1)

    def _words(self, text: str) -> tuple[str, ...]:
        return _singular_words(text) if self._plurals else _words(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def _singular_words(text: str) -> tuple[str, ...]:
    return tuple(map(singular, _words(text)))
