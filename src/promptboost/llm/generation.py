"""Generate a pool of sentences with a language model, or estimate what that costs."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from promptboost.errors import PoolError, few
from promptboost.llm.client import ModelSettings
from promptboost.llm.questions import Question
from promptboost.llm.replies import NOTHING_YET, ReplyCache, clean_reply
from promptboost.llm.requests import Answers, ask_all
from promptboost.pool.templates import fill
from promptboost.pool.text import NameFinder, distinct

# The question requests what follows "it has", but some models repeat those words or choose others.
_HAS = re.compile(r"(?:it |they )?(?:has|have) ", re.IGNORECASE)
_DOES = re.compile(
    r"(?:it |they )?"
    r"((?:is|are|can|may|often|usually|typically|generally|sometimes|looks?|appears?) .*)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Plan:
    """Requests and estimated tokens if no request fails."""

    questions: tuple[Question, ...]
    answered_before: int  # number of questions with a cached reply
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Generated:
    """Sentences by class, and what was left out."""

    sentences: dict[str, list[str]]  # by class, in the order of the questions
    missing: tuple[str, ...]  # classes without a sentence
    answers: Answers
    dropped: Counter[str]  # number of omitted lines by reason

    @property
    def problem(self) -> str:
        """Why there are no sentences."""
        reasons = [self.answers.stopped, *self.answers.failed.values()]
        return next(filter(None, reasons), "no reply contains a usable sentence")

    def remarks(self) -> Iterator[str]:
        """Yield a line for each problem."""
        answers = self.answers
        if answers.stopped is not None:
            yield f"stopped: {answers.stopped}; replies so far are reused"
        if answers.failed:
            question, reason = next(iter(answers.failed.items()))
            yield f"questions without a reply: {len(answers.failed)}; {question[:60]}…: {reason}"
        if self.dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common())
            yield f"lines of replies left out: {reasons}"
        if NOTHING_YET in self.dropped:
            yield "reasoning models need more tokens: try a larger --reply-tokens"
        if self.missing:
            yield f"classes without a new sentence: {few(self.missing)}"


def plan(questions: Sequence[Question], settings: ModelSettings, cache: ReplyCache) -> Plan:
    """Estimate requests and tokens; send nothing."""
    distinct_questions = {question.text: question for question in questions}.values()
    missing = [q for q in distinct_questions if cache.find(settings, q.text, q.images) is None]
    tokens_in = sum(question.tokens for question in missing)
    tokens_out = sum(min(question.answer_tokens, settings.reply_tokens) for question in missing)
    cached = len(distinct_questions) - len(missing)
    return Plan(tuple(questions), cached, len(missing), tokens_in, tokens_out)


def generate_pool(
    questions: Sequence[Question], settings: ModelSettings, cache: ReplyCache, **options: Any
) -> Generated:
    r"""Ask the questions and collect the sentences of each class, at most as many as requested.

    The same replies always give the same sentences, in whatever order they arrive. Replies in the cache
    are used; the other `options` are those of :func:`~promptboost.llm.requests.ask_all`.
    """
    if not questions:
        raise PoolError("there are no questions: give some classes")
    images = {question.text: question.images for question in questions}
    answers = ask_all(settings, images, cache, images=images, **options)
    lines_of: dict[str, list[str]] = {question.class_name: [] for question in questions}
    dropped: Counter[str] = Counter()
    for question in questions:
        if (reply := answers.replies.get(question.text)) is None:
            continue
        cleaned = clean_reply(reply.text, cut_off=reply.cut_off)
        dropped += cleaned.dropped
        lines_of[question.class_name] += _fit_to_class(question, cleaned.sentences, dropped)
    counts: Counter[str] = Counter()
    for question in questions:
        counts[question.class_name] += question.count
    sentences = {name: _first(lines, counts[name], dropped) for name, lines in lines_of.items()}
    return Generated(
        sentences={name: lines for name, lines in sentences.items() if lines},
        missing=tuple(name for name, lines in sentences.items() if not lines),
        answers=answers,
        dropped=dropped,
    )


def _fit_to_class(question: Question, lines: list[str], dropped: Counter[str]) -> list[str]:
    if question.kind == "dclip":
        return [_sentence(question.class_name, line) for line in lines]
    if not question.others:
        return lines
    # "Unlike a basset hound, …" draws an encoder towards the basset hound, and so do "basset hounds".
    finder = NameFinder([*question.others, question.class_name], plurals=True)
    about_class = [line for line in lines if {*finder.named(line)} <= {question.class_name}]
    if others := len(lines) - len(about_class):
        dropped["with another class"] += others
    return about_class


def _sentence(class_name: str, feature: str) -> str:
    words = _HAS.sub("", feature, count=1).rstrip(" .")
    does = _DOES.fullmatch(words)
    what = does[1] if does else f"has {words}"
    return f"{fill('{}', class_name)}, which {what}."


def _first(lines: list[str], limit: int, dropped: Counter[str]) -> list[str]:
    unique = distinct(lines)
    if repeated := len(lines) - len(unique):
        dropped["repeated"] += repeated
    if len(unique) > limit:
        dropped["surplus"] += len(unique) - limit
    return unique[:limit]
