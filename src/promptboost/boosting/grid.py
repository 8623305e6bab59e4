"""Fixed-point embeddings and weights, which make the search exact.

A greedy search that flips predictions one by one meets many ties: equal weights, repeated prompts, equal
scores. In floating point, the outcome of a tie depends on the order of summation, and so on the BLAS, the
number of threads and the machine. Here all sums are over integers:

* A unit row is rounded to multiples of ``1 / 32767`` and stored as int16. A cosine is then an integer
  multiple of ``1 / 32767²`` that fits in 31 bits, as does every partial sum (Cauchy-Schwarz). Rounding
  changes a cosine by about 1e-5, as half precision does.
* The score of a bank is stored as a sum over its copies and their number. Scores of two classes are
  compared by cross-multiplication in int64, never divided.
* A sample weight is a multiple of ``2**-36`` of the total.

With several encoders, the rows of each are a block of columns, and cosines are computed within a block.

So the fast search provably chooses what a plain search chooses, and a greedy fit on the same rows gives
the same text on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import EmbeddingError, LabelError, PoolError, WeightError

GridRows = NDArray[np.int16]
DType = TypeVar("DType", bound=np.generic)

ROW_UNIT = 2**15 - 1
COSINE_UNIT = ROW_UNIT**2
WEIGHT_UNIT = 2**36
# With at most 2**15 copies per bank, cross-multiplied scores stay below 2**61 and fit an int64.
MAX_BANK_SIZE = 2**15

_LENGTH_TOLERANCE = 1e-2


def to_grid(rows: ArrayLike, *, name: str = "rows", encoders: int = 1) -> GridRows:
    """Round unit rows, shape (..., D), to the grid.

    With several `encoders`, a row has one unit block per encoder, all of equal width. `name` describes
    the rows in errors.
    """
    values = np.asarray(rows)
    if encoders > 1 and values.shape[-1] % encoders:
        raise EmbeddingError(
            f"{name}: {values.shape[-1]} columns cannot be divided into blocks of {encoders} encoders"
        )
    if values.dtype == np.int16:
        return np.ascontiguousarray(values)
    if values.dtype.kind != "f":
        raise EmbeddingError(
            f"{name}: expected floating-point rows, got {values.dtype}; convert with .astype('float32')"
        )
    if values.ndim < 2 or values.shape[-1] == 0:
        raise EmbeddingError(f"{name}: expected an array of rows, got shape {values.shape}")
    if not np.isfinite(values).all():
        where = tuple(int(j) for j in np.argwhere(~np.isfinite(values))[0][:-1])
        raise EmbeddingError(f"{name}: row {_index(where)} has a value that is not finite")
    shape = values.shape
    if encoders > 1:
        values = values.reshape(*shape[:-1], encoders, shape[-1] // encoders)
    lengths = np.sqrt(np.einsum("...d,...d->...", values, values, dtype=np.float64))
    off = np.abs(lengths - 1.0) > _LENGTH_TOLERANCE
    if off.any():
        where = tuple(int(j) for j in np.argwhere(off)[0])
        advice = "divide each row by its length first (promptboost.encoders.unit_rows does)"
        if lengths[where] == 0:
            advice = "a row of zeros has no direction: remove it or embed it again"
        raise EmbeddingError(
            f"{name}: row {_index(where)} has length {lengths[where]:.4g}, not 1; {advice}"
        )
    unit = values / lengths[..., None].astype(np.float32)
    return np.ascontiguousarray(np.rint(unit * ROW_UNIT).astype(np.int16)).reshape(shape)


def from_grid(rows: GridRows) -> NDArray[np.float32]:
    """Return rows on the grid as floats again."""
    values = rows.astype(np.float32)
    values *= np.float32(1 / ROW_UNIT)  # in place, to save memory
    return values


def stacked(rows: GridRows, encoders: int) -> GridRows:
    """Turn rows (n, E·D) of several encoders into (E·n, D): all of the first encoder, then of the next.

    Composers treat each encoder as another view of an image.
    """
    if encoders == 1:
        return np.ascontiguousarray(rows)
    blocks = rows.reshape(len(rows), encoders, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(blocks).reshape(encoders * len(rows), -1)


def block_of(rows: NDArray[DType], number: int, dim: int) -> NDArray[DType]:
    """Return the columns of one encoder, (..., D) of (..., E·D)."""
    if rows.shape[-1] == dim:
        return rows
    return np.ascontiguousarray(rows[..., number * dim : (number + 1) * dim])


def weights_to_grid(weights: ArrayLike, count: int) -> NDArray[np.int64]:
    """Round sample weights to integers with a sum of about ``WEIGHT_UNIT``."""
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (count,):
        raise WeightError(
            f"expected {count} sample weights, one per image, got shape {values.shape}"
        )
    if not np.isfinite(values).all():
        raise WeightError("sample weights must be finite")
    if (values < 0).any():
        raise WeightError(
            f"sample weight {int(np.argmin(values))} is negative ({values.min():.4g})"
        )
    if values.max(initial=0.0) <= 0:
        raise WeightError("all sample weights are zero")
    units: NDArray[np.int64] = np.rint(values / values.sum() * WEIGHT_UNIT).astype(np.int64)
    return units


def _index(where: tuple[int, ...]) -> str:
    return str(where[0]) if len(where) == 1 else str(where)


@dataclass(frozen=True)
class Shots:
    """Labeled images: rows (n, D), with at least one image of every class from 0 to K − 1.

    Views, (n, V, D), are random crops and flips of each image. Weak classifiers are composed on views;
    sample weights are updated on the originals. The rows of several encoders are concatenated, (n, E·D).
    In cross-validation, the images of one class and group are held out together.
    """

    originals: GridRows
    labels: NDArray[np.int64]
    views: GridRows | None = None
    groups: NDArray[np.int64] | None = None

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
        view_rows = to_grid(views, name="views", encoders=encoders)
        if view_rows.ndim != 3 or view_rows.shape[::2] != grid.shape or view_rows.shape[1] == 0:
            raise EmbeddingError(
                f"views: expected shape ({grid.shape[0]}, V, {grid.shape[1]}) with V >= 1 views of "
                f"each image, got {view_rows.shape}"
            )
        return cls(grid, index, view_rows)

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class GridPool:
    """Embedded templates and prompts.

    `templates`, (K, number of templates, D), are filled with the name of each class. `prompts` has the
    pool of each class, (P_k, D), in which duplicates are allowed. The rows of several encoders are
    concatenated; `scales` are their logit scales relative to that of the first. `skipped` is the number of
    leading prompts of each class that the gradient composer leaves out; it is empty if there are none.
    `merges` is whether nearly equal prompts of a bank are merged, as sentences are; examples are not.
    """

    templates: GridRows
    prompts: tuple[GridRows, ...]
    scales: tuple[float, ...] = (1.0,)
    skipped: tuple[int, ...] = ()
    merges: bool = True

    @classmethod
    def from_rows(
        cls,
        templates: ArrayLike,
        prompts: Sequence[ArrayLike],
        scales: tuple[float, ...] = (1.0,),
        skipped: tuple[int, ...] = (),
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
        return cls(grid, rows, scales, skipped)

    @property
    def encoders(self) -> int:
        """Number of encoders."""
        return len(self.scales)

    @property
    def candidates(self) -> tuple[GridRows, ...]:
        """The prompts of each class that the gradient composer chooses from."""
        if not self.skipped:
            return self.prompts
        return tuple(P[start:] for P, start in zip(self.prompts, self.skipped, strict=True))

    def of_classes(self, classes: Sequence[int]) -> "GridPool":
        """Return the pool of some classes."""
        return replace(
            self,
            templates=self.templates[np.asarray(classes)],
            prompts=tuple(self.prompts[k] for k in classes),
            skipped=tuple(self.skipped[k] for k in classes) if self.skipped else (),
        )

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
        raise LabelError(f"expected {count} labels, one per image, got shape {index.shape}")
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
