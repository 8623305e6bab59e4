"""PromptSRC: deep prompts in both towers, held near to what the frozen towers say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows, unit_rows
from promptboost.encoders.openclip.deep_prompts import PromptedTowers, vit_clip
from promptboost.encoders.runtime import batches
from promptboost.errors import DataError, EncoderError, FileFormatError, SettingError
from promptboost.methods.base import (
    Arrays,
    FewShotSet,
    Fitted,
    Group,
    Images,
    Logits,
    Method,
    Origin,
    Transfer,
    check_numbers,
)
from promptboost.methods.eft import EmulatedClassifier, emulate
from promptboost.methods.fitted import class_rows, filled, linear_logits
from promptboost.methods.promptsrc.consistency import (
    Schedule,
    SelfConsistency,
    TrainingImages,
    train,
)
from promptboost.pool import PromptPool

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PromptedClassifier", "PromptSRC"]

_ARRAYS = ("class_rows", "text_prompts", "vision_prompts")


@dataclass(frozen=True)
class PromptedClassifier(Fitted):
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
        scale = self.origin.encoder.logit_scale
        return linear_logits(self._rows(images), self.class_rows, scale=scale).astype(np.float32)

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
        return fitted


@dataclass(frozen=True)
class PromptSRC(Method):
    """Learnt tokens in the first layers of both towers of a ViT; the towers stay as they are.

    Re-implemented. The loss is in
    :class:`~promptboost.methods.promptsrc.consistency.SelfConsistency`. The classes of the frozen model
    are the means of the pool's templates (the authors take sixty). Trained by SGD with momentum 0.9
    and weight decay 0.0005, in single precision where the model is. All images are in memory while
    it learns.

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

    Examples
    --------
    >>> from promptboost.testing import colour_shots
    >>> from promptboost.pool import build_pool
    >>> shots, encoder = colour_shots("red", "blue")
    >>> PromptSRC().fit(shots, build_pool(["red", "blue"]), encoder)
    Traceback (most recent call last):
    promptboost.errors.EncoderError: deep prompts need a ViT of open_clip, such as ViT-B-32/openai; \
fake:32-0 has no such tower. Use such an encoder for promptsrc; with fake:32-0 use coop or logistic
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
        prompts, losses = train(
            towers,
            classes,
            towers.draw_prompts(
                np.random.default_rng(self.seed),
                depth=self.depth,
                text_tokens=self.text_tokens,
                vision_tokens=self.vision_tokens,
            ),
            TrainingImages(images, shots.labels, clip.preprocess, towers.image_size, self.seed),
            _frozen_texts(shots, pool, encoder).to(clip.device),
            SelfConsistency(clip.logit_scale, self.text_weight, self.image_weight),
            Schedule(self.epochs, self.batch_size, self.learning_rate, self.mean, self.std),
        )
        with torch.no_grad():
            rows = towers.text_rows(classes, prompts.text).float()
        return PromptedClassifier(
            self.origin(shots, encoder),
            rows.cpu().numpy(),
            prompts.text.cpu().numpy(),
            prompts.vision.cpu().numpy(),
            {"losses": losses},
        )


def _frozen_texts(shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> "Tensor":
    """Embed the classes in all templates: what the learnt text rows stay near to."""
    import torch

    banks = filled(pool.templates, shots.class_names)
    return torch.from_numpy(class_rows(banks, encoder, unit=True))
