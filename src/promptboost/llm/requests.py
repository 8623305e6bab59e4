"""Many questions at once, with patience and within a budget."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field

from promptboost.errors import SettingError
from promptboost.llm.client import (
    AskError,
    LanguageModel,
    ModelSettings,
    RefusedError,
    Reply,
    TemporaryError,
    UnreachableError,
    most_tokens,
    open_model,
)
from promptboost.llm.replies import ReplyCache
from promptboost.progress import Progress, no_progress, stage


@dataclass(frozen=True)
class Budget:
    """The most that may be spent, failed requests and tokens of both sides included; None is no limit."""

    requests: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens"):
            most = getattr(self, name)
            if most is not None and most < 0:
                raise SettingError(f"the budget of {name} is {most}, but must be 0 or more")


# So many failures in a row are no accident, and the rest would only be more of them.
_FAILURES_IN_A_ROW = 5
# Limits are often for a minute. With these many attempts more, the waits add up to that.
_MORE_WHEN_CROWDED = 2
# Shorter waits are not worth a line.
_SAY_FROM_SECONDS = 5.0


@dataclass(frozen=True)
class Retries:
    """How often and how soon a question is asked again."""

    attempts: int = 6  # most times a question is sent
    first_delay: float = 1.0  # seconds; each further wait is twice as long
    longest_delay: float = 120.0  # a server that asks for more is not waited for

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures; spread, so that threads do not march.

        Examples
        --------
        >>> 2.0 <= Retries().delay(3) <= 4.0
        True
        """
        full = min(self.longest_delay, self.first_delay * 2.0 ** (failures - 1))
        return float(full) * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Manner:
    """How questions are asked."""

    budget: Budget = field(default_factory=Budget)  # for now; replies in the cache cost nothing
    workers: int = 8  # questions under way at the same time
    retries: Retries = field(default_factory=Retries)
    progress: Progress = no_progress
    say: Callable[[str], None] = lambda _: None  # called with a line for people

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers is {self.workers}, but must be 1 or more")


@dataclass
class Answers:
    """What came of asking."""

    replies: dict[str, Reply]  # by question, in the order asked
    cached: int  # how many of them were there before
    requests: int = 0  # what was spent now
    tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # questions without a reply, and why
    stopped: str | None = None  # why not all were asked
    exhausted: bool = False  # whether it was the budget


def ask_all(
    settings: ModelSettings,
    questions: Iterable[str],
    cache: ReplyCache,
    manner: Manner | None = None,
    model: LanguageModel | None = None,
) -> Answers:
    """Ask every question that has no reply in the cache yet.

    Each reply is in the cache as soon as it is there. Whatever ends the asking, be it the budget, a
    server that is gone or the user, the next call asks only the rest. With nothing left to ask, or
    a budget of no requests, no client is made and no key needed. Without a `model`, the client that
    `settings` describe answers.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> class Echo:
    ...     def ask(self, question):
    ...         return Reply(question.upper(), 1, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ReplyCache(pathlib.Path(folder, "replies.jsonl"))
    ...     answers = ask_all(ModelSettings("echo"), ["a", "b", "a"], cache, model=Echo())
    >>> {question: reply.text for question, reply in answers.replies.items()}, answers.requests
    ({'a': 'A', 'b': 'B'}, 2)
    """
    manner = manner or Manner()
    wanted = list(dict.fromkeys(questions))
    missing = [question for question in wanted if cache.find(settings, question) is None]
    answers = Answers({}, cached=len(wanted) - len(missing))
    if missing and manner.budget.requests == 0:
        answers.stopped, answers.exhausted = "no request is allowed", True
    elif missing:
        with open_model(settings) if model is None else nullcontext(model) as opened:
            asker = _Asker(opened, settings, cache, manner)
            asker.run(missing)
        asker.report(answers)
    pairs = ((question, cache.find(settings, question)) for question in wanted)
    answers.replies = {question: reply for question, reply in pairs if reply is not None}
    return answers


