"""What CoOp and PEZ share: class names behind learnt tokens, and the images they learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from promptboost.encoders import DifferentiableText
from promptboost.encoders.base import Encoder
from promptboost.errors import LabelError, SettingError
from promptboost.methods.base import FewShotSet
from promptboost.pool import fill

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TrainingRows:
    """The rows of the images and their crops, (n, 1 + V, D), as tensors, and the encoder's scale."""

    views: "Tensor"
    labels: "Tensor"
    scale: float

    @classmethod
    def of(cls, shots: FewShotSet, encoder: Encoder, device: "torch.device") -> Self:
        """Take the rows of a few-shot set."""
        import torch

        if len(shots.labels) == 0:
            raise LabelError("there are no images to learn from")
        views = torch.from_numpy(np.array(shots.images.views(encoder), dtype=np.float32))
        labels = torch.from_numpy(np.array(shots.labels, dtype=np.int64))
        return cls(views.to(device), labels.to(device), encoder.logit_scale)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple["Tensor", "Tensor"]]:
        """Return rows and labels of one epoch: each image once, as one of its views at random.

        An incomplete last batch is left out, unless it is the only one: its images would count more.
        """
        import torch

        count = len(self.labels)
        order = rng.permutation(count)
        views = rng.integers(self.views.shape[1], size=count)
        for begin in self._begins(size):
            one = torch.from_numpy(order[begin : begin + size]).to(self.labels.device)
            view = torch.from_numpy(views[begin : begin + size]).to(self.labels.device)
            yield self.views[one, view], self.labels[one]

    def steps(self, size: int) -> int:
        """Return how many batches an epoch has."""
        return len(self._begins(size))

    def _begins(self, size: int) -> range:
        return range(0, max(len(self.labels) - size, 0) + 1, size)

    def loss(self, class_rows: "Tensor", rows: "Tensor", labels: "Tensor") -> "Tensor":
        """Return the cross-entropy of the encoder's own softmax."""
        import torch

        return torch.nn.functional.cross_entropy(self.scale * rows @ class_rows.T, labels)

    def whole_loss(self, class_rows: "Tensor") -> float:
        """Return the mean loss over all images and all their views."""
        import torch

        with torch.no_grad():
            flat = self.views.flatten(0, 1)
            labels = self.labels.repeat_interleave(self.views.shape[1])
            return float(self.loss(class_rows.detach(), flat, labels))


def cosine_rate(epoch: int, epochs: int, rate: float, first: float) -> float:
    """Return the learning rate of an epoch: `first` in the first one, then half a cosine down to 0."""
    return first if epoch == 0 else rate * (1 + float(np.cos(np.pi * (epoch - 1) / epochs))) / 2


def ending(name: str) -> str:
    """Return what follows the learnt tokens of a class: its name and a full stop."""
    return fill("{}.", name)


@dataclass(frozen=True)
class PromptedClasses:
    """The prompts ``[start] [learnt tokens] [class name] [.] [end]`` of all classes.

    `endings` are the token embeddings of each distinct class name and what follows, (U, S, d), padded
    to the longest; `lengths` says how many count, and `which` which one a class has.
    """

    tower: DifferentiableText
    start: "Tensor"
    endings: "Tensor"
    lengths: "Tensor"
    which: "Tensor"

    @classmethod
    def of(cls, tower: DifferentiableText, class_names: Sequence[str], tokens: int) -> Self:
        """Tokenise the class names; raise a SettingError if the tower does not read so many tokens."""
        import torch

        texts = list(dict.fromkeys(map(ending, class_names)))
        tokenized = ([*tower.tokenize(text), *tower.end] for text in texts)
        tokens_of = [torch.tensor(ids, dtype=torch.long) for ids in tokenized]
        lengths = torch.tensor([len(ids) for ids in tokens_of])
        room = tower.context_length - len(tower.start) - int(lengths.max())
        if tokens > room:
            longest = texts[int(lengths.argmax())]
            raise SettingError(
                f"{tokens} learnt tokens and {longest!r} are more than the {tower.context_length} "
                f"tokens this encoder reads; at most {room} can be learnt"
            )
        vocabulary = tower.vocabulary.float()
        ids = torch.nn.utils.rnn.pad_sequence(tokens_of, batch_first=True).to(vocabulary.device)
        which = torch.tensor([texts.index(ending(name)) for name in class_names])
        return cls(
            tower,
            vocabulary[list(tower.start)],
            vocabulary[ids],
            lengths.to(vocabulary.device),
            which.to(vocabulary.device),
        )

    def rows(self, learnt: "Tensor") -> "Tensor":
        """Return one row of length one a class, (K, D), differentiable in the learnt tokens (M, d)."""
        import torch

        beginning = torch.cat([self.start, learnt])
        return self.tower.encode(beginning, self.endings, self.lengths)[self.which]


def nearest(vectors: "Tensor", vocabulary: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Return for each vector the row of a vocabulary, of length one, with the highest cosine, and that."""
    import torch

    with torch.no_grad():
        units = torch.nn.functional.normalize(vectors, dim=-1)
        best: Any = (units @ vocabulary.T).max(dim=1)
    return best.indices, best.values
