"""From a task to an ensemble: embed, boost, embed what was learnt. Nothing is written here."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import BoostSettings, GradientSettings, Shots
from promptboost.encoders.base import UnitRows
from promptboost.ensemble import PromptEnsemble
from promptboost.fitting import PoolTexts, fit_ensemble
from promptboost.pool import PromptPool
from promptboost.runs.embedding import Embedder
from promptboost.runs.heads import AnyHead, embed_ensemble
from promptboost.runs.pool_rows import PoolRows
from promptboost.runs.settings import FitSettings
from promptboost.runs.task import Task, picture_ids
from promptboost.runs.words import Words

__all__ = ["Learned", "OnEnsemble", "Rows", "embed_task", "learn"]

OnEnsemble = Callable[[PromptEnsemble], None]


@dataclass(frozen=True)
class Rows:
    """The embeddings a fit works on.

    Attributes
    ----------
    learn : float32 array of shape (n, 1 + V, D)
        Each picture to learn from and its crops.
    held_out : float32 array of shape (m, D)
        The pictures to measure on.
    words : Words
        The pool, and what its texts alone make of the classes.
    pool : PoolRows
        The rows of the pool; those of a big one are on disk until :func:`learn` is done.
    """

    learn: UnitRows
    held_out: UnitRows
    words: Words
    pool: PoolRows


@dataclass(frozen=True)
class Learned:
    """A finished fit in memory.

    Attributes
    ----------
    ensemble : PromptEnsemble
        What was learnt, as text.
    head : Head
        That text embedded again: what is measured is what is shipped.
    stages : array of shape (rounds, K, D)
        The class rows of each round by itself.
    boost_seconds : float
        Time spent boosting.
    """

    ensemble: PromptEnsemble
    head: AnyHead
    stages: NDArray[np.float32]
    boost_seconds: float


def embed_task(
    task: Task,
    pool: PromptPool,
    settings: FitSettings,
    embedder: Embedder,
    folder: Path | None = None,
) -> Rows:
    """Embed the pictures and texts of a fit.

    Parameters
    ----------
    task, pool, settings, embedder
        The pictures, the texts, what is asked, and what embeds them.
    folder : Path, optional
        Where the rows of a big pool may be kept meanwhile, such as a folder of the run; see
        :meth:`PoolRows.embed`.
    """
    learn = embedder.pictures(task.learn, views=settings.views, view_scale=settings.view_scale)
    held_out = embedder.originals(task.held_out)
    rows = PoolRows.embed(PoolTexts.of(pool), embedder, folder)
    return Rows(learn, held_out, Words.of_rows(pool, rows.grid, embedder), rows)


def learn(
    task: Task,
    rows: Rows,
    settings: FitSettings,
    embedder: Embedder,
    *,
    resume: PromptEnsemble | None = None,
    on_round: OnEnsemble | None = None,
) -> Learned:
    """Boost on the rows of a task.

    What the pool has on disk is deleted at the end, and kept if the work is interrupted.

    Parameters
    ----------
    task, rows, settings, embedder
        The pictures, their rows, what is asked, and what made the rows.
    resume : PromptEnsemble, optional
        The rounds of an earlier, interrupted call, as given to `on_round`.
    on_round : callable, optional
        Called with the ensemble so far after each round.
    """
    start = time.perf_counter()
    views = rows.learn[:, 1:]
    shots = Shots.from_rows(rows.learn[:, 0], task.learn.labels, views if views.size else None)
    encoder = embedder.encoder
    ensemble = fit_ensemble(
        shots,
        rows.pool.grid,
        rows.pool.texts,
        _boost_settings(settings),
        picture_ids=picture_ids(task.learn),
        encoder_id=encoder.id,
        encoder_fingerprint=encoder.fingerprint,
        encoder_scale=encoder.logit_scale,
        notes={"view_scale": settings.view_scale, "shots": settings.shots},
        resume=resume,
        on_round=None if on_round is None else (lambda so_far, _: on_round(so_far)),
    )
    seconds = time.perf_counter() - start
    rows.pool.release()
    stages = [head.weights for head in ensemble.weak_heads(embedder.texts(ensemble.texts()))]
    return Learned(ensemble, embed_ensemble(ensemble, embedder), np.stack(stages), seconds)


def _boost_settings(settings: FitSettings) -> BoostSettings:
    by_gradient = settings.composer == "gradient"
    return BoostSettings(
        rounds=settings.rounds,
        views_per_round=settings.views_seen,
        temperature=settings.temperature,
        seed=settings.seed,
        max_copies=settings.max_copies,
        patience=settings.patience,
        gradient=GradientSettings(logit_scale=settings.logit_scale) if by_gradient else None,
    )