class _Asker:
    """Threads that ask, and what they share."""

    def __init__(
        self, model: LanguageModel, settings: ModelSettings, cache: ReplyCache, manner: Manner
    ) -> None:
        self.model, self.settings, self.cache, self.manner = model, settings, cache, manner
        self.purse = Purse(manner.budget)
        self.stop = threading.Event()
        self.failed: dict[str, str] = {}
        self.stopped: str | None = None
        self._answered = False
        self._unreachable: str | None = None  # why a request did not get there
        self._resume_at = 0.0
        self._lock = threading.Lock()

    def run(self, questions: Sequence[str]) -> None:
        with ThreadPoolExecutor(self.manner.workers, "promptboost-ask") as threads:
            asked = {threads.submit(self._ask, question): question for question in questions}
            try:
                self._watch(asked)
            except BaseException:
                self._halt()
                # Their replies are paid for, and kept when they come.
                self.manner.say("waiting for the answers under way …")
                raise

    def report(self, answers: Answers) -> None:
        answers.requests, answers.tokens = self.purse.requests, self.purse.tokens
        answers.failed = self.failed
        if self.purse.empty and not self._answered:
            # Of all the requests none got there: the server is the reason, not the budget.
            self.stopped = self.stopped or self._unreachable
        answers.stopped = self.stopped or self.purse.empty
        answers.exhausted = self.stopped is None and self.purse.empty is not None

    def _watch(self, asked: dict[Future[bool], str]) -> None:
        in_a_row = 0
        with stage(self.manner.progress, "asking", len(asked)) as advance:
            for future in as_completed(asked):
                try:
                    answered = future.result()
                    advance(answered)
                    in_a_row = 0 if answered else in_a_row
                except RefusedError as error:
                    self._end(asked[future], error)
                except AskError as error:
                    self.failed[asked[future]] = str(error)
                    in_a_row += 1
                    if in_a_row >= _FAILURES_IN_A_ROW:
                        self._end(asked[future], error)

    def _end(self, question: str, error: AskError) -> None:
        self.failed[question] = str(error)
        self.stopped = self.stopped or str(error)
        self._halt()

    def _halt(self) -> None:
        self.stop.set()
        self.purse.close()

    def _ask(self, question: str) -> bool:
        """Ask until there is a reply; False if asking was stopped before."""
        retries = self.manner.retries
        cost = most_tokens(question) + self.settings.reply_tokens
        failures = 0
        while self._may_ask() and self.purse.take(cost):
            try:
                self._ask_once(question, cost)
                return True
            except TemporaryError as error:
                failures += 1
                if isinstance(error, UnreachableError):
                    self._unreachable = str(error)
                else:
                    self._answered = True
                if failures >= retries.attempts + _MORE_WHEN_CROWDED * error.crowded:
                    raise
                self._wait(error, failures)
        return False

    def _ask_once(self, question: str, cost: int) -> None:
        used = 0
        try:
            reply = self.model.ask(question)
            used, self._answered = reply.tokens, True
            self.cache.keep(self.settings, question, reply)
        finally:
            self.purse.settle(cost, used)

    def _may_ask(self) -> bool:
        """Wait while the server wants no requests; False if asking was stopped."""
        while (rest := self._resume_at - time.monotonic()) > 0:
            if self.stop.wait(rest):
                break
        return not self.stop.is_set()

    def _wait(self, error: TemporaryError, failures: int) -> None:
        asked_for = error.retry_after or 0.0
        delay = self.manner.retries.delay(failures)
        if asked_for > self.manner.retries.longest_delay:
            raise RefusedError(f"{error}; it asks to wait {asked_for:,.0f} seconds") from error
        if asked_for or error.crowded:
            # One rate limit holds for all threads, this one too.
            self._pause(asked_for or delay, str(error))
        self.stop.wait(delay)

    def _pause(self, seconds: float, reason: str) -> None:
        with self._lock:
            before = max(self._resume_at, time.monotonic())
            self._resume_at = max(before, time.monotonic() + seconds)
            longer = self._resume_at - before
        if longer >= _SAY_FROM_SECONDS:
            self.manner.say(f"{reason}; waiting {seconds:.0f} seconds")


class Purse:
    """What is left of a budget, shared by threads.

    Before a request, the most it can cost is set aside; after it, what it did cost is taken. So the
    tokens never go over the budget, as long as the server keeps to the limit of a reply.
    """

    def __init__(self, budget: Budget) -> None:
        self.requests = 0
        self.tokens = 0
        self.empty: str | None = None
        self._budget = budget
        self._aside = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, cost: int) -> bool:
        """Set aside what a request may cost; False if the budget does not allow it.

        Waits while requests under way may leave enough over.
        """
        most = self._budget
        with self._changed:
            while self.empty is None and not self._closed:
                if most.requests is not None and self.requests >= most.requests:
                    self._end(f"the budget of {most.requests:,} requests is used up")
                elif most.tokens is None or self.tokens + self._aside + cost <= most.tokens:
                    self.requests += 1
                    self._aside += cost
                    return True
                elif self._aside == 0:
                    self._end(
                        f"the budget of {most.tokens:,} tokens is used up: {self.tokens:,} used, "
                        f"and a reply may need {cost:,}"
                    )
                else:
                    self._changed.wait()
            return False

    def settle(self, cost: int, used: int) -> None:
        """Take what a request did cost instead of what was set aside."""
        with self._changed:
            self._aside -= cost
            self.tokens += used
            self._changed.notify_all()

    def close(self) -> None:
        """Return nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _end(self, reason: str) -> None:
        self.empty = reason
        self._changed.notify_all()
