"""Which classes a sentence names."""

import re
from collections.abc import Iterator, Sequence

__all__ = ["NameFinder"]

_WORD = re.compile(r"[^\W_]+")


class NameFinder:
    """Finds the names of classes in sentences, word by word without regard to case.

    The longest name wins: "a tiger cat" names the class "tiger cat" and not "cat".

    Parameters
    ----------
    class_names : sequence of str
        The names.

    Examples
    --------
    >>> finder = NameFinder(["cat", "tiger cat", "dog"])
    >>> list(finder.named("A tiger cat is no dog; dogged."))
    ['tiger cat', 'dog']
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        self._names = {words: name for name in class_names if (words := _words(name))}
        lengths: dict[str, set[int]] = {}
        for words in self._names:
            lengths.setdefault(words[0], set()).add(len(words))
        self._lengths = {word: sorted(sizes, reverse=True) for word, sizes in lengths.items()}

    def named(self, text: str) -> Iterator[str]:
        """Read from left to right and give the names met; a name found is stepped over whole."""
        words = _words(text)
        i = 0
        while i < len(words):
            sizes = self._lengths.get(words[i], ())
            size = next((n for n in sizes if words[i : i + n] in self._names), 0)
            if size:
                yield self._names[words[i : i + size]]
            i += max(size, 1)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))
