"""Greedy Prompt Composition of one weak classifier.

Stage 1 starts every bank with the same template, the one with the least weighted error. Stage 2 cycles
through the classes and appends to each bank the copies of a prompt that reduce the weighted error most per
copy, until a full cycle changes nothing. Every step reduces the error, so this terminates.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.composition import (
    Composition,
    Step,
    pick_template,
    template_hits,
)
from promptboost.boosting.greedy.search import PromptSearch
from promptboost.boosting.grid import GridPool, GridRows, weights_to_grid


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

    Rows `X` are views on the grid, stacked if there are several encoders, `y` their classes; only ratios of
    the `weights` matter. `rng` breaks ties between templates, whose `hits` may be given, see
    :func:`template_hits`. At most `max_copies` are appended in one step; 1 is the paper's "without
    duplication". With `penalty`, candidates are compared by the change of the error per copy.
    """
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
    banks: tuple[dict[int, int], ...] = tuple({} for _ in pool.prompts)
    steps: list[Step] = []
    improved = True
    while improved:  # until a cycle over all classes changes nothing
        improved = False
        for k, bank in enumerate(banks):
            choice = search.select(k)
            if choice is not None:
                search.append(k, choice.prompt, choice.copies)
                bank[choice.prompt] = bank.get(choice.prompt, 0) + choice.copies
                steps.append(Step(k, choice.prompt, choice.copies, search.error / total))
                improved = True
    return Composition(
        template,
        template_error,
        error=search.error / total,
        template_copies=(1,) * len(banks),
        banks=banks,
        trace=tuple(steps),
    )
