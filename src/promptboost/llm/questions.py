"""Questions to a language model about classes, and about pairs that a classifier confuses.

The wording is our own. The kinds follow three published ideas: descriptions of how a class looks
(CuPL), lists of attributes (DCLIP), and differences between two classes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any, Literal, get_args

from promptboost.errors import PoolError, SettingError
from promptboost.pool.pool import sentences_by_class
from promptboost.pool.templates import fill
from promptboost.pool.text import distinct, name_key

Kind = Literal["cupl", "dclip", "contrast"]

_LOOKS = (
    "What does a {} look like?",
    "How would you recognize a {} in a photograph?",
    "Which colors, shapes and textures does a {} show?",
    "What is seen in a typical picture of a {}, and where is it usually taken?",
    "How can pictures of a {} differ from each other: viewpoint, kind, age, setting?",
)
_ATTRIBUTES = (
    "Which visible features help to tell that a picture shows a {}?",
    "Which parts of a {} can be seen in a picture, and how do they look?",
)
_APART = "Seen in pictures, how does a {} look different from {}?"

_SENTENCES = (
    "Answer with {count} different sentences, one a line. Each describes what is visible, names the "
    "{name}, makes sense without the others and has at most 25 words. No numbers, no introduction."
)
_FRAGMENTS = (
    "Answer with {count} different features, one a line. Each is a few words that could follow "
    '"it has", without the name. No numbers, no introduction.'
)
_ONE_SIDE = (
    "Answer with {count} different sentences, one a line. Each describes only the {name}, by what is "
    "visible, names it, never names the other one, and has at most 25 words. No numbers, no "
    "introduction."
)
# Shorter answers are not worth a question of their own.
_MIN_LINES = 5
# Expected length of an answer, for the estimate.
_TOKENS_PER_LINE = {"cupl": 28, "dclip": 10, "contrast": 28}


@dataclass(frozen=True)
class Question:
    """Question, and the class its answer describes."""

    text: str
    class_name: str
    kind: Kind
    count: int  # requested number of lines
    rival: str | None = None  # class to contrast with

    @property
    def answer_tokens(self) -> int:
        """Estimated number of tokens of the answer."""
        return self.count * _TOKENS_PER_LINE[self.kind]


def questions_for(class_names: Sequence[str], kind: Kind, per_class: int) -> list[Question]:
    """Return questions that ask for `per_class` sentences about each class.

    More sentences take several questions with different wording, because models repeat themselves in
    long answers. Contrastive questions prefer classes whose names share words ("Boston terrier",
    "Norfolk terrier"), which tend to look alike.

    Examples
    --------
    >>> questions = questions_for(["owl", "beagle"], "cupl", 8)
    >>> questions[0].text.split("?")[0], len(questions)
    ('What does an owl look like', 4)
    >>> [question.rival for question in questions_for(["owl", "beagle"], "contrast", 5)]
    ['beagle', 'owl']
    """
    if kind not in get_args(Kind):
        raise SettingError(f"questions must be 'cupl', 'dclip' or 'contrast', not {kind!r}")
    if per_class < 1:
        raise SettingError(f"per_class is {per_class}, but must be 1 or more")
    if kind == "contrast":
        return _against_rivals(class_names, per_class)
    wordings, request = (_LOOKS, _SENTENCES) if kind == "cupl" else (_ATTRIBUTES, _FRAGMENTS)
    number = min(len(wordings), ceil(per_class / _MIN_LINES))
    count = ceil(per_class / number)
    texts = [
        (name, f"{fill(wording, name)} {request.format(count=count, name=fill('{}', name))}")
        for name in class_names
        for wording in wordings[:number]
    ]
    return [Question(text, name, kind, count) for name, text in texts]


def contrast_questions(first: str, second: str, count: int) -> list[Question]:
    """Return a question about each of two classes: how it differs from the other."""
    return [_contrast(first, second, count), _contrast(second, first, count)]


def _contrast(name: str, rival: str, count: int) -> Question:
    difference = fill(_APART.replace("from {}", f"from {fill('a {}', rival)}"), name)
    request = _ONE_SIDE.format(count=count, name=fill("{}", name))
    return Question(f"{difference} {request}", name, "contrast", count, rival)


def _against_rivals(class_names: Sequence[str], per_class: int) -> list[Question]:
    if len(class_names) < 2:
        raise PoolError("contrastive questions need two classes or more: give more, or ask cupl")
    number = min(len(class_names) - 1, ceil(per_class / _MIN_LINES))
    count = ceil(per_class / number)
    words = [set(name_key(name).split()) for name in class_names]
    return [
        _contrast(name, class_names[j], count)
        for i, name in enumerate(class_names)
        for j in _nearest(i, words)[:number]
    ]


def _nearest(i: int, words: Sequence[set[str]]) -> list[int]:
    """Return the other classes, those with most shared words first, then in list order."""
    others = [j % len(words) for j in range(i + 1, i + len(words))]
    return sorted(others, key=lambda j: -len(words[i] & words[j]))


@dataclass(frozen=True)
class Pair:
    """Two classes, and the number of images confused between them."""

    first: str
    second: str
    count: int


def confused_pairs(confusions: Iterable[Mapping[str, Any]], most: int) -> list[Pair]:
    """Return the most confused pairs of classes, counting both directions.

    Examples
    --------
    >>> confusions = [
    ...     {"true": "owl", "predicted": "bat", "count": 2},
    ...     {"true": "elk", "predicted": "owl", "count": 3},
    ...     {"true": "bat", "predicted": "owl", "count": 2},
    ... ]
    >>> confused_pairs(confusions, 1)
    [Pair(first='owl', second='bat', count=4)]
    """
    if most < 1:
        raise SettingError(f"pairs is {most}, but must be 1 or more")
    counts: Counter[tuple[str, str]] = Counter()
    for line in confusions:
        names = line["true"], line["predicted"]
        counts[names[::-1] if names[::-1] in counts else names] += line["count"]
    return [Pair(*names, count) for names, count in counts.most_common(most)]


def pair_questions(pairs: Iterable[Pair], count: int) -> list[Question]:
    """Return questions about both classes of each pair."""
    if count < 1:
        raise SettingError(f"per_pair is {count}, but must be 1 or more")
    questions = (contrast_questions(pair.first, pair.second, count) for pair in pairs)
    return list(chain.from_iterable(questions))


def grow_pool(
    class_names: Sequence[str],
    descriptions: Mapping[str, Sequence[str]],
    more: Mapping[str, Sequence[str]],
) -> dict[str, list[str]]:
    """Append sentences to those of a pool, without repeats.

    Examples
    --------
    >>> grow_pool(["owl", "bat"], {"Owl": ["Round eyes."]}, {"owl": ["round eyes.", "A beak."]})
    {'owl': ['Round eyes.', 'A beak.']}
    """
    if unknown := [name for name in more if name not in class_names]:
        raise PoolError(f"there are sentences about {unknown[0]!r}, which is no class")
    old, _ = sentences_by_class(class_names, descriptions)
    grown = {name: distinct([*old.get(name, []), *more.get(name, [])]) for name in class_names}
    return {name: sentences for name, sentences in grown.items() if sentences}
