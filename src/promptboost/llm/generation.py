"""Generate a pool of sentences with a language model, or estimate what that costs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from promptboost.errors import PoolError, SettingError
from promptboost.llm.client import ModelSettings, estimate_tokens
from promptboost.llm.questions import Question
from promptboost.llm.replies import ReplyCache, clean_reply
from promptboost.llm.requests import Answers, RequestPolicy, ask_all
from promptboost.pool.templates import fill
from promptboost.pool.text import NameFinder, distinct, name_key

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
    cost: float | None = None  # in the currency of the price; None without a price


@dataclass(frozen=True)
class Generated:
    """Sentences by class, and what was left out."""

    sentences: dict[str, list[str]]  # by class, in the order of the questions
    missing: tuple[str, ...]  # classes without a sentence
    answers: Answers
    dropped: Counter[str]  # number of omitted lines by reason


def plan(
    questions: Sequence[Question],
    settings: ModelSettings,
    cache: ReplyCache,
    price: tuple[float, float] | None = None,
) -> Plan:
    """Estimate requests, tokens and cost; send nothing.

    The price is that of a million tokens of questions and of replies, in any currency.
    """
    sizes = {question.text: question.answer_tokens for question in questions}
    missing = {text: size for text, size in sizes.items() if cache.find(settings, text) is None}
    tokens_in = sum(map(estimate_tokens, missing))
    tokens_out = sum(min(size, settings.reply_tokens) for size in missing.values())
    cost = None
    if price is not None:
        if not all(0 <= amount < float("inf") for amount in price):
            raise SettingError(f"the price is {price[0]} and {price[1]}, but must be 0 or more")
        cost = (tokens_in * price[0] + tokens_out * price[1]) / 1e6
    cached = len(sizes) - len(missing)
    return Plan(tuple(questions), cached, len(missing), tokens_in, tokens_out, cost)


def generate_pool(
    questions: Sequence[Question],
    settings: ModelSettings,
    cache: ReplyCache,
    *,
    per_class: int | None = None,
    policy: RequestPolicy | None = None,
) -> Generated:
    r"""Ask the questions and collect the sentences of each class, at most `per_class`.

    The same replies always give the same sentences, in whatever order they arrive. Replies in the cache
    are used; see :func:`~promptboost.llm.ask_all`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from promptboost.llm.client import Reply
    >>> from promptboost.llm.questions import questions_for
    >>> settings = ModelSettings("a-model")
    >>> [question] = questions_for(["barn_owl"], "dclip", 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ReplyCache(pathlib.Path(folder, "replies.jsonl"))
    ...     cache.add(settings, question.text, Reply("1. round eyes\n2. a hooked beak", 40, 12))
    ...     generate_pool([question], settings, cache).sentences
    {'barn_owl': ['barn owl, which has round eyes.', 'barn owl, which has a hooked beak.']}
    """
    if not questions:
        raise PoolError("there are no questions: give some classes")
    answers = ask_all(settings, (question.text for question in questions), cache, policy)
    lines_of: dict[str, list[str]] = {question.class_name: [] for question in questions}
    dropped: Counter[str] = Counter()
    for question in questions:
        if (reply := answers.replies.get(question.text)) is None:
            continue
        cleaned = clean_reply(reply.text, cut_off=reply.cut_off)
        dropped += cleaned.dropped
        lines_of[question.class_name] += _fit_to_class(question, cleaned.sentences, dropped)
    sentences = {name: _first(lines, per_class, dropped) for name, lines in lines_of.items()}
    return Generated(
        sentences={name: lines for name, lines in sentences.items() if lines},
        missing=tuple(name for name, lines in sentences.items() if not lines),
        answers=answers,
        dropped=dropped,
    )


def _fit_to_class(question: Question, lines: list[str], dropped: Counter[str]) -> list[str]:
    if question.kind == "dclip":
        return [_sentence(question.class_name, line) for line in lines]
    if question.rival is None:
        return lines
    # "Unlike a basset hound, …" draws an encoder towards the basset hound, and so do "basset hounds".
    finder = NameFinder([question.class_name, question.rival], plurals=True)
    rival = name_key(question.rival)
    about_class = [line for line in lines if rival not in map(name_key, finder.named(line))]
    if others := len(lines) - len(about_class):
        dropped["names the other class"] += others
    return about_class


def _sentence(class_name: str, feature: str) -> str:
    words = _HAS.sub("", feature, count=1).rstrip(" .")
    does = _DOES.fullmatch(words)
    what = does[1] if does else f"has {words}"
    return f"{fill('{}', class_name)}, which {what}."


def _first(lines: list[str], limit: int | None, dropped: Counter[str]) -> list[str]:
    unique = distinct(lines)
    if repeated := len(lines) - len(unique):
        dropped["repeated"] += repeated
    if limit is not None and len(unique) > limit:
        dropped["more than asked for"] += len(unique) - limit
    return unique[:limit]
