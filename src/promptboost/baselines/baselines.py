"""Baselines of a fit: zero-shot, means of templates and of the pool, and logistic regression.

They have the names of the same methods in ``promptboost compare``. An embedded pool is not embedded again;
one too large for memory is embedded class by class.
"""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Guesses
from promptboost.boosting import GridPool
from promptboost.boosting.composition import log_losses
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.boosting.scale import dealt
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.model import Head
from promptboost.pool import PromptPool, fill
from promptboost.pool.templates import PLAIN_TEMPLATE
from promptboost.progress import Progress, no_progress
from promptboost.threads import single_blas_thread
from promptboost.training import PoolTexts
from promptboost.training.pool_rows import encode_by

if TYPE_CHECKING:
    from promptboost.encoders.embedder import Embedder

#: Baselines without training images.
TEXT_BASELINES = ("zero-shot", "zero-shot-80", "pool-mean")

# Rows converted to floats at a time: a class of a large pool has tens of thousands.
_AT_ONCE = 4096

#: Inverse strengths of regularization to choose from. Rows have length one, so little is needed.
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)

#: Used where a class has one image only, so that there is nothing to validate on.
FIXED_C = 10.0

_FOLDS = 3
_STAGE = "fitting logistic regression"
# Products of a step from which threads save more than they cost: some twenty milliseconds of one core.
_WORTH_THREADS = 500_000_000


def zero_shot_head(class_names: Sequence[str], encoder: Encoder) -> Head:
    """Return the class names in the plain template as a head."""
    rows = encoder.encode_texts([fill(PLAIN_TEMPLATE, name) for name in class_names])
    return Head(tuple(class_names), _unit(rows.astype(np.float64)))


def pool_heads(
    pool: PromptPool, embedder: "Embedder", grid: GridPool | None = None
) -> dict[str, Head]:
    """Return the heads of all baselines without training images, by name."""
    blocks: Iterable[tuple[GridRows, GridRows]]
    if grid is None:
        blocks = PoolTexts.of(pool).blocks(encode_by(embedder))
    else:
        blocks = zip(grid.templates, grid.prompts, strict=True)
    means = [(_mean(filled), _mean(prompts)) for filled, prompts in blocks]
    names = pool.class_names
    return {
        "zero-shot": zero_shot_head(names, embedder),
        "zero-shot-80": Head(names, _unit(filled for filled, _ in means)),
        "pool-mean": Head(names, _unit(prompts for _, prompts in means)),
    }


def guess_baselines(
    train: UnitRows,
    labels: NDArray[np.int64],
    test: UnitRows,
    heads: dict[str, Head],
    pool: PromptPool,
    *,
    seed: int,
    progress: Progress = no_progress,
) -> list[Guesses]:
    """Predict all images with every baseline; logistic regression needs images of all classes.

    `train` has the embeddings of the training images and their crops, shape (n, 1 + V, D), `test` those
    of the test images, shape (m, D).
    """
    originals = train[:, 0]
    counts = {
        "zero-shot-80": f"mean of {len(pool.templates)} templates",
        "pool-mean": f"mean of all {sum(map(len, pool.prompts_by_class)):,} prompts",
    }
    guesses = [
        Guesses(
            name,
            counts.get(name, "zero-shot, “a photo of a {}.”"),
            head.predict_index(test),
            head.predict_index(originals),
        )
        for name, head in heads.items()
    ]
    if len(np.unique(labels)) == len(pool.class_names):
        weights, intercepts, _ = fit_probe(train, labels, seed=seed, progress=progress)
        w, b = weights.astype(np.float32), intercepts.astype(np.float32)
        predicted = ((rows @ w.T + b).argmax(axis=1) for rows in (test, originals))
        guesses.append(Guesses("logistic", "logistic regression on the images", *predicted))
    return guesses


def _mean(rows: GridRows) -> NDArray[np.float64]:
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _AT_ONCE):
        total += from_grid(rows[start : start + _AT_ONCE]).sum(axis=0, dtype=np.float64)
    return np.asarray(total / len(rows))


def _unit(means: Iterable[NDArray[np.float64]]) -> NDArray[np.float32]:
    # Scaled to length one, as CLIP's own scripts do: else a class whose prompts differ more would
    # have a shorter mean, and lose for it.
    rows = np.stack(list(means))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def fit_probe(
    rows: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fit logistic regression on images and their crops, (n, 1 + V, D); every class has one at least.

    The crops of an image share the weight of one, and never stand on both sides of a fold. Returns
    weights (K, D), intercepts (K,), and the C that was used.
    """
    folds = min(int(np.bincount(labels).min()), _FOLDS)
    C = FIXED_C if folds < 2 else _choose(rows[:, 0], labels, folds, seed, progress)
    views = rows.shape[1]
    weights, intercepts = _fit(
        rows.reshape(-1, rows.shape[2]), labels.repeat(views), C, share=1 / views
    )
    return weights, intercepts, C


def _choose(
    rows: NDArray[np.float32], labels: NDArray[np.int64], folds: int, seed: int, progress: Progress
) -> float:
    """Choose C by the loss on images left out; by accuracy a few images could not tell."""
    fold = dealt(labels, folds, np.random.default_rng(seed))
    losses, done = dict.fromkeys(STRENGTHS, 0.0), 0
    progress(_STAGE, 0, len(STRENGTHS) * folds)
    for C in STRENGTHS:
        for part in range(folds):
            weights, intercepts = _fit(rows[fold != part], labels[fold != part], C)
            logits = rows[fold == part] @ weights.T + intercepts
            losses[C] += float(log_losses(logits, labels[fold == part]).sum())
            done += 1
            progress(_STAGE, done, len(STRENGTHS) * folds)
    return min(losses, key=losses.__getitem__)


def _fit(
    rows: NDArray[np.float32], labels: NDArray[np.int64], C: float, share: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from sklearn.linear_model import LogisticRegression  # slower to import than many fits

    weight = np.full(len(rows), share)
    # A loose tolerance: the last digits of the weights change no prediction, but take most steps.
    model = LogisticRegression(C=C, max_iter=2000, tol=1e-3)
    # A step over few images is over before a second thread of BLAS has begun, and waiting for it takes
    # five times as long as the step.
    is_small = rows.size * len(np.unique(labels)) < _WORTH_THREADS
    one = single_blas_thread() if is_small else nullcontext()
    with warnings.catch_warnings(), one:
        # With few shots of many classes it suspects that the labels are measurements.
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        model.fit(rows.astype(np.float64), labels, sample_weight=weight)
    weights, intercepts = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weights) == 1:  # two classes are kept as one row: the log-odds of the second
        halves, half = weights / 2, intercepts / 2
        weights, intercepts = np.vstack([-halves, halves]), np.r_[-half, half]
    return weights, intercepts
