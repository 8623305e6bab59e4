"""LLMbo (Liu et al., 2024): a language model looks for the one template that classifies best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError, PoolError, SettingError
from promptboost.llm import ModelSettings
from promptboost.methods.base import FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import TextClassifier, filled
from promptboost.methods.llmbo.conversation import (
    Conversation,
    check_server,
    default_replies,
    message,
    read_templates,
)
from promptboost.pool import PromptPool, fill
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

    def run(self, model: Conversation, iterations: int, k: int, n: int) -> None:
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

    def _propose(self, model: Conversation, text: str, n: int) -> list[str]:
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
