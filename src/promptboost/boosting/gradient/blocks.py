"""Class blocks: a composition split by classes, which limits memory.

Banks, prompts and logits belong to a class. Classes interact only through one number per row, the
log-sum-exp of their logits. So blocks of classes exchange these numbers and nothing else, and the
products of rows and directions are needed for one block at a time.
"""

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.compiled import compiled_any_order, in_threads, multiply
from promptboost.boosting.composition import encoder_slices
from promptboost.boosting.gradient.banks import Banks, Held, move, penalty_of
from promptboost.boosting.gradient.linesearch import add_gradient, move_copies, sum_up
from promptboost.boosting.grid import block_of

Floats = NDArray[np.float32]
Values = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Classes per block. Another number would round sums differently.
CLASSES = 64
# Rows per chunk.
_ROWS = 256


class ClassBlock:
    """Banks of consecutive classes, and their logits for all rows.

    `own_rows` are the rows of these classes, `total` (n,) is the log-sum-exp of their logits.
    `logit_scales` are those of the encoders.
    """

    def __init__(self, banks: Banks, first: int, y: Labels, logit_scales: Floats) -> None:
        self.banks = banks
        self._first, self._y, self._scales = first, y, logit_scales
        self.own_rows = np.flatnonzero((y >= first) & (y < first + len(banks.held.means)))
        self._encoder_rows = encoder_slices(len(y), len(logit_scales))

    def set_rows(self, X: Floats) -> None:
        """Set the rows, again to use other views of the same images."""
        self._X = X
        self.logits = self._products(self.banks.held.means)
        self._update_total()

    def weigh(self, totals: Values, counted: Values, whole_pool: bool) -> Values:
        """Choose the exchange of each class among its candidates or all prompts; return the gaps.

        `totals` is the log-sum-exp over all classes, `counted` the weight of each row.
        """
        self._counted = counted
        self._find_gradient(totals)
        return (self.banks.read if whole_pool else self.banks.choose)(self.gradient)

    def search(self, outside: Values) -> int:
        """Move copies in each class in turn; return the number of classes that changed.

        `outside` is the log-sum-exp of all other blocks.
        """
        banks = self.banks
        changes = self._products(banks.held.directions)
        totals = np.logaddexp(outside, self.total)
        state = self.logits, totals, outside, self._counted, self._y
        moved = _search(*state, self._first, changes, banks.held, banks.rate, banks.copies)
        if moved:
            self._update_total()
        return moved

    def label_logits(self) -> Floats:
        """Return the logits of the true class, for the rows of these classes."""
        return self.logits[self._y[self.own_rows] - self._first, self.own_rows]

    def best(self) -> tuple[Floats, Labels]:
        """Return the highest logit of each row and its class."""
        return self.logits.max(axis=0), self._first + self.logits.argmax(axis=0)

    def _update_total(self) -> None:
        total = np.empty(len(self._y))
        in_threads(
            lambda rows: sum_up(self.logits, rows.start, rows.stop, total),
            len(total),
            self.logits.size,
            chunk=_ROWS,
        )
        self.total = total

    def _products(self, class_rows: Floats) -> Floats:
        """Return the scaled products, (K, n), of class rows (K, E·D) and all rows."""
        dim = self._X.shape[1]
        products = [
            multiply(block_of(class_rows, e, dim) * scale, self._X[rows])
            for e, (scale, rows) in enumerate(zip(self._scales, self._encoder_rows, strict=True))
        ]
        return products[0] if len(products) == 1 else np.concatenate(products, axis=1)

    def _find_gradient(self, totals: Values) -> None:
        """Compute the gradient of the loss with respect to the class rows, (K, E·D)."""
        K, dim = len(self.logits), self._X.shape[1]
        gradient = np.zeros((len(self._encoder_rows), K, dim), dtype=np.float32)
        state = self.logits, totals, self._counted, self._y, self._X, self._first

        def add(classes: slice) -> None:
            class_range = classes.start, classes.stop
            for out, rows in zip(gradient, self._encoder_rows, strict=True):
                for start in range(rows.start, rows.stop, _ROWS):
                    add_gradient(*state, class_range, (start, min(start + _ROWS, rows.stop)), out)

        in_threads(add, K, self.logits.size)
        gradient *= self._scales[:, None, None]
        self.gradient = np.ascontiguousarray(gradient.transpose(1, 0, 2)).reshape(K, -1)


@compiled_any_order
def _search(
    logits: Floats,
    totals: Values,
    outside: Values,
    weights: Values,
    labels: Labels,
    first: int,
    changes: Floats,
    held: Held,
    rate: float,
    copies: int,
) -> int:
    """Move copies in each class in turn; return the number of classes that changed."""
    moved = 0
    for k in range(len(changes)):
        source = held.sources[k]
        if source < 0:
            continue
        penalty = penalty_of(held, k, rate, copies)
        limit = held.copies[k, source]
        in_class = labels == first + k
        d = move_copies(
            logits, k, changes[k], totals, outside, weights, in_class, penalty, copies, limit
        )
        if d > 0:
            move(held, k, d, copies)
            moved += 1
    return moved
