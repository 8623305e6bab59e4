"""The logistic loss of images beside the logits of a text, with a penalty on what is added to them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import in_threads, multiply

Floats = NDArray[np.floating]
Indices = NDArray[np.int64]

#: Rows whose probabilities stand in memory at once.
ROWS = 8192
# Rows that stand in memory by columns too: without that each pass turns them anew.
_KEPT_BYTES = 2**26
# Steps that the solver remembers, and takes at most.
_MEMORY, _STEPS = 8, 100
# Less than this no text is taken to be unsure: the first steps would be too long.
_LEAST_UNSURE = 0.05


@dataclass(frozen=True)
class PenalizedLoss:
    """Images beside the logits of a text, and the penalty: all that a residual V depends on."""

    X: Floats  # (n, 1 + V, D)
    y: Indices
    counted: Floats  # (n,), one on average
    text: Floats  # (K, D), with the factor in it
    metric: Floats  # (D, D)
    _inverses: dict[float, Floats] = field(default_factory=dict)  # of the penalty asked for last

    def _blocks(self) -> Iterator[tuple[Floats, Floats, Indices, Floats]]:
        """Yield the rows, few enough at a time, their columns, their labels, and how much each counts."""
        views, size = self.X.shape[1], self._images_at_once
        for number, start in enumerate(range(0, len(self.X), size)):
            part = slice(start, start + size)
            shares = (self.counted[part] / views).repeat(views)
            rows = self.X[part].reshape(-1, self.X.shape[2])
            columns = self._columns[number] if self._columns else np.ascontiguousarray(rows.T)
            yield rows, columns, self.y[part].repeat(views), shares.astype(self.X.dtype)

    @property
    def _images_at_once(self) -> int:
        return max(ROWS // int(self.X.shape[1]), 1)

    @cached_property
    def _columns(self) -> list[Floats]:
        """The columns of all rows, block by block; none where they are many, and made when used."""
        if self.X.nbytes > _KEPT_BYTES:
            return []
        parts = range(0, len(self.X), self._images_at_once)
        blocks = (self.X[start : start + self._images_at_once] for start in parts)
        return [np.ascontiguousarray(rows.reshape(-1, rows.shape[2]).T) for rows in blocks]

    def objective(self, V: Floats, penalty: float) -> tuple[float, Floats]:
        """Return the loss with the penalty, and its gradient (K, D)."""
        pull = multiply(V, self.metric) * V.dtype.type(penalty)
        class_rows = self.text + V
        loss, gradient = _inner(V, pull) / 2, pull
        for rows, columns, labels, shares in self._blocks():
            missing = multiply(class_rows, rows)
            loss += float(shares @ _softened(missing, labels))
            missing *= shares
            gradient += multiply(missing, columns)
        return loss, gradient

    @cached_property
    def curvature(self) -> NDArray[np.float64]:
        """The covariance of the rows, (D, D), where all are as unsure as the text is of the images."""
        rows = self.X.reshape(-1, self.X.shape[2])
        K = len(self.text)
        chances = multiply(self.text, np.ascontiguousarray(self.X[:, 0]))
        _softened(chances, self.y)
        chances[self.y, np.arange(len(self.y))] += 1
        unsure = max(1 - float((chances**2).sum()) / len(self.y), _LEAST_UNSURE)
        return np.asarray(rows.T @ rows * (unsure / K / self.X.shape[1]), dtype=np.float64)

    def inverse_curvature(self, penalty: float) -> Floats:
        """Return the inverse, (D, D), of the curvature with the penalty.

        Distances are measured with it, so that the first steps are about as long as they should be whatever
        the penalty.
        """
        if penalty not in self._inverses:
            self._inverses.clear()
            inverse = np.linalg.inv(self.curvature + self.metric * penalty)
            self._inverses[penalty] = inverse.astype(self.X.dtype)
        return self._inverses[penalty]

    def solve(
        self,
        penalty: float,
        *,
        start: Floats | None = None,
        tolerance: float = 3e-3,
    ) -> Floats:
        """Return the V of least objective, by L-BFGS; the gradient falls to a share of its first length.

        Lengths are measured with the inverse curvature.
        """
        inverse = self.inverse_curvature(penalty)
        V = np.zeros_like(self.text)
        loss, gradient = self.objective(V, penalty)
        newton = multiply(gradient, inverse)  # which is symmetric
        enough = tolerance**2 * _inner(gradient, newton)
        if start is not None:
            V = start
            loss, gradient = self.objective(V, penalty)
            newton = multiply(gradient, inverse)
        moves = _Moves(inverse)
        for _ in range(_STEPS):
            if _inner(gradient, newton) <= enough:
                break
            step = -moves.times_inverse_hessian(gradient)
            slope, size = _inner(step, gradient), 1.0
            while True:
                tried = V + step * V.dtype.type(size)
                new_loss, new_gradient = self.objective(tried, penalty)
                # The last term: losses are equal to rounding before gradients are.
                if new_loss <= loss + 1e-4 * size * slope + 1e-7 * abs(loss) or size < 1e-4:
                    break
                size /= 2
            new_newton = multiply(new_gradient, inverse)
            moves.add(tried - V, new_gradient - gradient, new_newton - newton)
            V, loss, gradient, newton = tried, new_loss, new_gradient, new_newton
        return V


def _softened(logits: Floats, labels: Indices) -> NDArray[np.float64]:
    """Turn logits, (K, n), into probabilities minus what they should be; return the log losses.

    In place, a few rows at a time, so that they stay in cache.
    """
    losses = np.empty(len(labels))

    def work(rows: slice) -> None:
        some, label = logits[:, rows], labels[rows]
        own = label, np.arange(len(label))
        some -= some.max(axis=0)
        true = some[own].astype(np.float64)
        np.exp(some, out=some)
        totals = some.sum(axis=0)
        losses[rows] = np.log(totals.astype(np.float64)) - true
        some /= totals
        some[own] -= 1

    in_threads(work, len(labels), 10 * logits.size, chunk=512)
    return losses


def _inner(a: Floats, b: Floats) -> float:
    """Return the sum of products, without BLAS: its threads spin while other processes hold the cores."""
    return float(np.multiply(a, b).sum(dtype=np.float64))


class _Moves:
    """The solver's last moves, and what is known of the inverse Hessian by them."""

    def __init__(self, inverse: Floats) -> None:
        self._inverse = inverse
        self._last: list[tuple[Floats, Floats, float]] = []
        self._scale = 1.0

    def add(self, move: Floats, change: Floats, newton_change: Floats) -> None:
        """Remember a move, how it changed the gradient, and that times the inverse curvature."""
        along, length = _inner(move, change), _inner(change, newton_change)
        if along > 0 and length > 0:  # as both are but for rounding
            self._last = [*self._last[1 - _MEMORY :], (move, change, 1 / along)]
            self._scale = along / length

    def times_inverse_hessian(self, gradient: Floats) -> Floats:
        """Multiply a gradient by the inverse Hessian: the two loops of L-BFGS."""
        direction = gradient.copy()
        taken = []
        for move, change, rate in reversed(self._last):
            taken.append(rate * _inner(move, direction))
            direction -= change * direction.dtype.type(taken[-1])
        direction = multiply(direction, self._inverse)
        direction *= direction.dtype.type(self._scale)
        for (move, change, rate), part in zip(self._last, reversed(taken), strict=True):
            direction += move * direction.dtype.type(part - rate * _inner(change, direction))
        return direction
