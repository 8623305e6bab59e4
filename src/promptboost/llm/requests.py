"""Many questions in parallel, within a budget."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from promptboost.errors import SettingError
from promptboost.llm.client import AskError, BudgetError, Client, ModelSettings, RefusedError, Reply
from promptboost.llm.replies import ReplyCache
from promptboost.progress import Progress, no_progress, stage

# After this many failures in a row the remaining questions would fail as well.
_MAX_FAILURES_IN_A_ROW = 5


class Budget:
    """Limits of HTTP requests and tokens, None for no limit, and what is used of them.

    Examples
    --------
    >>> budget = Budget(max_requests=1)
    >>> budget.count_request()
    >>> budget.allows(100), budget.exhausted
    (False, 'the budget of 1 requests is used up')
    """

    def __init__(self, max_requests: int | None = None, max_tokens: int | None = None) -> None:
        for name, limit in (("requests", max_requests), ("tokens", max_tokens)):
            if limit is not None and limit < 0:
                raise SettingError(f"the budget of {name} is {limit}, but must be 0 or more")
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests = self.tokens = 0
        self.exhausted: str | None = None  # the reason
        self._closed = False
        self._lock = threading.Lock()

    def count_request(self) -> None:
        """Count an HTTP request, a retry as well; raise a BudgetError if none is left. Thread-safe."""
        with self._lock:
            if self._closed or not self.allows():
                raise BudgetError(self.exhausted or "stopped")
            self.requests += 1

    def allows(self, tokens: int = 0, reserved: int = 0) -> bool:
        """Return whether a further request may use `tokens` while others have reserved some."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            self.exhausted = f"the budget of {self.max_requests:,} requests is used up"
        elif self.max_tokens is not None and self.tokens + reserved + tokens > self.max_tokens:
            if not reserved:
                self.exhausted = (
                    f"the budget of {self.max_tokens:,} tokens is used up: {self.tokens:,} used, "
                    f"and a reply may need {tokens:,}"
                )
            return False
        return self.exhausted is None

    def close(self) -> None:
        """Allow no further requests."""
        self._closed = True


@dataclass(frozen=True)
class RequestPolicy:
    """Budget, number of parallel requests, and callbacks."""

    budget: Budget = field(default_factory=Budget)  # cached replies are free
    workers: int = 8  # number of parallel requests
    progress: Progress = no_progress
    notify: Callable[[str], None] = lambda _: None  # called with messages for the user

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError(f"workers is {self.workers}, but must be 1 or more")


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
    policy: RequestPolicy | None = None,
) -> Answers:
    """Ask every question whose reply is not in the cache.

    Each reply is cached as soon as it arrives, so the next call resumes after a used-up budget, a server
    failure or an interruption. No key is needed if all replies are cached or no request is allowed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> settings, offline = ModelSettings("a-model"), RequestPolicy(Budget(max_requests=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ReplyCache(pathlib.Path(folder, "replies.jsonl"))
    ...     cache.add(settings, "a", Reply("A", 1, 1))
    ...     answers = ask_all(settings, ["a", "b"], cache, offline)
    >>> list(answers.replies), answers.stopped
    (['a'], 'the budget of 0 requests is used up')
    """
    policy = policy or RequestPolicy()
    budget, questions = policy.budget, list(dict.fromkeys(questions))
    missing = [question for question in questions if cache.find(settings, question) is None]
    answers = Answers({}, cached=len(questions) - len(missing))
    if missing and budget.allows():
        with Client(settings, budget.count_request) as client:
            _ask_missing(client, missing, cache, policy, answers)
    answers.requests, answers.tokens = budget.requests, budget.tokens
    if missing and answers.stopped is None and budget.exhausted:
        answers.stopped, answers.exhausted = budget.exhausted, True
    replies = {question: cache.find(settings, question) for question in questions}
    answers.replies = {question: reply for question, reply in replies.items() if reply}
    return answers


def _ask_missing(
    client: Client,
    questions: Sequence[str],
    cache: ReplyCache,
    policy: RequestPolicy,
    answers: Answers,
) -> None:
    budget, failures_in_a_row = policy.budget, 0
    waiting, pending = deque(questions), dict[Future[Reply], str]()

    def ask(question: str) -> Reply:
        reply = client.ask(question)
        cache.add(client.settings, question, reply)
        return reply

    def most_tokens(question: str) -> int:
        # A token has at least one byte; the message format adds a few.
        return len(question.encode("utf-8", "replace")) + 32 + client.settings.reply_tokens

    def may_start() -> bool:
        # Reserving the most tokens of a reply keeps the limit if the server respects its length.
        reserved = sum(map(most_tokens, pending.values()))
        if not waiting or len(pending) == policy.workers or answers.stopped:
            return False
        return budget.allows(most_tokens(waiting[0]), reserved)

    with (
        ThreadPoolExecutor(policy.workers, "promptboost-ask") as threads,
        stage(policy.progress, "asking", len(questions)) as advance,
    ):
        try:
            while may_start() or pending:
                while may_start():
                    question = waiting.popleft()
                    pending[threads.submit(ask, question)] = question
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    question = pending.pop(future)
                    try:
                        reply = future.result()
                        budget.tokens += reply.input_tokens + reply.output_tokens
                        failures_in_a_row = 0
                        advance()
                    except BudgetError as error:
                        # It may also name a failure of the last request.
                        budget.exhausted = budget.exhausted and str(error)
                    except AskError as error:
                        answers.failed[question] = str(error)
                        failures_in_a_row += 1
                        refused = isinstance(error, RefusedError)
                        if refused or failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
                            answers.stopped = answers.stopped or str(error)
                            budget.close()
        except BaseException:
            budget.close()
            # Replies to pending requests are paid for, so they are cached as well.
            policy.notify("waiting for pending replies …")
            raise
