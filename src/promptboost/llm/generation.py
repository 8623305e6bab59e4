"""A pool of sentences from a language model: what it would take, and what came of it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from promptboost.errors import PoolError, SettingError
from promptboost.llm.client import LanguageModel, ModelSettings, about_tokens
from promptboost.llm.questions import Question
from promptboost.llm.replies import ReplyCache, clean_reply
from promptboost.llm.requests import Answers, Manner, ask_all
from promptboost.pool.templates import fill
from promptboost.pool.text import NameFinder, distinct, name_key

# The question asked for what follows "it has"; some models say those words all the same, or others.
_HAS = re.compile(r"(?:it |they )?(?:has|have) ", re.IGNORECASE)
_DOES = re.compile(
    r"(?:it |they )?"
    r"((?:is|are|can|may|often|usually|typically|generally|sometimes|looks?|appears?) .*)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Price:
    """What a million tokens costs, of questions and of replies, in any currency."""

    input: float
    output: float

    def __post_init__(self) -> None:
        if not (0 <= self.input < float("inf") and 0 <= self.output < float("inf")):
            raise SettingError(
                f"the price is {self.input} and {self.output}, but must be 0 or more"
            )


@dataclass(frozen=True)
class Plan:
    """What asking would take if nothing fails; tokens are estimates."""

    questions: tuple[Question, ...]
    cached: int  # questions that have a reply already
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float | None = None  # in the currency of the price; None without one


@dataclass(frozen=True)
class Generated:
    """What came of asking."""

    sentences: dict[str, list[str]]  # by class, in the order of the questions
    missing: tuple[str, ...]  # classes without a sentence
    answers: Answers
    dropped: Counter[str]  # lines of replies that were left out, by reason


def plan(
    questions: Sequence[Question],
    settings: ModelSettings,
    cache: ReplyCache,
    price: Price | None = None,
) -> Plan:
    """Return what asking would take; nothing is sent."""
    asked = {question.text: question.answer_tokens for question in questions}
    open_ones = {text: size for text, size in asked.items() if cache.find(settings, text) is None}
    tokens_in = sum(map(about_tokens, open_ones))
    tokens_out = sum(min(size, settings.reply_tokens) for size in open_ones.values())
    cost = None
    if price is not None:
        cost = (tokens_in * price.input + tokens_out * price.output) / 1e6
    cached = len(asked) - len(open_ones)
    return Plan(tuple(questions), cached, len(open_ones), tokens_in, tokens_out, cost)


def generate_pool(
    questions: Sequence[Question],
    settings: ModelSettings,
    cache: ReplyCache,
    *,
    per_class: int | None = None,
    manner: Manner | None = None,
    model: LanguageModel | None = None,
) -> Generated:
    r"""Ask the questions and sort the answers by class.

    At most `per_class` sentences of a class are kept. The same replies always give the same
    sentences, whatever order they came in. See :func:`~promptboost.llm.ask_all` for the rest.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from promptboost.llm.client import Reply
    >>> from promptboost.llm.questions import questions_for
    >>> class Model:
    ...     def ask(self, question):
    ...         return Reply("1. round eyes\n2. a hooked beak", 40, 12)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ReplyCache(pathlib.Path(folder, "replies.jsonl"))
    ...     asked = questions_for(["barn_owl"], "dclip", 2)
    ...     generate_pool(asked, ModelSettings("a-model"), cache, model=Model()).sentences
    {'barn_owl': ['barn owl, which has round eyes.', 'barn owl, which has a hooked beak.']}
    """
    if not questions:
        raise PoolError("there is nothing to ask: give some classes")
    answers = ask_all(settings, (question.text for question in questions), cache, manner, model)
    lines_of: dict[str, list[str]] = {question.class_name: [] for question in questions}
    dropped: Counter[str] = Counter()
    for question in questions:
        if (reply := answers.replies.get(question.text)) is None:
            continue
        cleaned = clean_reply(reply.text, cut_off=reply.cut_off)
        dropped += cleaned.dropped
        lines_of[question.class_name] += _about(question, cleaned.sentences, dropped)
    kept = {name: _first(lines, per_class, dropped) for name, lines in lines_of.items()}
    return Generated(
        sentences={name: lines for name, lines in kept.items() if lines},
        missing=tuple(name for name, lines in kept.items() if not lines),
        answers=answers,
        dropped=dropped,
    )


def _about(question: Question, lines: list[str], dropped: Counter[str]) -> list[str]:
    """Make an answer fit its class."""
    if question.kind == "dclip":
        return [_sentence(question.class_name, line) for line in lines]
    if question.rival is None:
        return lines
    # "Unlike a basset hound, …" draws an encoder towards the basset hound, and so do "basset hounds".
    finder = NameFinder([question.class_name, question.rival], plurals=True)
    rival = name_key(question.rival)
    kept = [line for line in lines if rival not in map(name_key, finder.named(line))]
    if others := len(lines) - len(kept):
        dropped["names the other class"] += others
    return kept


def _sentence(class_name: str, feature: str) -> str:
    words = _HAS.sub("", feature, count=1).rstrip(" .")
    does = _DOES.fullmatch(words)
    what = does[1] if does else f"has {words}"
    return f"{fill('{}', class_name)}, which {what}."


def _first(lines: list[str], most: int | None, dropped: Counter[str]) -> list[str]:
    kept = distinct(lines)
    if repeated := len(lines) - len(kept):
        dropped["repeated"] += repeated
    if most is not None and len(kept) > most:
        dropped["more than asked for"] += len(kept) - most
        kept = kept[:most]
    return kept
