"""CoOp: context vectors before the class names, learnt by gradients (Zhou et al. 2022)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from promptboost.encoders import DifferentiableText, open_tower
from promptboost.encoders.base import Encoder
from promptboost.errors import SettingError
from promptboost.methods.base import FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import LinearClassifier
from promptboost.methods.learnt_tokens import PromptedClasses, TrainingRows, cosine_rate, nearest
from promptboost.pool import PromptPool

if TYPE_CHECKING:
    from torch import Tensor

_SPREAD = 0.02
_FIRST_RATE = 1e-5
_MOMENTUM = 0.9
_DECAY = 5e-4


@dataclass(frozen=True)
class CoOp(Method):
    """Context vectors shared by all classes, with the class name at the end; re-implemented.

    Plain stochastic gradient descent with the authors' settings, in single precision. They crop
    each image at random whenever it is seen; here a view is drawn among the cached ones (the
    image itself and its crops). The model of the last step is kept. As theirs does, an epoch leaves
    an incomplete last batch out.

    Parameters
    ----------
    context_tokens, batch : int
        How many vectors, and images in a step.
    epochs : int or None
        None for the authors' choice: 50 with one image a class, 100 below eight, then 200; the
        class with the most images counts. (They train 50 epochs on ImageNet whatever the shots.)
    learning_rate : float
        Of the second epoch; the first has 0.00001, and from the second on it falls to zero.
    seed : int
        Decides the first vectors, the order of the images and their views.
    """

    name: ClassVar[str] = "coop"
    group: ClassVar[Group] = Group.GRADIENT
    carries_over: ClassVar[Transfer] = Transfer.EMULATED

    context_tokens: int = 16
    epochs: int | None = None
    batch: int = 32
    learning_rate: float = 0.002
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("context_tokens", "batch", "epochs")
        check_numbers(self, counts=counts, positive=("learning_rate",))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that gradients go through the encoder, and that it reads so many tokens."""
        PromptedClasses.of(open_tower(encoder), shots.class_names, self.context_tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Learn the context vectors."""
        import torch

        tower = open_tower(encoder)
        classes = PromptedClasses.of(tower, shots.class_names, self.context_tokens)
        data = TrainingRows.of(shots, encoder, classes.start.device)
        context, losses = self._learn(classes, data, self._epochs(shots))
        with torch.no_grad():
            rows = encoder.logit_scale * classes.rows(context)
        return LinearClassifier(
            self.origin(shots, encoder),
            rows.cpu().numpy(),
            np.zeros(len(rows), dtype=np.float32),
            details={"loss_by_epoch": losses, "nearest_words": _nearest_words(context, tower)},
            arrays={"context": context.cpu().numpy()},
        )

    def _epochs(self, shots: FewShotSet) -> int:
        if self.epochs is not None:
            return self.epochs
        # Not the mean: a class with an image too few would halve the training of all.
        a_class = int(np.bincount(shots.labels).max())
        return 50 if a_class < 2 else 100 if a_class < 8 else 200

    def _learn(
        self, classes: PromptedClasses, data: TrainingRows, epochs: int
    ) -> tuple["Tensor", list[float]]:
        """Descend; return the vectors and the mean loss of each epoch."""
        import torch

        width = classes.start.shape[1]
        draw = torch.Generator().manual_seed(self.seed)
        first = _SPREAD * torch.randn(self.context_tokens, width, generator=draw)
        context = first.to(classes.start.device).requires_grad_()
        optimiser = torch.optim.SGD([context], momentum=_MOMENTUM, weight_decay=_DECAY)
        rng = np.random.default_rng(self.seed)
        losses = []
        for epoch in range(epochs):
            rate = cosine_rate(epoch, epochs, self.learning_rate, _FIRST_RATE)
            optimiser.param_groups[0]["lr"] = rate
            steps = []
            for rows, labels in data.batches(self.batch, rng):
                loss = data.loss(classes.rows(context), rows, labels)
                (context.grad,) = torch.autograd.grad(loss, context)
                optimiser.step()
                steps.append(loss.item())
            losses.append(float(np.mean(steps)))
            if not (np.isfinite(losses[-1]) and bool(context.isfinite().all())):
                raise SettingError(
                    f"the loss of coop is no longer a number in epoch {epoch + 1} of {epochs}: try "
                    f"a lower rate, such as coop?learning_rate={self.learning_rate / 10:g}"
                )
        return context.detach(), losses


def _nearest_words(context: "Tensor", tower: DifferentiableText) -> list[dict[str, Any]]:
    """Name the token nearest to each vector, and its cosine: a vector is not the word beside it."""
    import torch

    vocabulary = tower.vocabulary[tower.allowed].float()
    positions, cosines = nearest(context, torch.nn.functional.normalize(vocabulary, dim=-1))
    ids = tower.allowed[positions].tolist()
    return [
        {"word": tower.decode([token]), "cosine": round(cosine, 4)}
        for token, cosine in zip(ids, cosines.tolist(), strict=True)
    ]
