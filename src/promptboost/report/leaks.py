"""Prompts of one class that name another."""

import re
from collections.abc import Iterable, Iterator, Mapping

from promptboost.ensemble import PromptEnsemble

__all__ = ["foreign_names"]

_WORD = re.compile(r"[^\W_]+")
Names = Mapping[tuple[str, ...], str]


def foreign_names(ensemble: PromptEnsemble) -> Iterator[tuple[str, str, str]]:
    """Find prompts that hold the name of a class which is not theirs.

    Names are compared word by word without regard to case, the longest first: "a tiger cat" names
    the class "tiger cat" and not "cat".

    Yields
    ------
    tuple of str
        The class, the prompt, and the class it names; one name a prompt.

    Examples
    --------
    >>> from promptboost.ensemble import Round
    >>> banks = {"cat": {"A cat, no dog.": 1, "dogged": 1}, "dog": {"my dog": 1}}
    >>> list(foreign_names(PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.1, 0.1),))))
    [('cat', 'A cat, no dog.', 'dog')]
    """
    names = {_words(name): name for name in ensemble.class_names if _words(name)}
    lengths = sorted({len(words) for words in names}, reverse=True)
    for own in ensemble.class_names:
        texts = dict.fromkeys(text for item in ensemble.rounds for text in item.banks[own])
        for text in texts:
            other = next((n for n in _named(_words(text), names, lengths) if n != own), None)
            if other is not None:
                yield own, text, other


def _named(words: tuple[str, ...], names: Names, lengths: Iterable[int]) -> Iterator[str]:
    """Read from left to right and give the names met; a name found is stepped over whole."""
    i = 0
    while i < len(words):
        size = next((n for n in lengths if words[i : i + n] in names), 0)
        if size:
            yield names[words[i : i + size]]
        i += max(size, 1)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))
