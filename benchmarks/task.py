"""What the search is measured on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.grid import GridRows, to_grid, weights_to_grid
from tests.synthetic import clip_like


@dataclass(frozen=True)
class Size:
    """A few-shot task: K classes, 16 shots, four views, P prompts a class, D dimensions."""

    name: str
    classes: int
    prompts: int
    confusion: float
    shots: int = 16
    views: int = 4
    dim: int = 512


@dataclass
class Task:
    """One round's input, on the grid."""

    X: GridRows
    y: NDArray[np.int64]
    weights: NDArray[np.int64]
    templates: GridRows
    prompts: list[GridRows]


@dataclass
class Visit:
    """One visit of a class, and what was chosen there: prompt, copies, gain."""

    class_index: int
    choice: tuple[int, int, int] | None


def make_task(size: Size) -> Task:
    """Make embeddings that behave like CLIP's, and put them on the grid."""
    raw = clip_like(
        size.classes,
        size.shots,
        views=size.views,
        prompts=size.prompts,
        templates=80,
        dim=size.dim,
        confusion=size.confusion,
    )
    n = len(raw.labels) * size.views
    prompts = []
    while raw.prompts:  # one class at a time, so that both kinds never stand side by side
        prompts.append(to_grid(raw.prompts.pop(0)))
    return Task(
        to_grid(raw.views).reshape(n, -1),
        np.repeat(raw.labels, size.views),
        weights_to_grid(np.ones(n), n),
        to_grid(raw.templates),
        prompts,
    )
