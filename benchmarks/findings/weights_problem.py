"""The gradient composer's loss as a function of real weights, one for each prompt of each class.

With W_k = Σ_t a_kt t, the objective is

    Σ_i v_i · CE(softmax(β · x_i·Wᵀ), y_i)  +  strength / 2K · Σ_k Σ_t a_kt²

the same as in promptboost.boosting.gradient.compose with caution 0: strength is its spread, a its shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.sets import Floats, Words
from promptboost.boosting import Shots
from promptboost.boosting.grid import ROW_UNIT

Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Rows to learn from, and what their classes can be made of.

    Attributes
    ----------
    rows : array of float32, shape (n, D)
        Views of the images.
    labels : array of int64, shape (n,)
        Class index of each row.
    atoms : array of float32, shape (K, P, D)
        For each class the template to start with, then its prompts; zeros where it has fewer.
    present : array of bool, shape (K, P)
        Where there is a prompt.
    scale : float
        β, the logit scale.
    strength : float
        How much squared weights cost.
    """

    rows: Floats
    labels: NDArray[np.int64]
    atoms: Floats
    present: NDArray[np.bool_]
    scale: float
    strength: float = 0.0

    def start(self) -> Weights:
        """Return all weight to the template, as the composer does."""
        weights = np.zeros(self.present.shape)
        weights[:, 0] = 1.0
        return weights

    def of(self, rows: Floats, labels: NDArray[np.int64]) -> "Problem":
        """Pose the same problem on other rows."""
        return replace(self, rows=rows, labels=labels)

    def classes(self, weights: Weights) -> Floats:
        """Return the class rows W, shape (K, D)."""
        return np.asarray(np.matmul(weights.astype(np.float32)[:, None], self.atoms)[:, 0])

    def loss(self, classes: Floats) -> float:
        """Return the loss of class rows, without what weights cost."""
        return self._chances(classes)[0]

    def value(self, weights: Weights) -> float:
        """Return the objective."""
        return self.loss(self.classes(weights)) + self._cost(weights)

    def slope(self, weights: Weights) -> tuple[float, Weights]:
        """Return the objective and its gradient; the gradient is 0 where there is no prompt."""
        loss, chances = self._chances(self.classes(weights))
        chances[np.arange(len(chances)), self.labels] -= 1
        by_class = (chances.T @ self.rows) * np.float32(self.scale / len(chances))
        gradient = np.matmul(self.atoms, by_class[:, :, None])[:, :, 0].astype(np.float64)
        return loss + self._cost(weights), gradient + self.strength / len(self.atoms) * weights

    def _chances(self, classes: Floats) -> tuple[float, Floats]:
        """Return the loss, and the probability of each class for each row."""
        logits = self.rows @ (classes * np.float32(self.scale)).T
        logits -= logits.max(axis=1, keepdims=True)
        own = logits[np.arange(len(logits)), self.labels].astype(np.float64)
        chances = np.exp(logits, out=logits)
        totals = chances.sum(axis=1, dtype=np.float64)
        chances /= totals.astype(np.float32)[:, None]
        return float((np.log(totals) - own).mean()), chances

    def _cost(self, weights: Weights) -> float:
        return self.strength / (2 * len(self.atoms)) * float((weights**2).sum())


def pose(shots: Shots, words: Words, template: int, scale: float) -> Problem:
    """Pose the problem the composer has when it starts from a template with all views."""
    assert shots.views is not None
    views = shots.views.shape[1]
    blocks = [
        np.concatenate([words.grid.templates[k, template][None], prompts])
        for k, prompts in enumerate(words.grid.prompts)
    ]
    atoms, present = padded(blocks)
    return Problem(
        rows=_floats(shots.views.reshape(-1, shots.views.shape[2])),
        labels=shots.labels.repeat(views),
        atoms=_floats(atoms),
        present=present,
        scale=scale,
    )


def padded(blocks: Sequence[NDArray[np.generic]]) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
    """Put blocks of rows into one array, with zeros below the shorter ones.

    Examples
    --------
    >>> rows, present = padded([np.ones((2, 1)), np.ones((1, 1))])
    >>> rows[:, :, 0].tolist(), present.tolist()
    ([[1.0, 1.0], [1.0, 0.0]], [[True, True], [True, False]])
    """
    most = max(len(block) for block in blocks)
    together = np.zeros((len(blocks), most, blocks[0].shape[1]), dtype=blocks[0].dtype)
    present = np.zeros((len(blocks), most), dtype=np.bool_)
    for k, block in enumerate(blocks):
        together[k, : len(block)], present[k, : len(block)] = block, True
    return together, present


def _floats(rows: NDArray[np.generic]) -> Floats:
    return np.asarray(rows.astype(np.float32) * np.float32(1 / ROW_UNIT))
