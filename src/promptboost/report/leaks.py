"""Prompts of one class that name another."""

from collections.abc import Iterator

from promptboost.ensemble import PromptEnsemble
from promptboost.pool.naming import NameFinder

__all__ = ["foreign_names"]


def foreign_names(ensemble: PromptEnsemble) -> Iterator[tuple[str, str, str]]:
    """Find prompts that hold the name of a class which is not theirs.

    Names are met as :class:`~promptboost.pool.naming.NameFinder` meets them: word by word without
    regard to case, the longest first.

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
    finder = NameFinder(ensemble.class_names)
    for own in ensemble.class_names:
        texts = dict.fromkeys(text for item in ensemble.rounds for text in item.banks[own])
        for text in texts:
            other = next((name for name in finder.named(text) if name != own), None)
            if other is not None:
                yield own, text, other
