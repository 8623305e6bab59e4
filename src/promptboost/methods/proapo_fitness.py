"""How good prompts are: accuracy and cross-entropy on the pictures that are learnt from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import LabelError

__all__ = ["Fitness", "Measured", "unit"]

Rows = NDArray[np.float32]

# The same in all settings that were released.
_LOSS_WEIGHT = 10.0
# Candidates are measured together, as many as fit into so many scores.
_SCORES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Measured:
    """What classifiers achieve on the training pictures; one number each.

    Attributes
    ----------
    fitness : array of float64
        What the search raises.
    top1, top5 : array of float64
        Percent of the pictures.
    loss : array of float64
        Mean cross-entropy.
    """

    fitness: NDArray[np.float64]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    loss: NDArray[np.float64]


class Fitness:
    """The pictures, and what counts.

    Parameters
    ----------
    pictures : array of float32, shape (n, D)
        Unit rows.
    labels : array of int, shape (n,)
        Their classes.
    scale : float
        The encoder's factor on cosines.
    top1_weight, top5_weight : float
        What a percent is worth, where a unit of cross-entropy is worth 10.

    Attributes
    ----------
    measured : int
        How many classifiers were measured so far.

    Examples
    --------
    >>> pictures = np.eye(2, dtype=np.float32)
    >>> fitness = Fitness(pictures, np.array([0, 1]), 1.0, top1_weight=0.1, top5_weight=0.1)
    >>> fitness.of(np.eye(2, dtype=np.float32)).top1
    array([100.])
    """

    def __init__(
        self,
        pictures: Rows,
        labels: NDArray[np.int64],
        scale: float,
        *,
        top1_weight: float,
        top5_weight: float,
    ) -> None:
        if not len(labels):
            raise LabelError("there are no pictures to learn from")
        self.pictures = pictures
        self.labels = labels
        self.scale = scale
        self.top1_weight = top1_weight
        self.top5_weight = top5_weight
        self.measured = 0

    def scores(self, rows: Rows) -> Rows:
        """Score the pictures with class rows of any length: shape (n, K)."""
        return np.asarray(self.pictures @ unit(rows).T * np.float32(self.scale))

    def of(self, rows: Rows) -> Measured:
        """Measure one classifier, shape (K, D), or several, shape (B, K, D)."""
        several = rows if rows.ndim == 3 else rows[None]
        return self.of_changed(several[0], np.arange(several.shape[1]), several)

    def of_changed(self, base: Rows, classes: NDArray[np.intp], rows: Rows) -> Measured:
        """Measure classifiers that differ from one in a few classes.

        Parameters
        ----------
        base : array of shape (K, D)
            The class rows that all have in common.
        classes : array of int, shape (g,)
            Where they differ.
        rows : array of shape (B, g, D)
            What each has there.
        """
        common = self.scores(base)
        parts = max(1, -(-len(rows) * common.size // _SCORES_AT_ONCE))
        chunks = np.array_split(rows, parts) if len(rows) else []
        found = [self._chunk(common, classes, chunk) for chunk in chunks if len(chunk)]
        loss, rank_below_1, rank_below_5 = (
            np.concatenate([f[i] for f in found]) if found else np.zeros(0) for i in range(3)
        )
        self.measured += len(rows)
        top1, top5 = 100 * rank_below_1, 100 * rank_below_5
        fitness = self.top1_weight * top1 + self.top5_weight * top5 - _LOSS_WEIGHT * loss
        return Measured(fitness, top1, top5, loss)

    def _chunk(
        self, common: Rows, classes: NDArray[np.intp], rows: Rows
    ) -> tuple[NDArray[np.float64], ...]:
        b, g, _ = rows.shape
        n = len(common)
        scores = np.repeat(common[None], b, axis=0)
        changed = self.scores(rows.reshape(b * g, -1)).reshape(n, b, g)
        scores[:, :, classes] = changed.transpose(1, 0, 2)
        true = scores[:, np.arange(n), self.labels][:, :, None]
        losses = _log_sum_exp(scores) - true[:, :, 0]
        # Of equal scores the first class wins, as it does when pictures are classified.
        before = np.arange(scores.shape[2]) < self.labels[:, None]
        ranks = ((scores > true) | ((scores == true) & before)).sum(axis=2)
        return (
            losses.mean(axis=1, dtype=np.float64),
            (ranks < 1).mean(axis=1),
            (ranks < 5).mean(axis=1),
        )


def unit(rows: Rows) -> Rows:
    """Scale sums of rows to length one."""
    lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
    return np.asarray(rows / np.maximum(lengths, np.float32(1e-12)))


def _log_sum_exp(scores: Rows) -> Rows:
    highest = scores.max(axis=2)
    return np.asarray(highest + np.log(np.exp(scores - highest[:, :, None]).sum(axis=2)))
