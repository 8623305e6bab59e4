"""Boosting of text prompts as one method among others; its ablations are its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import (
    Arrays,
    FewShotSet,
    Group,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_two_classes,
)
from promptboost.baselines.fitted import TextClassifier
from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder, members_of
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.group import EncoderGroup, join
from promptboost.encoders.registry import load_encoder
from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.model import PromptEnsemble
from promptboost.pool import PromptPool
from promptboost.pool.pool import of_sources
from promptboost.training import Fitted, PoolRows, PoolTexts, Trainer
from promptboost.training.examples import Examples
from promptboost.training.learner import OnRound


@dataclass(frozen=True)
class Boosting(BoostConfig, Method):
    """Text prompt boosting.

    The paper cuts new crops of the images in every round; here a round draws its views among the
    cached ones, which all methods share.

    Parameters
    ----------
    sources : str
        Names of description sources, with commas: only their sentences, and the templates, are
        in the pool. All by default.
    also : str
        Names of other encoders, joined by +, to learn on at once: ``also=conse:lite2``.
    **settings
        Those of :class:`~promptboost.config.BoostConfig`.
    """

    name: ClassVar[str] = "promptboost"
    group: ClassVar[Group] = Group.BOOSTING
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    sources: str = ""
    also: str = ""

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the pool has templates and the same classes, and that each has images."""
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
        """Return the encoder to learn on: the given one, or a group with those of `also`."""
        names = tuple(name for name in self.also.split("+") if name)
        try:
            return _group(encoder, names) if names else encoder  # type: ignore[arg-type]  # hashable
        except SettingError as error:
            raise SettingError(
                f"also is {self.also!r}, which names an encoder twice, or {encoder.id}"
            ) from error

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Boost, and fit the residual."""
        fitted = self.train(shots, pool, encoder)
        origin, residual = self.origin(shots, encoder), fitted.residuals[0]
        text = self.classifier(fitted.ensemble, origin)
        if residual is None or not np.isfinite(residual.penalty):  # the images rule it out
            return text
        return ResidualClassifier(
            origin,
            text.banks,
            unit=False,
            details=text.details,
            residual=np.asarray(residual.weights, dtype=np.float32),
            text_scale=residual.text_scale,
        )

    def train(
        self,
        shots: FewShotSet,
        pool: PromptPool,
        encoder: Encoder,
        on_round: OnRound | None = None,
    ) -> Fitted:
        """Fit the ensemble and its head; see :class:`~promptboost.training.Trainer`."""
        self.check(shots, pool, encoder)
        words, encoders = of_sources(pool, self.sources), self.encoders(encoder)
        members = members_of(encoders)
        rows = join([shots.images.views(member) for member in members])
        views = rows[:, 1:]
        examples = Examples(
            rows[:, 0],
            shots.labels,
            tuple(map(str, range(len(shots.labels)))),
            views=views if views.size else None,
            encoders=len(members),
        )
        per_round = self.views_per_round
        if per_round is not None:
            per_round = min(per_round, views.shape[1])
        trainer = Trainer(replace(self, views_per_round=per_round))
        pool_rows = _embedded(words, encoders)  # type: ignore[arg-type]  # hashable
        return trainer.fit(examples, pool_rows, members, n_heads=1, on_round=on_round)

    def classifier(self, ensemble: PromptEnsemble, origin: Origin) -> TextClassifier:
        """Return the classifier that an ensemble of this method is."""
        banks = tuple(ensemble.prompts(name) for name in origin.class_names)
        details = {"ensemble": ensemble.to_json()}
        return TextClassifier(origin, banks, unit=False, details=details)


@dataclass(frozen=True)
class ResidualClassifier(TextClassifier):
    """A text and its residual, which does not transfer."""

    kind: ClassVar[str] = "text+residual"
    residual: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    text_scale: float = 1.0

    def logits(self, images: Images) -> Logits:
        """Add both."""
        rows = images.rows(self.origin.encoder)
        return np.asarray(rows @ (self.rows * self.text_scale + self.residual).T, dtype=np.float32)

    def text_alone(self) -> TextClassifier:
        """Return the text without the residual."""
        return self.transfer(self.origin.encoder)

    def transfer(self, encoder: Encoder) -> TextClassifier:
        """Have the text read by another encoder."""
        origin = replace(self.origin, encoder=encoder)
        return TextClassifier(origin, self.banks, self.unit, self.details)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return the text and the residual."""
        fields, arrays = super().state()
        return {**fields, "text_scale": self.text_scale}, {**arrays, "residual": self.residual}

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make it again from the text and the residual."""
        text = TextClassifier.from_state(origin, fields, {})
        residual, scale = arrays.get("residual"), fields.get("text_scale")
        shape = (len(origin.class_names), origin.encoder.dim)
        sound = residual is not None and residual.shape == shape and np.isfinite(residual).all()
        if not sound or not isinstance(scale, float) or not 0 < scale < np.inf:
            raise FileFormatError("the file's residual cannot be read")
        assert residual is not None
        rows = residual.astype(np.float32)
        return cls(origin, text.banks, text.unit, text.details, rows, scale)


@lru_cache(maxsize=8)
def _group(encoder: Encoder, names: tuple[str, ...]) -> EncoderGroup:
    """Open further encoders; the same group again, so that its pool is found again."""
    store = encoder.store if isinstance(encoder, Embedder) else None
    first = encoder if isinstance(encoder, Embedder) else Embedder(encoder, None)
    others = [Embedder(load_encoder(name), store) for name in names]
    return EncoderGroup([first, *others])


@lru_cache(maxsize=4)  # one pool with a few encoders: a comparison needs it again and again
def _embedded(pool: PromptPool, encoder: Encoder) -> PoolRows:
    """Embed a pool."""
    return PoolRows.embed(PoolTexts.of(pool), encoder)
