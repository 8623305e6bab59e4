"""Ask a language model many questions within a budget, and make a pool of the sentences."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from promptboost.errors import PoolError, few
from promptboost.llm.client import AskError, BudgetError, Client, ModelSettings, RefusedError, Reply
from promptboost.llm.questions import Question
from promptboost.llm.replies import NOTHING_YET, ReplyCache, clean_reply
from promptboost.pool.templates import fill
from promptboost.pool.text import NameFinder, distinct
from promptboost.progress import Progress, no_progress, stage

# The question requests what follows "it has", but some models repeat those words or choose others.
_HAS = re.compile(r"(?:it |they )?(?:has|have) ", re.IGNORECASE)
_DOES = re.compile(
    r"(?:it |they )?"
    r"((?:is|are|can|may|often|usually|typically|generally|sometimes|looks?|appears?) .*)",
    re.IGNORECASE,
)
# After this many failures in a row the remaining questions would fail as well.
_MAX_FAILURES_IN_A_ROW = 5


class Budget:
    """Limits of HTTP requests and tokens, None for no limit, and what is used of them.

    Tokens are known after a reply only, so pending requests may exceed their limit.
    """

    def __init__(self, max_requests: int | None = None, max_tokens: int | None = None) -> None:
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests = self.tokens = 0
        self._closed = False
        self._lock = threading.Lock()

    @property
    def exhausted(self) -> str | None:
        """Why no further request is allowed; None if one is."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            return f"the budget of {self.max_requests:,} requests is used up"
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            return f"the budget of {self.max_tokens:,} tokens is used up"
        return None

    def count_request(self) -> None:
        """Count an HTTP request, a retry as well; raise a BudgetError if none is left. Thread-safe."""
        with self._lock:
            if self._closed or self.exhausted:
                raise BudgetError(self.exhausted or "stopped")
            self.requests += 1

    def count_tokens(self, reply: Reply) -> None:
        """Count the tokens of a question and its reply. Thread-safe."""
        with self._lock:
            self.tokens += reply.input_tokens + reply.output_tokens

    def close(self) -> None:
        """Allow no further requests."""
        self._closed = True


@dataclass
class Answers:
    """Replies, what they cost, and what is missing."""

    replies: dict[str, Reply]  # by question, in the given order
    cached: int  # number of replies from the cache
    requests: int = 0  # sent now
    tokens: int = 0  # used now
    failed: dict[str, str] = field(default_factory=dict)  # reasons, by question
    stopped: str | None = None  # why some questions were not sent
    exhausted: bool = False  # whether the budget was the reason


def ask_all(
    settings: ModelSettings,
    questions: Iterable[str],
    cache: ReplyCache,
    *,
    images: Mapping[str, Sequence[str]] | None = None,
    budget: Budget | None = None,
    workers: int = 8,
    progress: Progress = no_progress,
    notify: Callable[[str], None] = lambda _: None,
) -> Answers:
    """Ask every question whose reply is not in the cache.

    Each reply is cached as soon as it arrives, so the next call resumes after a used-up budget, a server
    failure or an interruption. No key is needed if all replies are cached or no request is allowed.
    Up to `workers` requests are sent in parallel; `notify` is called with messages for the user.
    `images` has the images to send with a question, as data URLs.
    """
    budget, questions = budget or Budget(), list(dict.fromkeys(questions))

    def images_of(question: str) -> Sequence[str]:
        return (images or {}).get(question, ())

    def find(question: str) -> Reply | None:
        return cache.find(settings, question, images_of(question))

    missing = [question for question in questions if find(question) is None]
    answers = Answers({}, cached=len(questions) - len(missing))
    if missing and not budget.exhausted:
        failures_in_a_row = 0
        with (
            Client(settings, budget.count_request) as client,
            stage(progress, "asking", len(missing)) as advance,
            ThreadPoolExecutor(workers, "promptboost-ask") as threads,
        ):

            def ask(question: str) -> Reply:
                reply = client.ask(question, images_of(question))
                budget.count_tokens(reply)
                cache.add(settings, question, reply, images_of(question))
                return reply

            futures = {threads.submit(ask, question): question for question in missing}
            try:
                for future in as_completed(futures):
                    try:
                        future.result()
                        failures_in_a_row = 0
                        advance()
                    except BudgetError:  # also after the budget was closed below
                        continue
                    except AskError as error:
                        answers.failed[futures[future]] = str(error)
                        failures_in_a_row += 1
                        refused = isinstance(error, RefusedError)
                        if refused or failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
                            answers.stopped = answers.stopped or str(error)
                            budget.close()
            except BaseException:
                budget.close()
                # Replies to pending requests are paid for, so they are cached as well.
                notify("waiting for pending replies …")
                raise
    answers.requests, answers.tokens = budget.requests, budget.tokens
    replies = {question: find(question) for question in questions}
    answers.replies = {question: reply for question, reply in replies.items() if reply}
    answered = len(answers.replies) + len(answers.failed)
    if answered < len(questions) and answers.stopped is None:
        answers.stopped, answers.exhausted = budget.exhausted, True
    return answers


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
    are used; the other `options` are those of :func:`ask_all`.
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
