"""LLMbo (Liu et al., 2024): a language model searches for the template that classifies best."""

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError, PoolError, SettingError
from promptboost.io import cache_folder
from promptboost.llm.client import AskError, Client, ModelSettings, Reply
from promptboost.llm.generation import Budget, ask_all
from promptboost.llm.replies import ReplyCache, clean_reply
from promptboost.methods.base import FewShotSet, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool import PromptPool, fill
from promptboost.pool.templates import LITERAL, check_templates
from promptboost.pool.text import text_key

# Most requests for one proposal, if the replies hold no template.
_ATTEMPTS = 15

Score = Callable[[str], float]


@dataclass(frozen=True)
class LLMbo(Method):
    """One template for all classes, proposed by a language model that sees the best and the worst.

    The score of a template is its accuracy on the few labeled images; ties go to the first template.

    Re-implemented, with a prompt in our own words. The authors start from templates drawn from a
    million captions; here they are drawn from those of the pool, so with `initial` as large as the pool
    all restarts start alike. Restarts are a setting. Repeated templates count once.
    """

    name: ClassVar[str] = "llmbo"
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    model: str = ""  # name of the language model on its server. Required.
    # URL of the server, such as ``http://localhost:8000/v1``. If empty, OPENAI_BASE_URL or
    # ANTHROPIC_BASE_URL, otherwise the provider's server.
    base_url: str = ""
    # Protocol of the server; most others are compatible with OpenAI. The key is read from
    # OPENAI_API_KEY or ANTHROPIC_API_KEY.
    provider: str = "openai"
    temperature: float | None = 1.0  # None for the server's default; some models accept no other
    iterations: int = 10  # number of proposals per restart
    # Number of best and of worst templates in a prompt, and of templates per proposal
    k: int = 3
    n: int = 1
    # Number of restarts, and of initial templates in each
    restarts: int = 1
    initial: int = 80
    # JSON Lines file that caches every reply, so that a repeated run needs no server. If empty, a
    # file in the cache folder.
    replies: str = ""
    # Limit of requests per fit, retries included; 0 uses cached replies only
    max_requests: int | None = None
    seed: int = 0  # seed for the choice and order of the initial templates

    def __post_init__(self) -> None:
        counts = ("iterations", "k", "n", "restarts", "initial")
        check_numbers(self, counts=counts, from_zero=("max_requests",))
        if self.provider not in ("openai", "anthropic"):
            raise SettingError(f"provider must be openai or anthropic, not {self.provider!r}")

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Raise an error unless there are a model, templates and images."""
        if not self.model.strip():
            raise SettingError(
                "llmbo needs the name of a language model. Type "
                "llmbo?model=NAME with the key in OPENAI_API_KEY, or "
                "llmbo?model=NAME&base_url=http://localhost:8000/v1 for a server on this machine; "
                "for Anthropic's models add &provider=anthropic, with the key in ANTHROPIC_API_KEY"
            )
        if not pool.templates:
            raise SettingError("llmbo starts from the pool's templates, and the pool has none")
        if len(shots.labels) == 0:
            raise LabelError(
                "llmbo scores templates by images, and there is none; give at least one"
            )
        if self.max_requests != 0:
            check_server(self._model)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search for the template with the best score."""
        self.check(shots, pool, encoder)
        rows = shots.images.rows(encoder)

        def score(template: str) -> float:
            """Return the accuracy on the labeled images."""
            texts = encoder.encode_texts([fill(template, name) for name in shots.class_names])
            return float(np.mean((rows @ texts.T).argmax(axis=1) == shots.labels))

        replies = Path(self.replies or cache_folder() / "replies" / "llmbo.jsonl").expanduser()
        searches: list[_Search] = []
        conversation = Conversation(self._model, replies, self.max_requests)
        for restart in range(self.restarts):
            rng = np.random.default_rng([self.seed, restart])
            chosen = rng.permutation(len(pool.templates))[: self.initial]
            initial = [pool.templates[i].replace(LITERAL, "{}") for i in chosen]
            search = _Search(f"seed {self.seed}, restart {restart}", score, initial)
            search.run(conversation, self.iterations, self.k, self.n)
            searches.append(search)
        if not any(search.proposed for search in searches):
            reply = " ".join(searches[-1].last_invalid.split())[:80]
            raise PoolError(
                f"llmbo: none of {self.model!r}'s {sum(s.invalid for s in searches)} replies had a "
                "template in it, a line such as '- a photo of a {}.'. The last one began: "
                f"{reply!r}. Try another model"
            )
        template, _ = max((search.best for search in searches), key=itemgetter(1))
        details = {"template": template, "restarts": [search.record() for search in searches]}
        banks = filled([template], shots.class_names)
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    @property
    def _model(self) -> ModelSettings:
        return ModelSettings(
            self.model,
            provider=self.provider,  # type: ignore[arg-type]  # checked in __post_init__
            base_url=self.base_url or None,
            temperature=self.temperature,
        )


