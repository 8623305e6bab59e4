"""Baselines of a fit: zero-shot, means of templates and of the pool, and logistic regression.

They have the names of the same methods in ``promptboost compare``. An embedded pool is not embedded again;
one too large for memory is embedded class by class.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.logistic import fit_probe
from promptboost.baselines.measures import Guesses
from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.model import Head
from promptboost.pool import PLAIN_TEMPLATE, PromptPool, fill
from promptboost.progress import Progress, no_progress
from promptboost.training import PoolTexts
from promptboost.training.pool_rows import encode_by

if TYPE_CHECKING:
    from promptboost.encoders.embedder import Embedder

#: Baselines without training images.
TEXT_BASELINES = ("zero-shot", "zero-shot-80", "pool-mean")

# Rows converted to floats at a time: a class of a large pool has tens of thousands.
_AT_ONCE = 4096


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
