"""What PromptSRC minimises, and how it averages what it learnt over the epochs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Seen", "SelfConsistency", "epoch_weights"]


@dataclass(frozen=True)
class Seen:
    """A batch as one pair of towers sees it: all rows have length one.

    Attributes
    ----------
    texts : torch.Tensor, shape (K, D)
        The classes.
    pictures : torch.Tensor, shape (n, D)
        The batch.
    """

    texts: "Tensor"
    pictures: "Tensor"


@dataclass(frozen=True)
class SelfConsistency:
    """Cross-entropy, and three costs of moving away from what the frozen towers say.

    The mean absolute difference of the text rows and that of the pictures' rows, each with a
    weight, and the divergence of the tuned from the frozen class probabilities, KL(frozen ‖ tuned),
    summed and divided by pictures × classes.

    Parameters
    ----------
    scale : float
        The encoder's factor on cosines.
    text_weight, image_weight : float
        Weights of the differences of rows.
    """

    scale: float
    text_weight: float
    image_weight: float

    def __call__(self, tuned: Seen, frozen: Seen, labels: "Tensor") -> "Tensor":
        """Give the sum of the four."""
        from torch.nn import functional

        logits = self.scale * tuned.pictures @ tuned.texts.T
        before = self.scale * frozen.pictures @ frozen.texts.T
        divergence = functional.kl_div(
            logits.log_softmax(dim=1), before.log_softmax(dim=1), reduction="sum", log_target=True
        )
        return (
            functional.cross_entropy(logits, labels)
            + self.text_weight * functional.l1_loss(tuned.texts, frozen.texts)
            + self.image_weight * functional.l1_loss(tuned.pictures, frozen.pictures)
            + divergence / logits.numel()
        )


def epoch_weights(epochs: int, mean: float, std: float) -> NDArray[np.float64]:
    """Weigh the prompts at the end of each epoch by a Gaussian over the epochs 1, 2, …; sum 1.

    Examples
    --------
    >>> epoch_weights(3, mean=2, std=1).round(3)
    array([0.274, 0.452, 0.274])
    """
    exponents = -0.5 * ((np.arange(1, epochs + 1) - mean) / std) ** 2
    # The largest becomes exp(0): a mean far outside the epochs does not leave zeros only.
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())
