"""Many questions in parallel, within a budget."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from promptboost.llm.client import AskError, BudgetError, Client, ModelSettings, RefusedError, Reply
from promptboost.llm.replies import ReplyCache
from promptboost.progress import Progress, no_progress, stage

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
