"""Boosting of text prompts as one method among others; its ablations are its settings."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from promptboost.boosting import BoostSettings, GradientSettings, GridPool, Shots
from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError, PoolError, SettingError
from promptboost.methods.base import FewShotSet, Group, Method, Origin, Transfer
from promptboost.methods.fitted import TextClassifier
from promptboost.methods.registry import spelled
from promptboost.pool import PromptPool
from promptboost.pool.combination import of_sources
from promptboost.training import PoolTexts, fit_ensemble

__all__ = ["Boosting"]


@dataclass(frozen=True)
class Boosting(Method):
    """Text prompt boosting.

    The paper cuts new crops of the images in every round; here a round draws its views among the
    cached ones, which all methods share.

    Parameters
    ----------
    composer : {"gradient", "greedy"}
        How a round composes its banks.
    rounds : int
        M. The paper has 50, and 30 for ImageNet.
    views_per_round : int or None
        a: how many crops of an image a round sees; None for all there are, 0 for none.
    max_copies : int or None
        Most copies of a prompt in a bank of the greedy composer: 1 is without duplication.
    logit_scale : float or None
        Of the gradient composer; None chooses it from the few images.
    temperature : float
        τ.
    sources : str
        Names of description sources, with commas: only their sentences, and the templates, are
        in the pool. All by default.
    seed : int
        Decides which views a round sees.

    Examples
    --------
    >>> from promptboost.testing import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("fire", "ice")
    >>> pool = build_pool(["fire", "ice"], descriptions={"fire": ["it is red"], "ice": ["it is blue"]})
    >>> fitted = Boosting(composer="greedy").fit(shots, pool, encoder)
    >>> fitted.predict(shots.images).tolist()
    [0, 0, 1, 1]
    """

    name: ClassVar[str] = "promptboost"
    group: ClassVar[Group] = Group.BOOSTING
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    composer: Literal["gradient", "greedy"] = "gradient"
    rounds: int = 1
    views_per_round: int | None = None
    max_copies: int | None = None
    logit_scale: float | None = None
    temperature: float = 1.0
    sources: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.composer not in ("gradient", "greedy"):
            raise SettingError(f"composer is {self.composer!r}, but must be gradient or greedy")
        if self.views_per_round is not None and self.views_per_round < 0:
            raise SettingError(f"views_per_round is {self.views_per_round}, but must be 0 or more")
        # What a composer does not look at would be an ablation of nothing.
        if self.composer == "gradient" and self.max_copies is not None:
            raise SettingError("max_copies is for the greedy composer: tpb, or composer=greedy")
        if self.composer == "greedy" and self.logit_scale is not None:
            raise SettingError("logit_scale is for the gradient composer: promptboost")
        self._settings(0)  # says what is wrong with the others

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Refuse a pool without templates or of other classes, and classes without images."""
        of_sources(pool, self.sources)
        if tuple(pool.class_names) != tuple(shots.class_names):
            raise PoolError("the pool must have the classes of the images, in the same order")
        if not pool.templates:
            raise PoolError(
                "every round begins with one of the pool's templates, and the pool has none; build "
                "one with templates: promptboost pool build --help"
            )
        if shots.n_classes < 2:
            raise LabelError("boosting needs two classes or more")
        missing = sorted(set(range(shots.n_classes)) - set(shots.labels.tolist()))
        if missing:
            raise LabelError(
                f"the class {shots.class_names[missing[0]]!r} has no image, and boosting weighs "
                "the words of a class by its images; add one, or leave the class out"
            )

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Boost."""
        self.check(shots, pool, encoder)
        words = of_sources(pool, self.sources)
        rows = shots.images.views(encoder)
        views = rows[:, 1:]
        ensemble = fit_ensemble(
            Shots.from_rows(rows[:, 0], shots.labels, views if views.size else None),
            _grid(words, encoder),  # type: ignore[arg-type]  # protocols do not say they have a hash
            PoolTexts.of(words),
            self._settings(views.shape[1]),
            image_ids=[str(i) for i in range(len(rows))],
            encoder_id=encoder.id,
            encoder_fingerprint=encoder.fingerprint,
            encoder_scale=encoder.logit_scale,
        )
        banks = tuple(ensemble.prompts(name) for name in shots.class_names)
        details = {"ensemble": ensemble.to_json()}
        origin = Origin(spelled(self), shots.class_names, encoder)
        return TextClassifier(origin, banks, unit=False, details=details)

    def _settings(self, views: int) -> BoostSettings:
        seen = views if self.views_per_round is None else min(self.views_per_round, views)
        by_gradient = self.composer == "gradient"
        return BoostSettings(
            rounds=self.rounds,
            views_per_round=seen,
            temperature=self.temperature,
            seed=self.seed,
            max_copies=self.max_copies,
            gradient=GradientSettings(logit_scale=self.logit_scale) if by_gradient else None,
        )


@lru_cache(maxsize=2)
def _grid(pool: PromptPool, encoder: Encoder) -> GridPool:
    """Embed a pool; a comparison asks for the same one again and again."""
    return PoolTexts.of(pool).embed(encoder.encode_texts)
