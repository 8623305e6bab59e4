"""PromptSRC: deep prompts in both towers, held near to what the frozen towers say."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import (
    Arrays,
    FewShotSet,
    FittedMethod,
    Group,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_numbers,
)
from promptboost.baselines.fitted import class_rows, filled
from promptboost.data.views import draw_view
from promptboost.encoders.base import Encoder, UnitRows, batches, unit_rows
from promptboost.encoders.openclip.deep_prompts import (
    ClassTokens,
    DeepPrompts,
    PromptedTowers,
    vit_clip,
)
from promptboost.errors import DataError, EncoderError, FileFormatError, SettingError
from promptboost.methods.eft import EmulatedClassifier, emulate
from promptboost.methods.learned_tokens import descend
from promptboost.pool import PromptPool

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_ARRAYS = ("class_rows", "text_prompts", "vision_prompts")
# As the method's authors have them.
_CROP_SCALE = (0.08, 1.0)


@dataclass(frozen=True)
class PromptedClassifier(FittedMethod):
    """Prompts of both towers of one encoder, (layers, tokens, width), and the class rows they make.

    It looks at the images themselves: rows that were embedded without the prompts are of no use. The
    text tower is not needed again.
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
        """Emulate it: prompts are vectors of one model and mean nothing to another."""
        return emulate(self, encoder)

    @property
    def encoders_asked(self) -> tuple[str, ...]:
        """The image tower with its prompts: not the one that embeds images for other methods."""
        return (f"{self.origin.encoder.id} with prompts",)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        return {"details": dict(self.details)}, arrays

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make it again."""
        encoder = vit_clip(origin.encoder)
        towers = PromptedTowers(encoder.model, encoder.tokenizer)
        try:
            parts = {name: np.asarray(arrays[name], dtype=np.float32) for name in _ARRAYS}
            fitted = cls(origin, **parts, details=dict(fields["details"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"the file's prompts cannot be read: {error!r}") from error
        wanted = (len(origin.class_names), origin.encoder.dim)
        if fitted.class_rows.shape != wanted:
            raise FileFormatError(f"the file's rows have the shape {fitted.class_rows.shape}")
        prompts = fitted.text_prompts, fitted.vision_prompts
        for array, width in zip(prompts, towers.widths, strict=True):
            if array.ndim != 3 or not len(array) or array.shape[2] != width:
                raise FileFormatError(
                    f"the file's prompts have the shape {array.shape}, and the tower's tokens the "
                    f"length {width}"
                )
        if not all(np.isfinite(part).all() for part in parts.values()):
            raise FileFormatError("the file's rows or prompts are not finite")
        return fitted


@dataclass(frozen=True)
class PromptSRC(Method):
    """Learned tokens in the first layers of both towers of a ViT; the towers stay as they are.

    Re-implemented. The loss is :class:`SelfConsistency`. The classes of the frozen model are the
    means of the pool's templates (the authors take sixty). Trained by SGD with momentum 0.9 and
    weight decay 0.0005, in single precision where the model is. All images are in memory.

    Parameters
    ----------
    depth : int
        Layers, from the first, that have prompts of their own; a tower with fewer has them in all.
    text_tokens, vision_tokens : int
        Prompts in each such layer. The first text prompts begin as "a photo of a".
    epochs : int
        The first one warms up at a rate of 0.00001.
    batch_size : int
        Images a step.
    learning_rate : float
        Goes down towards zero along a cosine.
    text_weight, image_weight : float
        Costs of moving away from the frozen rows.
    mean, std : float
        The prompts are averaged over the epochs with a Gaussian: (30, 30) and, for fine-grained
        sets, textures and satellite images, (45, 5) are the authors'.
    seed : int
        Decides the first prompts, the order of the images and their crops.
    """

    name: ClassVar[str] = "promptsrc"
    group: ClassVar[Group] = Group.GRADIENT
    carries_over: ClassVar[Transfer] = Transfer.EMULATED

    depth: int = 9
    text_tokens: int = 4
    vision_tokens: int = 4
    epochs: int = 50
    batch_size: int = 4
    learning_rate: float = 0.0025
    text_weight: float = 25.0
    image_weight: float = 10.0
    mean: float = 30.0
    std: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=("depth", "text_tokens", "vision_tokens", "epochs", "batch_size"),
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
                "promptsrc stays near to the mean of the pool's templates, and the pool has none; "
                "build one with templates"
            )
        if len(shots.images) == 0:
            raise DataError("promptsrc learns from images, and there are none")
        # Only asked for: rows without images refuse here, files are not opened yet.
        shots.images.images()
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
        frozen = class_rows(filled(pool.templates, shots.class_names), encoder, unit=True)
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
        loss = SelfConsistency(scale, self.text_weight, self.image_weight)
        learned = [t.detach().clone().requires_grad_() for t in (start.text, start.vision)]
        means = [torch.zeros_like(t, requires_grad=False) for t in learned]
        weights = epoch_weights(self.epochs, self.mean, self.std)

        def value(pixels: "Tensor", labels: "Tensor") -> "Tensor":
            # Differences of rows are too small for half precision.
            frozen = Seen(frozen_texts, towers.frozen_image_rows(pixels).float())
            texts = towers.text_rows(classes, learned[0]).float()
            rows = towers.image_rows(pixels, learned[1]).float()
            return loss(Seen(texts, rows), frozen, labels.to(texts.device))

        losses = []
        epochs = descend(
            self, learned, value, lambda epoch: images.batches(epoch, self.batch_size), self.epochs
        )
        for weight, mean_loss in zip(weights, epochs, strict=True):
            losses.append(mean_loss)
            for mean, tensor in zip(means, learned, strict=True):
                mean += float(weight) * tensor.detach()
        return DeepPrompts(*means), losses


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
        :class:`~promptboost.methods.learned_tokens.TrainingRows`.
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
