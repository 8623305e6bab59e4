"""Trainer: the only place that composes prompts, fits residuals and builds heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import BoostSettings, GradientSettings, GridPool, Shots
from promptboost.boosting.grid import from_grid
from promptboost.boosting.residual import (
    Residual,
    added_class_lift,
    fit_residual,
    fit_text_residual,
    texts_of_folds,
)
from promptboost.boosting.scale import FoldTexts, with_relative_scales
from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource
from promptboost.errors import DataError
from promptboost.model import Head, PromptEnsemble
from promptboost.model.ensemble import EncoderRecord
from promptboost.model.head import SCATTERED, Balance
from promptboost.model.schema import Scalar
from promptboost.progress import Progress, no_progress
from promptboost.training.examples import Examples
from promptboost.training.learner import OnRound, fit_ensemble
from promptboost.training.pool_rows import PoolRows

Floats = NDArray[np.floating]

# Significant digits that are kept.
_DIGITS = 7


@dataclass(frozen=True)
class Fitted:
    """The result of a fit: the text, and for each encoder its head with residual and class balance.

    Attributes
    ----------
    ensemble : PromptEnsemble
        The text.
    heads : tuple of Head
        One per encoder, in the order of the encoders.
    residuals : tuple of Residual or None
        How the residual of each head was fitted; None without one.
    """

    ensemble: PromptEnsemble
    heads: tuple[Head, ...]
    residuals: tuple[Residual | None, ...]

    @property
    def head(self) -> Head:
        """The head of the first encoder."""
        return self.heads[0]


class Trainer:
    """Fit ensembles of prompts, residuals and heads.

    Parameters
    ----------
    config : BoostConfig, optional
        The settings of the fit.
    progress : callable, optional
        Called with stage, done and total.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> from promptboost.pool import build_pool
    >>> from promptboost.training import PoolTexts
    >>> encoder = FakeEncoder()
    >>> pool = build_pool(
    ...     ["fire", "ice"], descriptions={"fire": ["something red"], "ice": ["something blue"]}
    ... )
    >>> images = encoder.encode_texts(["red", "dark red", "blue", "light blue"])
    >>> examples = Examples(images, np.array([0, 0, 1, 1]), ("a", "b", "c", "d"))
    >>> rows = PoolRows.embed(PoolTexts.of(pool), encoder)
    >>> fitted = Trainer().fit(examples, rows, [encoder])
    >>> fitted.head.predict(encoder.encode_texts(["pale red"])).tolist()
    ['fire']
    """

    def __init__(
        self, config: BoostConfig | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.config = config or BoostConfig()
        self.progress = progress

    def fit(
        self,
        examples: Examples,
        pool: PoolRows,
        sources: Sequence[TextSource],
        *,
        n_heads: int | None = None,
        notes: Mapping[str, Scalar] | None = None,
        resume: PromptEnsemble | None = None,
        on_round: OnRound | None = None,
    ) -> Fitted:
        """Compose an ensemble, fit its residuals, and build its heads.

        Parameters
        ----------
        examples : Examples
            Labeled images of every class of the pool. The embeddings of several encoders are next to
            each other.
        pool : PoolRows
            The embedded pool.
        sources : sequence of encoder, mapping or callable
            The encoders, or what embeds texts in their place.
        n_heads : int, optional
            How many of the encoders get a head; all by default.
        notes : mapping of str to scalar, optional
            Other facts that the fit depends on; stored with the settings of the ensemble.
        resume : PromptEnsemble, optional
            An unfinished ensemble of the same fit, to continue.
        on_round : callable, optional
            Called after each round with the ensemble so far and the round; fitting stops if it returns
            True.
        """
        shots = examples.shots()
        settings = self._settings(shots)
        folds: list[FoldTexts] = []
        ensemble = fit_ensemble(
            shots,
            pool.grid,
            pool.texts,
            settings,
            image_ids=examples.ids,
            weights=examples.weights,
            encoders=[
                EncoderRecord.of(source) for source in sources if isinstance(source, Encoder)
            ],
            notes=notes,
            resume=resume,
            on_round=on_round,
            on_folds=folds.append,
            progress=self.progress,
        )
        heads = _HeadBuilder(
            self,
            ensemble,
            examples,
            shots,
            sources,
            pool,
            settings,
            folds=folds[0] if folds else None,
        )
        return heads.build(n_heads)

    def refit(
        self,
        ensemble: PromptEnsemble,
        examples: Examples,
        sources: Sequence[TextSource],
        pool: PoolRows | None = None,
        *,
        unseen: Sequence[Floats] | None = None,
    ) -> Fitted:
        """Fit the residuals and the balance of a given text; the text stays.

        Classes without images have no residual; their text is balanced against the others.

        Parameters
        ----------
        ensemble : PromptEnsemble
            The text.
        examples, sources
            As for :meth:`fit`; at least two classes need images.
        pool : PoolRows, optional
            The pool of the fit. It tells how far the text can be trusted: texts composed on parts of the
            images are evaluated on the others. Without it, the residual is used in full.
        unseen : sequence of array of shape (K, D), optional
            Class embeddings made without any image, per encoder, where there is no pool.
        """
        classes, labels = np.unique(examples.labels, return_inverse=True)
        if len(classes) < 2:
            raise DataError("a residual needs images of two classes or more")
        examples = replace(examples, labels=labels)
        shots = examples.shots()
        settings = self._settings(shots)
        heads = _HeadBuilder(
            self, ensemble, examples, shots, sources, pool, settings, classes=classes, unseen=unseen
        )
        return heads.build()

    def _settings(self, shots: Shots) -> BoostSettings:
        """Return the settings of boosting, for the views that the images have."""
        views = 0 if shots.views is None else shots.views.shape[1]
        config = self.config if views else replace(self.config, views_per_round=0)
        return boost_settings(config, views)


@dataclass
class _HeadBuilder:
    """Build the heads of a text from labeled images."""

    trainer: Trainer
    ensemble: PromptEnsemble
    examples: Examples
    shots: Shots
    sources: Sequence[TextSource]
    pool: PoolRows | None
    settings: BoostSettings
    folds: FoldTexts | None = None
    classes: NDArray[np.int64] | None = None  # those with images, where not all have some
    unseen: Sequence[Floats] | None = None

    def build(self, n_heads: int | None = None) -> Fitted:
        """Return the text with a head for each encoder, or for the first few."""
        heads, residuals = [], []
        for number, source in enumerate(self.sources[:n_heads]):
            head = self.ensemble.embed(source)
            residual = None
            if self.trainer.config.residual:
                residual = self._residual(head, number)
                head = self._balanced(head.with_residual(residual), number)
                if self.pool is not None:
                    head = replace(head, pool_fingerprint=self.pool.texts.fingerprint)
            heads.append(head)
            residuals.append(residual)
        return Fitted(self.ensemble, tuple(heads), tuple(residuals))

    @property
    def grid(self) -> GridPool | None:
        """The embedded pool, if there is one."""
        return None if self.pool is None else self.pool.grid

    def _residual(self, head: Head, number: int) -> Residual:
        """Fit the residual of one encoder, for all classes of the text."""
        text, classes = head.weights / np.float32(head.rounds), self._classes
        weights, progress = self.examples.weights, self.trainer.progress
        if self.grid is None:
            rows = _with_views(self.examples.rows, self.examples.views)
            residual = fit_residual(
                self._columns(rows, number, head.dim),
                self.shots.labels,
                text[classes],
                self._unseen(number, head.dim)[classes],
                weights=weights,
                progress=progress,
            )
        else:
            residual = fit_text_residual(
                self.shots,
                self._scaled_grid,
                text[classes],
                weights=weights,
                encoder=number,
                folds=self._fold_texts,
                progress=progress,
            )
        rows = np.zeros((len(text), head.dim), dtype=residual.weights.dtype)
        rows[classes] = residual.weights
        return replace(residual, weights=rows)

    def _balanced(self, head: Head, number: int) -> Head:
        """Return the head with the balance of classes without images, present or added later."""
        text, both = (h.matrix / np.float32(h.rounds) for h in (head.without_residual(), head))
        images = self._columns(self.examples.rows, number, head.dim)
        labels, unseen = self._classes[self.shots.labels], self._unseen(number, head.dim)
        balance = measure_balance(head.class_names, images, labels, text, both, unseen)
        return replace(head, balance=balance)

    @property
    def _classes(self) -> NDArray[np.int64]:
        return np.arange(len(self.ensemble.class_names)) if self.classes is None else self.classes

    def _columns(self, rows: NDArray[Any], number: int, dim: int) -> NDArray[Any]:
        """Return the columns of one of several encoders."""
        width = rows.shape[-1] // self.examples.encoders
        return rows[..., number * width : number * width + dim]

    def _unseen(self, number: int, dim: int) -> Floats:
        """Return class embeddings made without any image, (K, D): the means of the templates."""
        if self.unseen is not None:
            return self.unseen[number]
        assert self.grid is not None
        templates = self._columns(self.grid.templates, number, dim)
        means = np.stack([_mean(rows) for rows in templates])
        unit = means / np.linalg.norm(means, axis=1, keepdims=True)
        return np.asarray(unit, dtype=np.float32)

    @cached_property
    def _scaled_grid(self) -> GridPool:
        """The pool of the classes with images, with the relative scales of the encoders."""
        assert self.grid is not None
        grid, classes = self.grid, self._classes
        if len(classes) < len(grid.prompts):
            prompts = tuple(grid.prompts[k] for k in classes.tolist())
            grid = replace(grid, templates=grid.templates[classes], prompts=prompts, keeper=None)
        if self.examples.encoders == 1:
            return grid
        return with_relative_scales(self.shots, grid, self._own_scales)

    @property
    def _own_scales(self) -> list[float | None]:
        """The logit scale of each encoder itself; None if unknown."""
        known = {item.id: item.encoder_logit_scale for item in self.ensemble.encoders}
        return [
            known.get(source.id, source.logit_scale) if isinstance(source, Encoder) else None
            for source in self.sources
        ]

    @cached_property
    def _fold_texts(self) -> FoldTexts | None:
        """Texts composed on parts of the images."""
        if self.folds is not None:
            return self.folds
        settings, scale = self.settings, self.ensemble.settings.get("logit_scale")
        if settings.gradient is not None and isinstance(scale, int | float):
            # It is a multiple of the own scale of the first encoder of the fit, which may be another.
            first = next((item.encoder_logit_scale for item in self.ensemble.encoders), None)
            own = self._own_scales[0]
            factor = own / first if own and first else 1.0
            gradient = replace(settings.gradient, logit_scale=scale * factor)
            settings = replace(settings, gradient=gradient)
        return texts_of_folds(self.shots, self._scaled_grid, settings, self.trainer.progress)


def boost_settings(config: BoostConfig, views: int) -> BoostSettings:
    """Return the settings of boosting, where each image has so many views."""
    values = {item.name: getattr(config, item.name) for item in fields(BoostConfig)}
    steps = {item.name: values.pop(item.name) for item in fields(GradientSettings)}
    gradient = GradientSettings(**steps) if values.pop("composer") == "gradient" else None
    del values["residual"]  # comes after boosting
    if config.views_per_round is None:
        values["views_per_round"] = views
    return BoostSettings(**values, gradient=gradient)


def _with_views(images: NDArray[Any], views: NDArray[Any] | None) -> NDArray[Any]:
    return images[:, None] if views is None else np.concatenate([images[:, None], views], axis=1)


def _mean(rows: NDArray[np.int16]) -> NDArray[np.float64]:
    return np.asarray(from_grid(rows).sum(axis=0, dtype=np.float64) / len(rows))


def measure_balance(
    class_names: tuple[str, ...],
    rows: Floats,
    labels: NDArray[np.integer],
    text: Floats,
    both: Floats,
    unseen: Floats,
) -> Balance | None:
    """Measure the balance on images (n, D).

    `text`, `both` and `unseen` are class rows (K, D): of the text, of text and residual, and of words that
    have seen no image. Return None if the images point in all directions.
    """
    center = rows.mean(axis=0, dtype=np.float64)
    learned = np.unique(labels)
    if center @ center < SCATTERED or len(learned) < 2:
        return None
    classes = np.searchsorted(learned, labels)
    lifts = [
        added_class_lift(rows, classes, matrix[learned], unseen[learned], center)
        for matrix in (text, both)
    ]
    names = tuple(class_names[k] for k in learned.tolist())
    return Balance(names, np.array([_short(x) for x in center]), *map(_short, lifts))


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
