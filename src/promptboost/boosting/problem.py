"""Few-shot images and a prompt pool as checked rows on the grid: what boosting works on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting.grid import GridRows, to_grid
from promptboost.errors import EmbeddingError, LabelError, PoolError

if TYPE_CHECKING:
    from promptboost.boosting.gradient.blocks import Keeper


@dataclass(frozen=True)
class Shots:
    """The labelled images: rows (n, D), of every class from 0 to K − 1 at least one.

    Views, (n, V, D), are random crops and flips of each image. Weak classifiers are composed on these,
    sample weights updated on the originals. The rows of several encoders are side by side: see
    ``boosting.grid.side_by_side``.
    """

    originals: GridRows
    labels: NDArray[np.int64]
    views: GridRows | None = None

    @classmethod
    def from_rows(
        cls,
        originals: ArrayLike,
        labels: ArrayLike,
        views: ArrayLike | None = None,
        encoders: int = 1,
    ) -> "Shots":
        """Check unit rows and labels, and put them on the grid.

        Examples
        --------
        >>> Shots.from_rows([[1.0, 0.0], [0.0, 1.0]], [0, 1]).labels
        array([0, 1])
        >>> Shots.from_rows([[1.0, 0.0], [0.0, 1.0]], [0, 0])
        Traceback (most recent call last):
            ...
        promptboost.errors.LabelError: only one class has images; at least two are needed
        """
        grid = to_grid(originals, name="images", encoders=encoders)
        if grid.ndim != 2:
            raise EmbeddingError(f"images: expected shape (n, D), got {grid.shape}")
        index = _checked_labels(labels, len(grid))
        if views is None:
            return cls(grid, index)
        seen = to_grid(views, name="views", encoders=encoders)
        if seen.ndim != 3 or seen.shape[::2] != grid.shape or seen.shape[1] == 0:
            raise EmbeddingError(
                f"views: expected shape ({grid.shape[0]}, V, {grid.shape[1]}) with V >= 1 views of "
                f"each image, got {seen.shape}"
            )
        return cls(grid, index, seen)

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class GridPool:
    """The prompts to choose from.

    The shared templates, (K, number of templates, D), are filled with each class's name, in one order
    for all classes. The pool of each class, (P_k, D), may have another size, and duplicates. The rows of
    several encoders are side by side, as those of the images; `scales` has what each one multiplies
    cosines with, as a multiple of what the first does. A `keeper` keeps class blocks elsewhere than in this
    process, where the prompts can be read too.
    """

    templates: GridRows
    prompts: tuple[GridRows, ...]
    scales: tuple[float, ...] = (1.0,)
    keeper: "Keeper | None" = None

    @classmethod
    def from_rows(
        cls,
        templates: ArrayLike,
        prompts: Sequence[ArrayLike],
        scales: tuple[float, ...] = (1.0,),
    ) -> "GridPool":
        """Check unit rows and put them on the grid, one class at a time.

        Examples
        --------
        >>> pool = GridPool.from_rows([[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.6, 0.8]], [[0.8, 0.6]]])
        >>> pool.templates.shape, [len(rows) for rows in pool.prompts]
        ((2, 1, 2), [1, 1])
        """
        first = np.asarray(templates)
        if first.ndim != 3 or 0 in first.shape:
            raise PoolError(
                f"templates: expected shape (K, number, D) with at least one, got {first.shape}"
            )
        grid = to_grid(first, name="templates", encoders=len(scales))
        if len(prompts) != len(grid):
            raise PoolError(f"templates are for {len(grid)} classes, prompts for {len(prompts)}")
        rows = tuple(
            _checked_prompts(k, block, grid.shape[2], len(scales))
            for k, block in enumerate(prompts)
        )
        return cls(grid, rows, scales)

    @property
    def encoders(self) -> int:
        """Number of encoders whose rows are side by side."""
        return len(self.scales)

    def check_against(self, shots: Shots) -> None:
        """Check that images and prompts have the same classes and the same encoder."""
        K, dim = len(self.prompts), self.templates.shape[2]
        if shots.originals.shape[1] != dim:
            raise EmbeddingError(
                f"images have {shots.originals.shape[1]} dimensions, prompts {dim}: "
                "embed both with the same encoder"
            )
        if shots.n_classes > K:
            raise LabelError(
                f"label {shots.n_classes - 1} has no prompts: the pool has {K} classes"
            )
        if shots.n_classes < K:
            raise LabelError(
                f"class {shots.n_classes} has prompts but no images; drop it or add one"
            )


def _checked_labels(labels: ArrayLike, count: int) -> NDArray[np.int64]:
    index = np.asarray(labels)
    if index.shape != (count,):
        raise LabelError(f"expected {count} labels, one an image; got shape {index.shape}")
    if index.dtype.kind not in "iu":
        raise LabelError(f"expected class indices 0 … K − 1, got {index.dtype}")
    if count == 0:
        raise LabelError("there are no images")
    if index.min() < 0:
        raise LabelError(f"label {int(index.min())} is negative; labels are 0 … K − 1")
    present = np.bincount(index) > 0
    if present.sum() < 2:
        raise LabelError("only one class has images; at least two are needed")
    if not present.all():
        raise LabelError(f"class {int(np.argmin(present))} has no images; drop it or add one")
    return np.ascontiguousarray(index, dtype=np.int64)


def _checked_prompts(k: int, block: ArrayLike, dim: int, encoders: int = 1) -> GridRows:
    rows = np.asarray(block)
    if rows.size == 0:
        raise PoolError(f"class {k} has no prompts in the pool")
    grid = to_grid(rows, name=f"prompts of class {k}", encoders=encoders)
    if grid.ndim != 2 or grid.shape[1] != dim:
        raise EmbeddingError(
            f"prompts of class {k}: expected shape (P, {dim}) as for the templates, got {rows.shape}"
        )
    return grid
