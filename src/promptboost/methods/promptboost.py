"""Boosting of text prompts as one method among others; its ablations are its settings."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from promptboost.boosting import GridPool, Shots
from promptboost.boosting.grid import side_by_side
from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import text_source
from promptboost.errors import PoolError, SettingError
from promptboost.methods.base import (
    FewShotSet,
    Group,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_two_classes,
)
from promptboost.methods.fitted import TextClassifier
from promptboost.model import LearntOn, LinearHead, PromptEnsemble, VotingHead
from promptboost.pool import PromptPool
from promptboost.pool.combination import of_sources
from promptboost.training import OnRound, PoolTexts, boost_settings, fit_ensemble


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
        """Return the encoders to learn on beside one."""
        found: list[Any] = [text_source(name) for name in filter(None, self.also.split("+"))]
        prints = [encoder.fingerprint, *(one.fingerprint for one in found)]
        if len(set(prints)) < len(prints):
            raise SettingError(
                f"also is {self.also!r}, which names an encoder twice, or {encoder.id}"
            )
        return found

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Boost."""
        return self.classifier(self.ensemble(shots, pool, encoder), self.origin(shots, encoder))

    def ensemble(
        self,
        shots: FewShotSet,
        pool: PromptPool,
        encoder: Encoder,
        on_round: OnRound | None = None,
    ) -> PromptEnsemble:
        """Boost, and return the text with all its rounds; `on_round` is called after each."""
        self.check(shots, pool, encoder)
        words = of_sources(pool, self.sources)
        every = [encoder, *self.further(encoder)]
        seen_by = [shots.images.views(one) for one in every]
        rows: Any = seen_by[0] if len(every) == 1 else side_by_side(seen_by, name="images")
        views = rows[:, 1:]
        seen = min(self.views_per_round or 0, views.shape[1])
        asked = self if self.views_per_round is None else replace(self, views_per_round=seen)
        return fit_ensemble(
            Shots.from_rows(rows[:, 0], shots.labels, views if views.size else None),
            GridPool.joined([_grid(words, one) for one in every]),  # type: ignore[arg-type]  # has a hash
            PoolTexts.of(words),
            boost_settings(asked, views.shape[1]),
            image_ids=[str(i) for i in range(len(rows))],
            encoder_id=encoder.id,
            encoder_fingerprint=encoder.fingerprint,
            encoder_scale=encoder.logit_scale,
            further_encoders=[
                LearntOn(one.id, one.fingerprint, encoder_logit_scale=one.logit_scale)
                for one in every[1:]
            ],
            on_round=on_round,
        )

    def classifier(self, ensemble: PromptEnsemble, origin: Origin) -> TextClassifier:
        """Return the classifier that an ensemble of this method is."""
        banks = tuple(ensemble.prompts(name) for name in origin.class_names)
        details = {"ensemble": ensemble.to_json()}
        kind = VotingClassifier if self.algorithm == "samme" else TextClassifier
        return kind(origin, banks, unit=False, details=details)


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


@lru_cache(maxsize=2)
def _grid(pool: PromptPool, encoder: Encoder) -> GridPool:
    """Embed a pool; a comparison asks for the same one again and again."""
    return PoolTexts.of(pool).embed(encoder.encode_texts)
