"""LLMbo (Liu et al., 2024): a language model looks for the one template that classifies best.

First the method, then what it says to a language model, how replies are read, and where they are kept.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError, PoolError, SettingError
from promptboost.io import cache_folder
from promptboost.llm import (
    Budget,
    LanguageModel,
    Manner,
    ModelSettings,
    Reply,
    ReplyCache,
    ask_all,
    open_model,
)
from promptboost.llm.client import AskError
from promptboost.llm.replies import clean_reply
from promptboost.methods.base import FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.pool import PromptPool, fill
from promptboost.pool.templates import check_templates
from promptboost.pool.text import text_key

# A reply that cannot be used is asked for again, so many times in all.
_ATTEMPTS = 15

Score = Callable[[str], float]


@dataclass(frozen=True)
class LLMbo(Method):
    """One template for all classes, proposed by a language model that sees the best and the worst.

    A template's score is the share of the few images that it classifies rightly. Of templates with
    the same score the one found first wins. The scores of other images are never looked at.

    Re-implemented, with a message in our own words. The authors begin with templates drawn from a
    million captions; here they are drawn from the pool's, so with `initial` as large as the pool all
    restarts begin alike. Restarts are a setting. Templates that the model repeats count once.

    Parameters
    ----------
    model : str
        Name of the language model, as its server knows it. Must be given.
    base_url : str
        Server to ask, such as ``http://localhost:8000/v1``. Empty for the provider's own, or what
        OPENAI_BASE_URL or ANTHROPIC_BASE_URL says.
    provider : {"openai", "anthropic"}
        Protocol of the server; most others speak OpenAI's. The key is read from OPENAI_API_KEY or
        ANTHROPIC_API_KEY; a server on this machine needs none.
    temperature : float or None
        None leaves it to the server: some models take none.
    iterations : int
        How often the model is asked for something better, in each restart.
    k, n : int
        How many of the best and of the worst templates it is shown, and asked for at a time.
    restarts, initial : int
        How often to begin with other templates, and with how many.
    replies : str
        JSON Lines file in which every reply is kept: a run that is repeated finds them there.
        Empty for one beside the embedding store.
    max_requests : int or None
        Most requests of a fit; 0 uses the replies that are there, without a server.
    seed : int
        Decides which templates to begin with, in which order.
    """

    name: ClassVar[str] = "llmbo"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    model: str = ""
    base_url: str = ""
    provider: str = "openai"
    temperature: float | None = 1.0
    iterations: int = 10
    k: int = 3
    n: int = 1
    restarts: int = 1
    initial: int = 80
    replies: str = ""
    max_requests: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("iterations", "k", "n", "restarts", "initial")
        check_numbers(self, counts=counts, from_zero=("max_requests",))
        if self.provider not in ("openai", "anthropic"):
            raise SettingError(f"provider must be openai or anthropic, not {self.provider!r}")

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that there is a model to ask, and templates to begin with."""
        if not self.model.strip():
            raise SettingError(
                "llmbo asks a language model, and none is named. Type "
                "llmbo?model=NAME with the key in OPENAI_API_KEY, or "
                "llmbo?model=NAME&base_url=http://localhost:8000/v1 for a server on this machine; "
                "for Anthropic's models add &provider=anthropic, with the key in ANTHROPIC_API_KEY"
            )
        if not pool.templates:
            raise SettingError("llmbo begins with the pool's templates, and the pool has none")
        if len(shots.labels) == 0:
            raise LabelError(
                "llmbo scores templates by images, and there is none; give one at least"
            )
        if self.max_requests != 0:
            check_server(self._model)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search, and keep the best template by the few images."""
        self.check(shots, pool, encoder)
        score = _scorer(shots, encoder)
        replies = Path(self.replies).expanduser() if self.replies else default_replies()
        searches = []
        with Conversation(self._model, replies, self.max_requests) as model:
            for restart in range(self.restarts):
                rng = np.random.default_rng([self.seed, restart])
                chosen = rng.permutation(len(pool.templates))[: self.initial]
                initial = [pool.templates[i] for i in chosen]
                search = _Search(f"seed {self.seed}, restart {restart}", score, initial)
                search.run(model, self.iterations, self.k, self.n)
                searches.append(search)
        if not any(search.proposed for search in searches):
            # The result would be the best of the pool.
            reply = " ".join(searches[-1].last_invalid.split())[:80]
            raise PoolError(
                f"llmbo: none of {self.model!r}'s {sum(s.invalid for s in searches)} replies had a "
                "template in it, a line such as '- a photo of a {}.'. The last one began: "
                f"{reply!r}. Try another model"
            )
        template, _ = max(
            (search.best for search in searches), key=itemgetter(1)
        )  # first of equals
        details = {"template": template, "restarts": [search.record() for search in searches]}
        banks = filled([template], shots.class_names)
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    @property
    def _model(self) -> ModelSettings:
        return ModelSettings(
            self.model,
            provider=self.provider,  # type: ignore[arg-type]  # looked at when it was made
            base_url=self.base_url or None,
            temperature=self.temperature,
        )


@dataclass
class _Search:
    """One restart: templates and their scores, in the order they were met."""

    name: str
    score: Score
    initial: Sequence[str]
    scores: dict[str, float] = field(default_factory=dict)
    proposed: list[str] = field(default_factory=list)
    invalid: int = 0
    last_invalid: str = ""

    def run(self, model: "Conversation", iterations: int, k: int, n: int) -> None:
        for template in self.initial:
            self._add(template)
        for _ in range(iterations):
            ranked = sorted(self.scores, key=lambda one: -self.scores[one])  # stable
            # With few templates none is shown on both sides.
            good, bad = ranked[:k], ranked[max(k, len(ranked) - k) :]
            for template in self._propose(model, message(good, bad, n), n):
                self.proposed.append(template)
                self._add(template)

    @property
    def best(self) -> tuple[str, float]:
        """The best template and its score; the first of equals."""
        return max(self.scores.items(), key=itemgetter(1))

    def record(self) -> dict[str, Any]:
        """Return how it went, ready for JSON."""
        template, score = self.best
        return {
            "best": template,
            "score": score,
            "initial_score": max(self.scores[one] for one in self.initial),
            "proposed": [{"template": one, "score": self._score(one)} for one in self.proposed],
            "invalid_replies": self.invalid,
        }

    def _propose(self, model: "Conversation", text: str, n: int) -> list[str]:
        """Ask until a reply can be used; nothing if none of them can."""
        for _ in range(_ATTEMPTS):
            reply = model.say(text, self.name)
            templates = read_templates(reply.text, n, cut_off=reply.cut_off)
            if templates is not None:
                return templates
            self.invalid += 1
            self.last_invalid = reply.text
        return []

    def _add(self, template: str) -> None:
        if text_key(template) not in map(text_key, self.scores):
            self.scores[template] = self.score(template)

    def _score(self, template: str) -> float:
        key = text_key(template)
        return next(score for one, score in self.scores.items() if text_key(one) == key)


def _scorer(shots: FewShotSet, encoder: Encoder) -> Score:
    """Return what scores a template: the share of the few images it classifies rightly."""
    rows = shots.images.rows(encoder)

    def score(template: str) -> float:
        texts = encoder.encode_texts([fill(template, name) for name in shots.class_names])
        return float(np.mean((rows @ texts.T).argmax(axis=1) == shots.labels))

    return score


#: What every template in a message or a reply begins with.
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
    """Show the best and the worst templates so far and ask for better ones."""
    return _MESSAGE.format(
        good="\n".join(BULLET + one for one in good),
        bad="\n".join(BULLET + one for one in bad),
        count=count,
        templates="template" if count == 1 else "templates",
        bullet=BULLET,
    )


def read_templates(reply: str, most: int, *, cut_off: bool = False) -> list[str] | None:
    """Take at most `most` templates out of a reply; None if it is not as it should be.

    A reply is text from outside: what is not to be read in it goes, as it does from replies for a
    pool. Beyond that the rule is the authors': a template is a line with a dash before it, and one
    line that has not exactly one ``{}`` spoils the reply. Of one that is `cut_off` the last line is
    left out.
    """
    lines = reply.splitlines()[: -1 if cut_off else None]
    # What a model thinks aloud has lines with dashes too; cleaning the whole takes it out.
    sentences = set(clean_reply("\n".join(lines)).sentences)
    templates = [
        sentence
        for line in lines
        if line.startswith(BULLET)
        for sentence in clean_reply(line).sentences
        if sentence in sentences
    ]
    try:
        return [_checked(one) for one in templates][:most] or None
    except PoolError:
        return None


def _checked(template: str) -> str:
    (kept,) = check_templates([template])
    if set("{}") & set(kept.replace("{}", "")):
        raise PoolError(f"{kept!r} has braces of another kind")
    return kept


# Stands between a message and what tells one asking of it from another; never sent.
_MARK = "\n\x1f"
_PATIENCE = 5.0


def default_replies() -> Path:
    """Return the file of replies where none is named: beside the embedding store."""
    return cache_folder() / "replies" / "llmbo.jsonl"


def check_server(settings: ModelSettings) -> None:
    """Raise a SettingError if the model cannot be asked, as far as can be known without asking."""
    try:
        with open_model(settings):
            pass
    except SettingError as error:
        raise SettingError(
            f"llmbo cannot ask {settings.model!r}: {error} "
            f"(llmbo?model={settings.model}&base_url=http://localhost:8000/v1)"
        ) from error
    address = urlsplit(settings.address or "")
    # Others may be behind a proxy: only their client knows the way.
    if not _is_here(address.hostname or ""):
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_PATIENCE).close()
    except OSError as error:
        raise SettingError(
            f"llmbo: nothing answers at {settings.address} ({error.strerror or error}); start the "
            "server, or give the base_url of another one"
        ) from error


class Conversation:
    """Asks one question after another; every reply is kept, and found when a run is repeated.

    The same message sent twice should get two replies: models draw their words. So a reply is filed
    under the message, the run it belongs to, and the number of the time it was sent. With
    ``max_requests=0`` only replies in the file are used, and no server is needed.
    """

    def __init__(self, settings: ModelSettings, replies: Path, max_requests: int | None) -> None:
        replies.absolute().parent.mkdir(parents=True, exist_ok=True)
        self.requests = 0
        self._settings, self._most = settings, max_requests
        self._cache = ReplyCache(replies)
        self._times: dict[str, int] = {}
        self._open = ExitStack()
        self._model: LanguageModel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def say(self, message: str, run: str) -> Reply:
        """Send a message, or find what was answered the same time it was sent before in the same `run`.

        Raises an AskError that says why there is no reply, and that what was answered is kept.
        """
        filed = f"{message}{_MARK}{run}"
        time = self._times[filed] = self._times.get(filed, 0) + 1
        filed = f"{filed}, time {time}"
        left = None if self._most is None else self._most - self.requests
        answers = ask_all(self._settings, [filed], self._cache, Manner(Budget(left)), self)
        self.requests += answers.requests
        if filed not in answers.replies:
            why = answers.failed.get(filed) or answers.stopped or "the server does not answer"
            if answers.exhausted:
                why = f"max_requests={self._most} allows no more"
            raise AskError(
                f"llmbo got no reply from {self._settings.model!r}: {why}. What was answered is in "
                f"{self._cache.path}; the same command goes on from there"
            )
        return answers.replies[filed]

    def ask(self, question: str) -> Reply:
        """Send what stands before the mark; the client is opened when it is first needed."""
        if self._model is None:
            self._model = self._open.enter_context(open_model(self._settings))
        return self._model.ask(question.partition(_MARK)[0])


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
