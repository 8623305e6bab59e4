"""Text prompt boosting as a method; its ablations are settings."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, members_of
from promptboost.encoders.group import EncoderGroup, join
from promptboost.encoders.registry import load_encoder
from promptboost.errors import PoolError, SettingError
from promptboost.methods.base import (
    FewShotSet,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_two_classes,
)
from promptboost.methods.fitted import TextClassifier
from promptboost.model import PromptEnsemble
from promptboost.pool import PromptPool
from promptboost.pool.pool import of_sources
from promptboost.training import Fitted, PoolRows, PoolTexts, Trainer
from promptboost.training.examples import Examples
from promptboost.training.trainer import OnRound


@dataclass(frozen=True)
class Boosting(BoostConfig, Method):
    """Text prompt boosting.

    The paper cuts new crops of the images in every round; here a round draws its views from the
    cached ones, which all methods share.
    """

    name: ClassVar[str] = "promptboost"
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    # Comma-separated description sources to use besides the templates. All by default.
    sources: str = ""
    also: str = ""  # further encoders to fit on jointly, joined by +: ``also=conse:lite2``

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the pool has templates and the same classes, and that every class has images."""
        of_sources(pool, self.sources)
        if tuple(pool.class_names) != tuple(shots.class_names):
            raise PoolError("the pool must have the classes of the images, in the same order")
        if not pool.templates:
            raise PoolError(
                "every round begins with one of the pool's templates, and the pool has none; build "
                "one with templates: promptboost pool build --help"
            )
        check_two_classes(shots, "boosting", "weighs the words of a class by its images")
        self.encoders(encoder)

    def encoders(self, encoder: Encoder) -> Encoder:
        """Return the given encoder, or a group of it and those of `also`."""
        names = tuple(name for name in self.also.split("+") if name)
        try:
            return _group(encoder, names) if names else encoder  # type: ignore[arg-type]  # hashable
        except SettingError as error:
            raise SettingError(
                f"also is {self.also!r}, which names an encoder twice, or {encoder.id}"
            ) from error

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Fit the ensemble and its residual."""
        fitted = self.train(shots, pool, encoder)
        origin, residual = self.origin(shots, encoder), fitted.residuals[0]
        text = self.classifier(fitted.ensemble, origin)
        if residual is None or not residual.is_used:
            return text
        # Without the part that all classes share, which would cost digits in float32.
        centered = residual.weights - residual.weights.mean(axis=0)
        return ResidualClassifier(
            origin,
            text.banks,
            unit=False,
            details=text.details,
            scale=text.scale,
            residual=np.asarray(centered, dtype=np.float32),
            text_scale=residual.text_scale,
        )

    def train(
        self, shots: FewShotSet, pool: PromptPool, encoder: Encoder, on_round: OnRound | None = None
    ) -> Fitted:
        """Fit the ensemble and its head; see :class:`~promptboost.training.Trainer`."""
        self.check(shots, pool, encoder)
        words, encoders = of_sources(pool, self.sources), self.encoders(encoder)
        members = members_of(encoders)
        rows = join([shots.images.views(member) for member in members])
        ids = tuple(map(str, range(len(shots.labels))))
        examples = Examples.with_views(
            rows, shots.labels, ids, encoders=len(members), groups=shots.groups
        )
        per_round = self.views_per_round
        if per_round is not None:
            per_round = min(per_round, rows.shape[1] - 1)
        trainer = Trainer(replace(self, views_per_round=per_round))
        pool_rows = _embedded(words, encoders)  # type: ignore[arg-type]  # hashable
        return trainer.fit(examples, pool_rows, members, n_heads=1, on_round=on_round)

    def classifier(self, ensemble: PromptEnsemble, origin: Origin) -> TextClassifier:
        """Return an ensemble as a classifier, with its logit scale of probabilities."""
        banks = tuple(ensemble.prompts(name) for name in origin.class_names)
        details = {"ensemble": ensemble.to_json()}
        own, fitted = origin.encoder.logit_scale, ensemble.logit_scale_on(origin.encoder)
        scale = 1.0 if fitted is None else fitted / own
        return TextClassifier(origin, banks, unit=False, details=details, scale=scale)


@dataclass(frozen=True)
class ResidualClassifier(TextClassifier):
    """A text and its residual, which does not transfer."""

    kind: ClassVar[str] = "text+residual"
    residual: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    text_scale: float = 1.0

    def logits(self, images: Images) -> Logits:
        """Return the logits of text plus residual."""
        rows = images.rows(self.origin.encoder)
        return np.asarray(rows @ (self.rows * self.text_scale + self.residual).T, dtype=np.float32)

    def text_alone(self) -> TextClassifier:
        """Return the text without the residual."""
        return self.transfer(self.origin.encoder)

    def transfer(self, encoder: Encoder) -> TextClassifier:
        """Return the text on another encoder, without the residual."""
        origin = replace(self.origin, encoder=encoder)
        return TextClassifier(origin, self.banks, self.unit, self.details, self.scale)


@lru_cache(maxsize=8)
def _group(encoder: Encoder, names: tuple[str, ...]) -> EncoderGroup:
    """Return a group of encoders, cached so that its pool is embedded once."""
    store = encoder.store if isinstance(encoder, Embedder) else None
    first = encoder if isinstance(encoder, Embedder) else Embedder(encoder, None)
    others = [Embedder(load_encoder(name), store) for name in names]
    return EncoderGroup([first, *others])


@lru_cache(maxsize=4)  # a comparison reuses one pool with a few encoders
def _embedded(pool: PromptPool, encoder: Encoder) -> PoolRows:
    """Embed a pool."""
    return PoolRows.embed(PoolTexts.of(pool), encoder)
