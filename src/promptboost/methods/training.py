"""What methods that learn by gradients share: batches of cached rows, and the loss on them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError
from promptboost.methods.pictures import FewShotSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["TrainingRows", "cosine_rate"]


@dataclass(frozen=True)
class TrainingRows:
    """The rows of the pictures and their crops, ready for torch.

    Attributes
    ----------
    views : tensor, shape (n, 1 + V, D)
        Rows of length one.
    labels : tensor of int, shape (n,)
        Class of each picture.
    scale : float
        The encoder's own factor on cosines.
    """

    views: "Tensor"
    labels: "Tensor"
    scale: float

    @classmethod
    def of(cls, shots: FewShotSet, encoder: Encoder, device: "torch.device") -> Self:
        """Take the rows of a few-shot set."""
        import torch

        if len(shots.labels) == 0:
            raise LabelError("there are no pictures to learn from")
        views = np.array(shots.pictures.views(encoder), dtype=np.float32)
        labels = np.array(shots.labels, dtype=np.int64)
        return cls(
            torch.from_numpy(views).to(device),
            torch.from_numpy(labels).to(device),
            encoder.logit_scale,
        )

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple["Tensor", "Tensor"]]:
        """Give rows and labels of one epoch: each picture once, as one of its views at random.

        An incomplete last batch is left out, unless it is the only one: its few pictures would
        count more than the others.
        """
        import torch

        count = len(self.labels)
        order = rng.permutation(count)
        views = rng.integers(self.views.shape[1], size=count)
        for begin in range(0, max(count - size, 0) + 1, size):
            one = torch.from_numpy(order[begin : begin + size]).to(self.labels.device)
            view = torch.from_numpy(views[begin : begin + size]).to(self.labels.device)
            yield self.views[one, view], self.labels[one]

    def loss(self, class_rows: "Tensor", rows: "Tensor", labels: "Tensor") -> "Tensor":
        """Give the cross-entropy of the encoder's own softmax."""
        import torch

        return torch.nn.functional.cross_entropy(self.scale * rows @ class_rows.T, labels)

    def whole_loss(self, class_rows: "Tensor") -> float:
        """Give the mean loss over all pictures and all their views."""
        import torch

        with torch.no_grad():
            flat = self.views.flatten(0, 1)
            labels = self.labels.repeat_interleave(self.views.shape[1])
            return float(self.loss(class_rows.detach(), flat, labels))


def cosine_rate(epoch: int, epochs: int, rate: float, first: float) -> float:
    """Give the learning rate of an epoch: `first` in the first one, then half a cosine down to 0.

    Examples
    --------
    >>> [round(cosine_rate(e, 4, 1.0, 0.01), 3) for e in range(4)]
    [0.01, 1.0, 0.854, 0.5]
    """
    return first if epoch == 0 else rate * (1 + float(np.cos(np.pi * (epoch - 1) / epochs))) / 2
