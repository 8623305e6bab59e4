"""PromptSRC: deep prompts in both towers, regularized towards the frozen model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.data.views import draw_view
from promptboost.encoders.base import Encoder, UnitRows, batches, unit_rows
from promptboost.encoders.openclip.deep_prompts import (
    ClassTokens,
    DeepPrompts,
    PromptedTowers,
    vit_clip,
)
from promptboost.errors import DataError, EncoderError, SettingError
from promptboost.methods.base import (
    FewShotSet,
    FittedMethod,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_numbers,
)
from promptboost.methods.eft import EmulatedClassifier, emulate
from promptboost.methods.fitted import class_rows, epoch_batches, filled
from promptboost.methods.learned_tokens import descend
from promptboost.pool import PromptPool

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

# The authors' setting.
_CROP_SCALE = (0.08, 1.0)


@dataclass(frozen=True)
class PromptedClassifier(FittedMethod):
    """Prompts of both towers of one encoder, (layers, tokens, width), and the class embeddings.

    Predicting needs the images themselves: their embeddings without the prompts cannot be used.
    """

    kind: ClassVar[str] = "promptsrc"
    origin: Origin
    class_rows: NDArray[np.float32]
    text_prompts: NDArray[np.float32]
    vision_prompts: NDArray[np.float32]
    details: Mapping[str, Any] = field(default_factory=dict)

    def logits(self, images: Images) -> Logits:
        """Run the prompted image tower on the images."""
        logits = self._rows(images) @ self.class_rows.T * self.origin.encoder.logit_scale
        return np.asarray(logits, dtype=np.float32)

    def _rows(self, images: Images) -> UnitRows:
        import torch

        encoder = vit_clip(self.origin.encoder)
        towers = PromptedTowers(encoder.model, encoder.tokenizer)
        prompts = torch.from_numpy(self.vision_prompts).to(encoder.device)
        blocks = [np.zeros((0, encoder.dim), dtype=np.float32)]
        for batch in batches(images.images(), encoder.batch_size):
            pixels = torch.stack([encoder.preprocess(image) for image in batch])
            with torch.inference_mode():
                rows = towers.image_rows(pixels, prompts)
            blocks.append(unit_rows(rows.float().cpu().numpy()))
        return np.concatenate(blocks)

    def transfer(self, encoder: Encoder) -> EmulatedClassifier:
        """Return an emulated classifier: the prompts are vectors of one model."""
        return emulate(self, encoder)

    @property
    def image_towers(self) -> tuple[str, ...]:
        """The image tower with its prompts."""
        return (f"{self.origin.encoder.id} with prompts",)


@dataclass(frozen=True)
class PromptSRC(Method):
    """Learned tokens in the first layers of both towers of a ViT; the towers are frozen.

    Re-implemented. The loss is :func:`self_consistency`. The classes of the frozen model are the
    means of the pool's templates. Trained by SGD with momentum 0.9 and
    weight decay 0.0005, in single precision where the model is. All images are in memory.
    """

    name: ClassVar[str] = "promptsrc"
    carries_over: ClassVar[Transfer] = Transfer.EMULATED

    # Number of layers with prompts, from the first; a tower with fewer layers has them in all
    depth: int = 9
    # Prompts per layer. The first text prompts are initialized to "a photo of a".
    text_tokens: int = 4
    vision_tokens: int = 4
    epochs: int = 50  # number of epochs; the first one warms up at a rate of 0.00001
    batch_size: int = 4  # images per step
    learning_rate: float = 0.0025  # initial rate of a cosine schedule
    # Weights of the distances to the frozen embeddings
    text_weight: float = 25.0
    image_weight: float = 10.0
    # Gaussian weights with which the prompts of all epochs are averaged. The authors use (30, 30),
    # and (45, 5) for fine-grained sets, textures and satellite images.
    mean: float = 30.0
    std: float = 30.0
    # Number of the pool's templates, from the first; None for all. The authors take 60 of CLIP's.
    templates: int | None = None
    seed: int = 0  # seed for the initial prompts, the order of the images and their crops

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=("depth", "text_tokens", "vision_tokens", "epochs", "batch_size", "templates"),
            positive=("learning_rate", "std"),
            from_zero=("text_weight", "image_weight", "seed"),
        )
        if not np.isfinite(self.mean):
            raise SettingError(f"mean is {self.mean}, but must be a number")

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that the towers have room for prompts, and that there are images and templates."""
        try:
            clip = vit_clip(encoder)
        except EncoderError as error:
            raise EncoderError(
                f"{error}. Use such an encoder for promptsrc; with {encoder.id} use coop or logistic"
            ) from None
        if not pool.templates:
            raise SettingError(
                "promptsrc is regularized towards the mean of the pool's templates, and the pool has "
                "none; build one with templates"
            )
        if len(shots.images) == 0:
            raise DataError("promptsrc learns from images, and there are none")
        shots.images.images()  # raises if there are only embeddings; opens no file yet
        towers = PromptedTowers(clip.model, clip.tokenizer)
        towers.class_tokens(shots.class_names, self.text_tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> PromptedClassifier:
        """Train the prompts."""
        import torch

        self.check(shots, pool, encoder)
        clip = vit_clip(encoder)
        towers = PromptedTowers(clip.model, clip.tokenizer)
        classes = towers.class_tokens(shots.class_names, self.text_tokens)
        images = list(shots.images.images())
        seen = TrainingImages(images, shots.labels, clip.preprocess, towers.image_size, self.seed)
        frozen = class_rows(
            filled(pool.templates[: self.templates], shots.class_names), encoder, unit=True
        )
        frozen_texts = torch.from_numpy(frozen).to(clip.device)
        prompts, losses = self._train(towers, classes, seen, frozen_texts, clip.logit_scale)
        with torch.no_grad():
            rows = towers.text_rows(classes, prompts.text).float()
        return PromptedClassifier(
            self.origin(shots, encoder),
            rows.cpu().numpy(),
            prompts.text.cpu().numpy(),
            prompts.vision.cpu().numpy(),
            {"losses": losses},
        )

    def _train(
        self,
        towers: PromptedTowers,
        classes: ClassTokens,
        images: "TrainingImages",
        frozen_texts: "Tensor",
        scale: float,
    ) -> tuple[DeepPrompts, list[float]]:
        """Return the weighted mean of the prompts over the epochs, and the mean loss of each epoch.

        `frozen_texts` are the class rows, (K, D), of the model without prompts.
        """
        import torch

        start = towers.draw_prompts(
            np.random.default_rng(self.seed),
            depth=self.depth,
            text_tokens=self.text_tokens,
            vision_tokens=self.vision_tokens,
        )
        learned = [t.detach().clone().requires_grad_() for t in (start.text, start.vision)]
        means = [torch.zeros_like(t, requires_grad=False) for t in learned]
        weights = epoch_weights(self.epochs, self.mean, self.std)

        def value(pixels: "Tensor", labels: "Tensor") -> "Tensor":
            # Differences of rows are too small for half precision.
            frozen = frozen_texts, towers.frozen_image_rows(pixels).float()
            texts = towers.text_rows(classes, learned[0]).float()
            rows = towers.image_rows(pixels, learned[1]).float()
            rates = scale, self.text_weight, self.image_weight
            return self_consistency((texts, rows), frozen, labels.to(texts.device), *rates)

        losses = []
        epochs = descend(
            self, learned, value, lambda epoch: images.batches(epoch, self.batch_size), self.epochs
        )
        for weight, mean_loss in zip(weights, epochs, strict=True):
            losses.append(mean_loss)
            for mean, tensor in zip(means, learned, strict=True):
                mean += float(weight) * tensor.detach()
        return DeepPrompts(*means), losses


#: Unit embeddings of the classes (K, D) and of a batch of images (n, D).
Embedded = tuple["Tensor", "Tensor"]


def self_consistency(
    tuned: Embedded,
    frozen: Embedded,
    labels: "Tensor",
    scale: float,
    text_weight: float,
    image_weight: float,
) -> "Tensor":
    """Return the cross-entropy, plus three penalties for leaving the frozen model.

    The weighted mean absolute differences of the text and of the image embeddings, and the divergence
    of the class probabilities, KL(frozen ‖ tuned), divided by images × classes.
    """
    from torch.nn import functional

    (texts, images), (frozen_texts, frozen_images) = tuned, frozen
    logits = scale * images @ texts.T
    frozen_logits = scale * frozen_images @ frozen_texts.T
    divergence = functional.kl_div(
        logits.log_softmax(dim=1),
        frozen_logits.log_softmax(dim=1),
        reduction="sum",
        log_target=True,
    )
    return (
        functional.cross_entropy(logits, labels)
        + text_weight * functional.l1_loss(texts, frozen_texts)
        + image_weight * functional.l1_loss(images, frozen_images)
        + divergence / logits.numel()
    )


def epoch_weights(epochs: int, mean: float, std: float) -> NDArray[np.float64]:
    """Return Gaussian weights of the epochs 1, 2, …, which sum to 1."""
    exponents = -0.5 * ((np.arange(1, epochs + 1) - mean) / std) ** 2
    # The largest becomes exp(0), so that not all underflow.
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class TrainingImages:
    """Images in memory and their labels, cropped anew in each epoch."""

    images: "Sequence[Image]"
    labels: NDArray[np.int64]
    preprocess: Any
    size: tuple[int, int]
    seed: int

    def batches(self, epoch: int, batch_size: int) -> "Iterator[tuple[Tensor, Tensor]]":
        """Yield crops and labels of an epoch in random order."""
        import torch

        count = len(self.images)
        order = np.random.default_rng([self.seed, epoch]).permutation(count)
        for batch in epoch_batches(count, batch_size):
            chosen = order[batch]
            crops = [self._crop(int(i), epoch) for i in chosen]
            yield torch.stack(crops), torch.from_numpy(self.labels[chosen].astype(np.int64))

    def _crop(self, position: int, epoch: int) -> "Tensor":
        from PIL import Image

        image, name = self.images[position], b"image %d" % position
        view = draw_view(image, self.seed, name, 1 + epoch, scale=_CROP_SCALE)
        height, width = self.size
        tensor: Tensor = self.preprocess(view.resize((width, height), Image.Resampling.BICUBIC))
        return tensor
