"""The training of PromptSRC: its loss, its images, and the prompts averaged over epochs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data.views import draw_view
from promptboost.encoders.openclip.deep_prompts import ClassTokens, DeepPrompts, PromptedTowers
from promptboost.errors import SettingError
from promptboost.methods.learnt_tokens import cosine_rate

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """The classes (K, D) and a batch of images (n, D) as one pair of towers sees them; unit rows."""

    texts: "Tensor"
    images: "Tensor"


@dataclass(frozen=True)
class SelfConsistency:
    """Cross-entropy, and three costs of moving away from what the frozen towers say.

    The mean absolute difference of the text rows and that of the images' rows, each with a
    weight, and the divergence of the tuned from the frozen class probabilities, KL(frozen ‖ tuned),
    summed and divided by images × classes.
    """

    scale: float
    text_weight: float
    image_weight: float

    def __call__(self, tuned: Seen, frozen: Seen, labels: "Tensor") -> "Tensor":
        """Return the sum of the four."""
        from torch.nn import functional

        logits = self.scale * tuned.images @ tuned.texts.T
        before = self.scale * frozen.images @ frozen.texts.T
        divergence = functional.kl_div(
            logits.log_softmax(dim=1), before.log_softmax(dim=1), reduction="sum", log_target=True
        )
        return (
            functional.cross_entropy(logits, labels)
            + self.text_weight * functional.l1_loss(tuned.texts, frozen.texts)
            + self.image_weight * functional.l1_loss(tuned.images, frozen.images)
            + divergence / logits.numel()
        )


def epoch_weights(epochs: int, mean: float, std: float) -> NDArray[np.float64]:
    """Weigh the prompts at the end of each epoch by a Gaussian over the epochs 1, 2, …; sum 1."""
    exponents = -0.5 * ((np.arange(1, epochs + 1) - mean) / std) ** 2
    # The largest becomes exp(0): a mean far outside the epochs does not leave zeros only.
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())


# As the method's authors cut their crops.
_CROP_SCALE = (0.08, 1.0)
_WARM_UP = 1e-5
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; mean and std are of the Gaussian over the epochs."""

    epochs: int
    batch_size: int
    learning_rate: float
    mean: float
    std: float


@dataclass(frozen=True)
class TrainingImages:
    """Images in memory and their labels, seen through another crop in each epoch."""

    images: "Sequence[Image]"
    labels: NDArray[np.int64]
    preprocess: Any
    size: tuple[int, int]
    seed: int

    def batches(self, epoch: int, batch_size: int) -> "Iterator[tuple[Tensor, Tensor]]":
        """Return the images of an epoch in random order.

        An incomplete last batch is left out, unless it is the only one, as in
        :class:`~promptboost.methods.learnt_tokens.TrainingRows`.
        """
        import torch

        count = len(self.images)
        order = np.random.default_rng([self.seed, epoch]).permutation(count)
        for start in range(0, max(count - batch_size, 0) + 1, batch_size):
            chosen = order[start : start + batch_size]
            crops = [self._crop(int(i), epoch) for i in chosen]
            yield torch.stack(crops), torch.from_numpy(self.labels[chosen].astype(np.int64))

    def _crop(self, position: int, epoch: int) -> "Tensor":
        from PIL import Image

        image, name = self.images[position], b"image %d" % position
        view = draw_view(image, self.seed, name, 1 + epoch, scale=_CROP_SCALE)
        height, width = self.size
        tensor: Tensor = self.preprocess(view.resize((width, height), Image.Resampling.BICUBIC))
        return tensor


def train(
    towers: PromptedTowers,
    classes: ClassTokens,
    start: DeepPrompts,
    images: TrainingImages,
    frozen_texts: "Tensor",
    loss: SelfConsistency,
    schedule: Schedule,
) -> tuple[DeepPrompts, list[float]]:
    """Learn prompts; return their weighted mean over the epochs, and the mean loss of each epoch.

    `frozen_texts` are the class rows, (K, D), of the model without prompts. Raises a SettingError if
    the loss is no longer a number.
    """
    import torch
    from tqdm import trange

    learnt = [t.detach().clone().requires_grad_() for t in (start.text, start.vision)]
    means = [torch.zeros_like(t, requires_grad=False) for t in learnt]
    optimizer = torch.optim.SGD(learnt, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    weights = epoch_weights(schedule.epochs, schedule.mean, schedule.std)
    losses = []
    bar = trange(schedule.epochs, desc="promptsrc", unit=" epochs", leave=False, disable=None)
    for epoch in bar:
        rate = cosine_rate(epoch, schedule.epochs, schedule.learning_rate, _WARM_UP)
        optimizer.param_groups[0]["lr"] = rate
        steps = []
        for pixels, labels in images.batches(epoch, schedule.batch_size):
            # Differences of rows are too small for half precision.
            frozen = Seen(frozen_texts, towers.frozen_image_rows(pixels).float())
            texts = towers.text_rows(classes, learnt[0]).float()
            rows = towers.image_rows(pixels, learnt[1]).float()
            value = loss(Seen(texts, rows), frozen, labels.to(texts.device))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps.append(value.item())
        losses.append(float(np.mean(steps)))
        if not (np.isfinite(losses[-1]) and all(bool(t.isfinite().all()) for t in learnt)):
            raise SettingError(
                f"the loss of promptsrc is no longer a number in epoch {epoch + 1}: try a lower "
                f"rate, such as promptsrc?learning_rate={schedule.learning_rate / 10:g}"
            )
        for mean, tensor in zip(means, learnt, strict=True):
            mean += float(weights[epoch]) * tensor.detach()
    return DeepPrompts(*means), losses
