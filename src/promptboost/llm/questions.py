"""Questions to a language model about classes, and about pairs that a classifier confuses.

The wording is our own. Two kinds follow published ideas: descriptions of how a class looks (CuPL) and
lists of attributes (DCLIP). The others are descriptions in the context of the other classes, and
differences between two classes. Class names are data: these two quote them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from promptboost.llm.client import TOKENS_PER_IMAGE, estimate_tokens
from promptboost.pool.templates import fill
from promptboost.pool.text import name_key

Kind = Literal["cupl", "dclip", "context", "contrast"]

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
_IN_CONTEXT = (
    "How does {} look in a photo, and what sets it apart from the other classes?",
    "Which parts, colors, shapes, textures and surroundings in a photo show {} and none of the "
    "other classes?",
)
_APART = "In photos, how does {name} look different from {rival}?"
_SHOWN = "The first image shows {name}, the second {rival}."

_SENTENCES = (
    "Answer with {count} different sentences, one a line. Each describes what is visible, names the "
    "{name}, makes sense without the others and has at most 25 words. No numbers, no introduction."
)
_FRAGMENTS = (
    "Answer with {count} different features, one a line. Each is a few words that could follow "
    '"it has", without the name. No numbers, no introduction.'
)
_ONE_CLASS = (
    "Answer with {count} different sentences, one a line. Each describes only {name}, by what is visible, "
    "names it, never names another class, makes sense without the others and has at most 25 words. No "
    "numbers, no introduction."
)
# Further class names make questions expensive.
_MOST_OTHERS = 30
# Shorter answers are not worth a question of their own.
_MIN_LINES = 5
# Expected length of an answer, for the estimate.
_TOKENS_PER_LINE = {"cupl": 28, "dclip": 10, "context": 28, "contrast": 28}


@dataclass(frozen=True)
class Question:
    """Question, and the class its answer describes."""

    text: str
    class_name: str
    kind: Kind
    count: int  # requested number of lines
    others: tuple[str, ...] = ()  # classes that the answer must not name
    images: tuple[str, ...] = ()  # data URLs

    @property
    def tokens(self) -> int:
        """Estimated number of tokens of the question."""
        return estimate_tokens(self.text) + TOKENS_PER_IMAGE * len(self.images)

    @property
    def answer_tokens(self) -> int:
        """Estimated number of tokens of the answer."""
        return self.count * _TOKENS_PER_LINE[self.kind]


def questions_for(class_names: Sequence[str], kind: Kind, per_class: int) -> list[Question]:
    """Return questions that ask for `per_class` sentences about each class.

    More sentences take several questions with different wording, because models repeat themselves in
    long answers. Questions in context list the other classes, at most 30, those whose names share words
    first ("Boston terrier", "Norfolk terrier"), which tend to look alike.
    """
    wordings, request = {
        "cupl": (_LOOKS, _SENTENCES),
        "dclip": (_ATTRIBUTES, _FRAGMENTS),
        "context": (_IN_CONTEXT, _ONE_CLASS),
    }[kind]
    number = min(len(wordings), ceil(per_class / _MIN_LINES))
    count = ceil(per_class / number)
    words = [set(name_key(name).split()) for name in class_names]
    questions = []
    for i, name in enumerate(class_names):
        others: tuple[str, ...] = ()
        filled, shown = [fill(wording, name) for wording in wordings[:number]], fill("{}", name)
        if kind == "context":
            others = tuple(class_names[j] for j in _nearest(i, words)[:_MOST_OTHERS])
            shown, opening = _quoted(name), ", ".join(map(_quoted, (name, *others)))
            opening = f"Each photo shows one of these classes: {opening}. "
            filled = [opening + wording.replace("{}", shown) for wording in wordings[:number]]
        request_text = request.format(count=count, name=shown)
        questions += [
            Question(f"{text} {request_text}", name, kind, count, others) for text in filled
        ]
    return questions


def _quoted(name: str) -> str:
    return json.dumps(fill("{}", name), ensure_ascii=False)


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
    """Return the most confused pairs of classes, counting both directions."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in confusions:
        names = line["true"], line["predicted"]
        counts[names[::-1] if names[::-1] in counts else names] += line["count"]
    return [Pair(*names, count) for names, count in counts.most_common(most)]


def pair_questions(
    pairs: Iterable[Pair],
    class_names: Sequence[str],
    count: int,
    images: Mapping[str, str] | None = None,
) -> list[Question]:
    """Return a question about both classes of each pair: how it differs from the other.

    The answers must name none of the other `class_names`. `images` are data URLs of an image of each class.
    """
    questions = []
    wording = " ".join((*((_SHOWN,) if images else ()), _APART, _ONE_CLASS))
    for pair in pairs:
        for name, rival in ((pair.first, pair.second), (pair.second, pair.first)):
            text = wording.format(count=count, name=_quoted(name), rival=_quoted(rival))
            shown = (images[name], images[rival]) if images else ()
            others = tuple(other for other in class_names if other != name)
            questions.append(Question(text, name, "contrast", count, others, shown))
    return questions