@dataclass
class _Search:
    """One restart: templates and their scores, in the order of their first appearance."""

    name: str
    score: Score
    initial: Sequence[str]
    scores: dict[str, float] = field(default_factory=dict)
    proposed: list[dict[str, Any]] = field(default_factory=list)
    invalid: int = 0
    last_invalid: str = ""

    def run(self, conversation: "Conversation", iterations: int, k: int, n: int) -> None:
        for template in self.initial:
            self._add(template)
        for _ in range(iterations):
            ranked = sorted(self.scores, key=self.scores.__getitem__, reverse=True)  # stable
            # Few templates appear on one side only.
            good, bad = ranked[:k], ranked[max(k, len(ranked) - k) :]
            for template in self._propose(conversation, message(good, bad, n), n):
                self.proposed.append({"template": template, "score": self._add(template)})

    @property
    def best(self) -> tuple[str, float]:
        """Best template and its score; the first one in a tie."""
        return max(self.scores.items(), key=itemgetter(1))

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable summary."""
        template, score = self.best
        return {
            "best": template,
            "score": score,
            "initial_score": max(map(self.scores.__getitem__, self.initial)),
            "proposed": self.proposed,
            "invalid_replies": self.invalid,
        }

    def _propose(self, conversation: "Conversation", text: str, n: int) -> list[str]:
        """Repeat the request until a reply holds templates; return no templates if none does."""
        for _ in range(_ATTEMPTS):
            reply = conversation.ask(text, self.name)
            templates = read_templates(reply.text, n, cut_off=reply.cut_off)
            if templates is not None:
                return templates
            self.invalid += 1
            self.last_invalid = reply.text
        return []

    def _add(self, template: str) -> float:
        """Return the score of a template, computed unless it is known in another spelling."""
        key = text_key(template)
        same = next((text for text in self.scores if text_key(text) == key), template)
        if same not in self.scores:
            self.scores[same] = self.score(same)
        return self.scores[same]


#: Prefix of every template in a prompt or a reply.
BULLET = "- "

_MESSAGE = """\
A model looks at a picture and picks the sentence that fits it best. The sentences are all made from \
one template: the name of each kind of thing is put where the template has {{}}. Which template is \
used decides how often the model is right.

With these templates it is right most often:
{good}

With these templates it is wrong most often:
{bad}

Find out what the first ones have in common that the others lack. Then write {count} new \
{templates} with which the model is right more often than with any of them. Keep to the form of the \
first ones, use {{}} exactly once, and use fewer than 15 words. Answer with nothing but \
{templates}, each on a line of its own that begins with "{bullet}"."""


def message(good: Sequence[str], bad: Sequence[str], count: int) -> str:
    """Return a prompt that asks for better templates than the best and the worst so far."""
    return _MESSAGE.format(
        good="\n".join(BULLET + template for template in good),
        bad="\n".join(BULLET + template for template in bad),
        count=count,
        templates="template" if count == 1 else "templates",
        bullet=BULLET,
    )


def read_templates(reply: str, most: int, *, cut_off: bool = False) -> list[str] | None:
    """Return at most `most` templates of a reply, or None if the reply is invalid.

    Replies are cleaned as for a pool. The rule is the authors': templates are the lines that start with
    a dash, and a single one without exactly one ``{}`` makes the reply invalid. The last line of a reply
    that is `cut_off` is ignored.
    """
    lines = reply.splitlines()[: -1 if cut_off else None]
    # Reasoning may hold such lines, too; it is removed only from the whole reply.
    sentences = set(clean_reply("\n".join(lines)).sentences)
    templates = [
        sentence
        for line in lines
        if line.startswith(BULLET)
        for sentence in clean_reply(line).sentences
        if sentence in sentences
    ]
    try:
        return [_checked(template) for template in templates][:most] or None
    except PoolError:
        return None


def _checked(template: str) -> str:
    (template,) = check_templates([template])
    if set("{}") & set(template.replace("{}", "")):
        raise PoolError(f"{template!r} has braces of another kind")
    return template


def check_server(settings: ModelSettings) -> None:
    """Raise a SettingError if the key is missing or no local server is running; send no question."""
    try:
        with Client(settings):
            url = urlsplit(settings.address or "")
    except SettingError as error:
        raise SettingError(
            f"llmbo cannot ask {settings.model!r}: {error} "
            f"(llmbo?model={settings.model}&base_url=http://localhost:8000/v1)"
        ) from error
    # Other servers may be behind a proxy.
    if url.hostname in ("localhost", "127.0.0.1", "::1"):
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            socket.create_connection((url.hostname, port), timeout=5.0).close()
        except OSError as error:
            raise SettingError(
                f"llmbo: nothing answers at {settings.address} ({error.strerror or error}); start the "
                "server, or give the base_url of another one"
            ) from error


class Conversation:
    """Ask one question after another; replies are cached, so that a run can be repeated or resumed.

    Models sample their words, so the same prompt sent twice should get two replies. The cache therefore
    distinguishes them by the run and by how often the prompt was sent in it.
    """

    def __init__(self, settings: ModelSettings, replies: Path, max_requests: int | None) -> None:
        replies.absolute().parent.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._cache = ReplyCache(replies)
        self._budget = Budget(max_requests)
        self._times: Counter[tuple[str, str]] = Counter()

    def ask(self, message: str, run: str) -> Reply:
        """Return the reply to a prompt; raise an AskError if there is none."""
        self._times[message, run] += 1
        sample = f"{run}, time {self._times[message, run]}"
        settings = replace(self._settings, sample=sample)
        answers = ask_all(settings, [message], self._cache, budget=self._budget)
        if message in answers.replies:
            return answers.replies[message]
        reason = answers.failed.get(message) or answers.stopped
        if answers.exhausted:
            reason = f"max_requests={self._budget.max_requests} allows no more"
        raise AskError(
            f"llmbo got no reply from {settings.model!r}: {reason}. Replies so far are in "
            f"{self._cache.path}; the same command resumes"
        )
