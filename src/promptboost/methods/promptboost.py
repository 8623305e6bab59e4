"""Boosting of text prompts as one method among others; its ablations are its settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

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
from promptboost.boosting import BoostSettings, GridPool, Shots
from promptboost.boosting.gradient.scale import FoldTexts
from promptboost.boosting.grid import side_by_side
from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, text_source
from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.model import LearntOn, LinearHead, PromptEnsemble, VotingHead
from promptboost.pool import PromptPool
from promptboost.pool.combination import of_sources
from promptboost.training import OnRound, PoolTexts, boost_settings, fit_ensemble
from promptboost.training.learner import OnFolds, head_with_residual

if TYPE_CHECKING:
    from promptboost.encoders.store import EmbeddingStore


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
        Names of further encoders, with + between, to learn on at once: ``also=conse:lite2``.
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
        self.further(encoder)

    def further(self, encoder: Encoder) -> list[Encoder]:
        """Return the encoders to learn on beside one, with its store."""
        store = encoder.store if isinstance(encoder, Embedder) else None
        found: list[Encoder] = [_beside(name, store) for name in self.also.split("+") if name]
        prints = [encoder.fingerprint, *(one.fingerprint for one in found)]
        if len(set(prints)) < len(prints):
            raise SettingError(
                f"also is {self.also!r}, which names an encoder twice, or {encoder.id}"
            )
        return found

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Boost, and add what the words leave over."""
        folds: list[FoldTexts] = []
        ensemble = self.ensemble(shots, pool, encoder, on_folds=folds.append)
        origin = self.origin(shots, encoder)
        text = self.classifier(ensemble, origin)
        if not self.residual or self.algorithm == "samme":
            return text
        head = ensemble.embed(encoder)
        assert isinstance(head, LinearHead)
        every = [encoder, *self.further(encoder)]
        learnt, settings = self._learnt(shots, every)
        grid = _joined(of_sources(pool, self.sources), every)
        _, residual = head_with_residual(
            head, ensemble, learnt, grid, settings, folds=folds[0] if folds else None
        )
        if not np.isfinite(residual.penalty):  # the images say that it does harm
            return text
        return ResidualClassifier(
            origin,
            text.banks,
            unit=False,
            details=text.details,
            residual=np.asarray(residual.weights, dtype=np.float32),
            text_scale=residual.text_scale,
        )

    def ensemble(
        self,
        shots: FewShotSet,
        pool: PromptPool,
        encoder: Encoder,
        on_round: OnRound | None = None,
        on_folds: OnFolds | None = None,
    ) -> PromptEnsemble:
        """Boost, and return the text with all its rounds; for the rest see :func:`fit_ensemble`."""
        self.check(shots, pool, encoder)
        words = of_sources(pool, self.sources)
        every = [encoder, *self.further(encoder)]
        learnt, settings = self._learnt(shots, every)
        return fit_ensemble(
            learnt,
            _joined(words, every),
            PoolTexts.of(words),
            settings,
            image_ids=[str(i) for i in range(len(shots.labels))],
            encoder_id=encoder.id,
            encoder_fingerprint=encoder.fingerprint,
            encoder_scale=encoder.logit_scale,
            further_encoders=[LearntOn.of(one) for one in every[1:]],
            on_round=on_round,
            on_folds=on_folds,
        )

    def _learnt(
        self, shots: FewShotSet, encoders: Sequence[Encoder]
    ) -> tuple[Shots, BoostSettings]:
        """Return the images to learn from, as all encoders see them, and what boosting is asked."""
        seen_by = [shots.images.views(one) for one in encoders]
        rows: Any = seen_by[0] if len(seen_by) == 1 else side_by_side(seen_by, name="images")
        views = rows[:, 1:]
        seen = min(self.views_per_round or 0, views.shape[1])
        asked = self if self.views_per_round is None else replace(self, views_per_round=seen)
        learnt = Shots.from_rows(rows[:, 0], shots.labels, views if views.size else None)
        return learnt, boost_settings(asked, views.shape[1])

    def classifier(self, ensemble: PromptEnsemble, origin: Origin) -> TextClassifier:
        """Return the classifier that an ensemble of this method is."""
        banks = tuple(ensemble.prompts(name) for name in origin.class_names)
        details = {"ensemble": ensemble.to_json()}
        kind = VotingClassifier if self.algorithm == "samme" else TextClassifier
        return kind(origin, banks, unit=False, details=details)


@dataclass(frozen=True)
class ResidualClassifier(TextClassifier):
    """A text and what the images taught beside it, which stays behind when the text moves."""

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


@dataclass(frozen=True)
class VotingClassifier(TextClassifier):
    """Rounds that vote one by one, as SAMME does: no mean of their prompts says the same."""

    kind: ClassVar[str] = "votes"

    @cached_property
    def head(self) -> LinearHead | VotingHead:
        """The ensemble in the space of the encoder."""
        return PromptEnsemble.from_json(self.details["ensemble"]).embed(self.origin.encoder)

    def logits(self, images: Images) -> Logits:
        """Count the votes, as logarithms of probabilities."""
        probabilities = self.head.predict_proba(images.rows(self.origin.encoder))
        return np.log(np.maximum(probabilities, 1e-30)).astype(np.float32)


def _joined(pool: PromptPool, encoders: Sequence[Encoder]) -> GridPool:
    """Embed a pool by all encoders."""
    return GridPool.joined([_grid(pool, one) for one in encoders])  # type: ignore[arg-type]  # has a hash


@lru_cache(maxsize=8)
def _beside(name: str, store: "EmbeddingStore | None") -> Embedder:
    """Open a further encoder; the same one again, so that its pool is known again."""
    encoder: Any = text_source(name)
    return Embedder(encoder, store)


@lru_cache(maxsize=4)  # one pool, as a few encoders read it
def _grid(pool: PromptPool, encoder: Encoder) -> GridPool:
    """Embed a pool; a comparison asks for the same one again and again."""
    return PoolTexts.of(pool).embed(encoder.encode_texts)
