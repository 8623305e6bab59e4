"""What a fit is compared with: methods that only read texts, and logistic regression.

They have the names that ``promptboost compare`` knows them by. A pool whose rows are there already is
not embedded again, and one that is too big for memory is read one class at a time.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import FewShotSet, RowImages
from promptboost.baselines.logistic import Logistic
from promptboost.baselines.measures import Guesses
from promptboost.baselines.registry import METHODS, make_method
from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.encoders.base import Encoder, UnitRows
from promptboost.model import Head
from promptboost.pool import PLAIN_TEMPLATE, PromptPool, build_pool
from promptboost.progress import Progress, no_progress
from promptboost.training import PoolTexts
from promptboost.training.pool_rows import encode_by

if TYPE_CHECKING:
    from promptboost.encoders.embedder import Embedder

#: Methods that learn from no image.
TEXT_BASELINES = ("zero-shot", "zero-shot-80", "pool-mean")

# Rows that are floats at a time: a class of a big pool has tens of thousands.
_AT_ONCE = 4096


def zero_shot_head(class_names: Sequence[str], embedder: "Embedder") -> Head:
    """Return the class names in the plain template as a head."""
    encoder = embedder
    nothing = np.zeros((0, 1, encoder.dim), dtype=np.float32)
    shots = FewShotSet(RowImages({encoder.id: nothing}), np.zeros(0, np.int64), tuple(class_names))
    pool = build_pool(class_names, templates=[PLAIN_TEMPLATE])
    fitted = make_method("zero-shot").fit(shots, pool, encoder)
    return Head(tuple(class_names), fitted.rows)  # type: ignore[attr-defined]


def pool_heads(
    pool: PromptPool, embedder: "Embedder", grid: GridPool | None = None
) -> dict[str, Head]:
    """Return the heads of all methods that only read texts, by name."""
    means = (
        _streamed(pool, embedder)
        if grid is None
        else [(_mean(a), _mean(b)) for a, b in zip(grid.templates, grid.prompts, strict=True)]
    )
    names = pool.class_names
    return {
        "zero-shot": zero_shot_head(names, embedder),
        "zero-shot-80": Head(names, _unit(filled for filled, _ in means)),
        "pool-mean": Head(names, _unit(prompts for _, prompts in means)),
    }


def guess_baselines(
    learn: FewShotSet,
    held_out: UnitRows,
    heads: dict[str, Head],
    pool: PromptPool,
    encoder: Encoder,
    *,
    seed: int,
    progress: Progress = no_progress,
) -> list[Guesses]:
    """Predict every image with every baseline; logistic regression if all classes have images."""
    originals = learn.images.rows(encoder)
    guesses = [
        Guesses(
            name,
            method_label(name, pool),
            head.predict_index(held_out),
            head.predict_index(originals),
        )
        for name, head in heads.items()
    ]
    if len(np.unique(learn.labels)) < learn.n_classes:
        return guesses
    logistic = Logistic(seed).fit(learn, pool, encoder, progress)
    images = RowImages({encoder.id: held_out[:, None]})
    guesses.append(
        Guesses(
            "logistic",
            method_label("logistic", pool),
            logistic.predict(images),
            logistic.predict(learn.images),
        )
    )
    return guesses


def method_label(name: str, pool: PromptPool) -> str:
    """Return a baseline's name for people, with the number of texts it is the mean of."""
    if name == "zero-shot-80":
        return f"mean of {len(pool.templates)} templates"
    if name == "pool-mean":
        return f"mean of all {sum(map(len, pool.prompts_by_class)):,} prompts"
    return METHODS[name].label


def _streamed(
    pool: PromptPool, embedder: "Embedder"
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Embed every text of a pool, holding the rows of one class at a time."""
    blocks = PoolTexts.of(pool).blocks(encode_by(embedder))
    return [(_mean(filled), _mean(prompts)) for filled, prompts in blocks]


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
