"""Greedy Prompt Composition: one weak classifier.

Stage 1 starts every bank with the same template, the one of least weighted error. Stage 2 cycles through
the classes and appends to each bank the copies of one prompt that lower the weighted error most per copy,
until a full cycle changes nothing. Every step lowers the error, so the loop ends.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.composition import (
    Composition,
    GreedyTrace,
    Step,
    pick_template,
    template_hits,
)
from promptboost.boosting.greedy.search import PromptSearch
from promptboost.boosting.grid import GridPool, GridRows, weights_to_grid
from promptboost.errors import SettingError


def compose_greedily(
    X: GridRows,
    y: NDArray[np.int64],
    weights: ArrayLike,
    pool: GridPool,
    *,
    rng: np.random.Generator,
    hits: NDArray[np.bool_] | None = None,
    max_copies: int | None = None,
    penalty: bool = True,
) -> Composition:
    """Compose a weak classifier on weighted rows.

    Parameters
    ----------
    X : array of int16, shape (n, D)
        Views of the images, on the grid; where the pool has the rows of several encoders, those of the
        first, then those of the next, see ``boosting.grid.stacked``.
    y : array of int64, shape (n,)
        Class index of each row.
    weights : array of float, shape (n,)
        Sample weights; only their ratios matter.
    pool : GridPool
        Templates and prompts.
    rng : numpy.random.Generator
        Breaks ties between templates.
    hits : array of bool, shape (n, number of templates), optional
        Which template classifies which row rightly, if known (see :func:`template_hits`).
    max_copies : int, optional
        Largest number of copies appended in one step; 1 is "without duplication". No cap by default.
    penalty : bool, default=True
        Compare candidates by error change per copy, or by error change alone.

    Examples
    --------
    >>> from promptboost.boosting.grid import to_grid
    >>> pool = GridPool.from_rows(
    ...     [[[0.0, 1.0]], [[1.0, 0.0]]],                    # one template
    ...     [[[0.0, 1.0], [0.96, 0.28]], [[0.28, 0.96]]],    # two prompts and one prompt
    ... )
    >>> X, y = to_grid([[0.6, 0.8], [0.8, 0.6]]), np.array([1, 0])
    >>> weak = compose_greedily(X, y, [0.5, 0.5], pool, rng=np.random.default_rng(0))
    >>> weak.template_error, weak.error
    (1.0, 0.0)
    >>> [(step.class_index, step.prompt, step.copies) for step in weak.trace.steps]
    [(0, 1, 2), (1, 0, 2)]
    """
    if max_copies is not None and max_copies < 1:
        raise SettingError(f"max_copies must be at least 1, got {max_copies}")
    grid_weights = weights_to_grid(weights, len(X))
    total = int(grid_weights.sum())
    if hits is None:
        hits = template_hits(X, y, pool.templates)
    template = pick_template(hits, grid_weights, rng)
    first = np.ascontiguousarray(pool.templates[:, template])
    search = PromptSearch(
        X, y, grid_weights, pool.prompts, first, max_copies=max_copies, penalty=penalty
    )
    template_error = search.error / total
    steps, cycles = _insert_until_nothing_helps(search, len(pool.prompts), total)
    return Composition(
        template,
        template_error,
        error=search.error / total,
        template_copies=(1,) * len(pool.prompts),
        banks=_banks(steps, len(pool.prompts)),
        trace=GreedyTrace(steps, cycles, search.effort),
    )


def _insert_until_nothing_helps(
    search: PromptSearch, n_classes: int, total: int
) -> tuple[tuple[Step, ...], int]:
    steps: list[Step] = []
    cycles, improved = 0, True
    while improved:
        cycles, improved = cycles + 1, False
        for k in range(n_classes):
            choice = search.select(k)
            if choice is not None:
                search.append(k, choice.prompt, choice.copies)
                steps.append(Step(k, choice.prompt, choice.copies, search.error / total))
                improved = True
    return tuple(steps), cycles


def _banks(steps: tuple[Step, ...], n_classes: int) -> tuple[dict[int, int], ...]:
    banks: tuple[dict[int, int], ...] = tuple({} for _ in range(n_classes))
    for step in steps:
        bank = banks[step.class_index]
        bank[step.prompt] = bank.get(step.prompt, 0) + step.copies
    return banks
