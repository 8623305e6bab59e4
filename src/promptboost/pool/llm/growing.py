"""More sentences about the classes that a classifier still mixes up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptboost.errors import PoolError, SettingError
from promptboost.pool.descriptions import match_descriptions
from promptboost.pool.llm.cleaning import distinct
from promptboost.pool.llm.questions import Question, contrast_questions

__all__ = ["Pair", "confused_pairs", "grow_pool", "pair_questions"]


@dataclass(frozen=True)
class Pair:
    """Two classes that are taken for each other, and how many pictures were."""

    one: str
    other: str
    count: int


def confused_pairs(confusions: Iterable[Mapping[str, Any]], most: int) -> list[Pair]:
    """Find the pairs of classes that are mixed up most, in either direction.

    Parameters
    ----------
    confusions : iterable of mapping
        As in a run's ``metrics.json``: ``true``, ``predicted`` and ``count``.
    most : int
        How many pairs to give.

    Examples
    --------
    >>> found = [
    ...     {"true": "owl", "predicted": "bat", "count": 2},
    ...     {"true": "elk", "predicted": "owl", "count": 3},
    ...     {"true": "bat", "predicted": "owl", "count": 2},
    ... ]
    >>> confused_pairs(found, 1)
    [Pair(one='owl', other='bat', count=4)]
    """
    if most < 1:
        raise SettingError(f"pairs is {most}, but must be 1 or more")
    counts: dict[tuple[str, str], int] = {}
    for line in confusions:
        key = (line["true"], line["predicted"])
        if key not in counts and key[::-1] in counts:
            key = key[::-1]
        counts[key] = counts.get(key, 0) + line["count"]
    pairs = [Pair(*names, count) for names, count in counts.items()]
    return sorted(pairs, key=lambda pair: -pair.count)[:most]


def pair_questions(pairs: Iterable[Pair], count: int) -> list[Question]:
    """Ask about both classes of each pair.

    Examples
    --------
    >>> [question.class_name for question in pair_questions([Pair("owl", "bat", 4)], 5)]
    ['owl', 'bat']
    """
    if count < 1:
        raise SettingError(f"per_pair is {count}, but must be 1 or more")
    return [
        question for pair in pairs for question in contrast_questions(pair.one, pair.other, count)
    ]


def grow_pool(
    class_names: Sequence[str],
    descriptions: Mapping[str, Sequence[str]],
    more: Mapping[str, Sequence[str]],
) -> dict[str, list[str]]:
    """Add sentences to those there are; what is there stays, in its order.

    Parameters
    ----------
    class_names : sequence of str
        Names and order of the classes.
    descriptions : mapping of str to sequence of str
        What there is. Names meet as in :func:`~promptboost.pool.match_descriptions`.
    more : mapping of str to sequence of str
        New sentences, by the names of the classes.

    Examples
    --------
    >>> grow_pool(["owl", "bat"], {"Owl": ["Round eyes."]}, {"owl": ["round eyes.", "A beak."]})
    {'owl': ['Round eyes.', 'A beak.']}
    """
    if strange := [name for name in more if name not in class_names]:
        raise PoolError(f"there are sentences about {strange[0]!r}, which is no class")
    before = match_descriptions(class_names, descriptions).matched
    grown = {name: distinct([*before.get(name, []), *more.get(name, [])]) for name in class_names}
    return {name: sentences for name, sentences in grown.items() if sentences}
