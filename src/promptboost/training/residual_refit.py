"""Refit the residual of a classifier on labeled images."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from promptboost.config import BoostConfig, FitConfig, settings_of
from promptboost.data.dataset import Dataset, check_labels
from promptboost.data.memory import as_embeddings, as_images, holds_images
from promptboost.encoders.embedder import open_embedder
from promptboost.errors import LabelError, count
from promptboost.model import PromptEnsemble
from promptboost.model.classifier import PromptClassifier
from promptboost.model.schema import check_class
from promptboost.pool import PromptPool
from promptboost.pool.templates import PLAIN_TEMPLATE, fill
from promptboost.progress import Progress, no_progress
from promptboost.training.examples import Examples
from promptboost.training.pool_rows import PoolRows, PoolTexts
from promptboost.training.trainer import Trainer


class NoPoolWarning(UserWarning):
    """Warns that a residual is refitted without the pool of the fit."""


def refit(
    classifier: PromptClassifier,
    images: Any,
    labels: Sequence[str],
    pool: PromptPool | None = None,
    *,
    views: int | None = None,
    view_scale: float | None = None,
    progress: Progress = no_progress,
) -> PromptClassifier:
    """Fit the residual of a classifier on labeled images; its text is unchanged.

    Use it after editing a text, or to add a residual to one without. With the images and the pool of a
    run, the result is that of ``promptboost refit``. Load a run that was fitted on several encoders with
    ``average=True``, so that all of them are used.

    Parameters
    ----------
    classifier : PromptClassifier
        The classifier to refit; it is not modified.
    images : sequence of images, or embeddings of shape (n, D)
        As for :meth:`PromptClassifier.predict`; the training images of the text are best.
    labels : sequence of str
        The class name of each image. Classes without images have no residual, only a balance.
    pool : PromptPool, optional
        The pool of the fit, for weighting text and residual by cross-validation. Without it, with a
        warning, the text is weighted as if it were the plain template.
    views, view_scale : int, float, optional
        Number of crops per image, and the least share of its area that they cover; by default as in the
        fit. Ignored for embeddings.
    progress : callable, optional
        Called with stage, done and total.

    Returns
    -------
    PromptClassifier

    Examples
    --------
    >>> from PIL import Image
    >>> from promptboost.model import PromptEnsemble, Round
    >>> from promptboost.pool import build_pool
    >>> banks = {"fire": {"something red": 1}, "ice": {"something blue": 1}}
    >>> ensemble = PromptEnsemble(("fire", "ice"), (Round("{}", banks, 0.0, 0.1),))
    >>> classifier = PromptClassifier(ensemble, "fake:32-0", cache=False)
    >>> images = [Image.new("RGB", (8, 8), color) for color in ("red", "orange", "blue", "navy")]
    >>> labels = ["fire", "fire", "ice", "ice"]
    >>> refit(classifier, images, labels, build_pool(["fire", "ice"])).predict(images).tolist()
    ['fire', 'fire', 'ice', 'ice']
    """
    check_labels(labels)
    ensemble, names = classifier.ensemble, [str(label) for label in labels]
    for name in dict.fromkeys(names):
        check_class(ensemble.class_names, name)
    if len(set(names)) < 2:
        raise LabelError("images of two classes or more are needed")
    embedders = classifier.embedders
    encoder = open_embedder(embedders)
    if holds_images(images):
        data, recorded = Dataset(as_images(images), ()), _recorded(ensemble, "views")
        rows = encoder.images(
            data,
            views=FitConfig(views=recorded).crops(len(data)) if views is None else views,
            view_scale=_recorded(ensemble, "view_scale") if view_scale is None else view_scale,
        )
        ids = data.ids
    else:
        rows = as_embeddings(images, encoder.dim)[:, None]
        ids = tuple(map(str, range(len(rows))))
    if len(rows) != len(names):
        raise LabelError(f"{len(names)} labels for {count(len(rows), 'image')}")
    numbers = np.array([ensemble.class_names.index(name) for name in names])
    examples = Examples.with_views(rows, numbers, ids, encoders=len(embedders))
    unseen, pool_rows = None, None
    if pool is None:
        warnings.warn(
            "refitted without a pool, so the text is weighted like a plain template: pass the pool "
            "of the fit, refit(classifier, images, labels, pool)",
            NoPoolWarning,
            stacklevel=2,
        )
        texts = [fill(PLAIN_TEMPLATE, name) for name in ensemble.class_names]
        unseen = [embedder.encode_texts(texts) for embedder in embedders]
    else:
        pool_texts = PoolTexts.of(pool, ensemble.class_names)
        pool_rows = PoolRows.embed(pool_texts, encoder, progress=progress)
    trainer = Trainer(config_of(ensemble), progress=progress)
    fitted = trainer.refit(ensemble, examples, embedders, pool_rows, unseen=unseen)
    return PromptClassifier(ensemble, list(embedders), fitted.heads)


def config_of(ensemble: PromptEnsemble) -> BoostConfig:
    """Return the recorded settings of an ensemble, with defaults for missing ones."""
    names = {field.name for field in fields(BoostConfig)}
    values = {name: value for name, value in ensemble.settings.items() if name in names}
    return BoostConfig(**{**values, "residual": True})  # type: ignore[arg-type]


def _recorded(ensemble: PromptEnsemble, name: str) -> Any:
    """Return a recorded setting of an ensemble, or its default."""
    return settings_of(FitConfig)[name].checked(
        ensemble.settings.get(name, getattr(FitConfig, name)), name
    )
