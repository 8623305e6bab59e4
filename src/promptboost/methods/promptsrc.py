"""PromptSRC: deep prompts in both towers, held near to what the frozen towers say."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.encoders.deep_prompts import PromptedTowers
from promptboost.encoders.openclip_vit import vit_clip
from promptboost.errors import DataError, EncoderError, SettingError
from promptboost.methods.contract import Group, Method, Origin, Transfer
from promptboost.methods.pictures import FewShotSet
from promptboost.methods.promptsrc_classifier import PromptedClassifier
from promptboost.methods.promptsrc_losses import SelfConsistency
from promptboost.methods.promptsrc_training import Schedule, TrainingPictures, train
from promptboost.methods.registry import spelled
from promptboost.methods.text import class_rows
from promptboost.pool import PromptPool, fill

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PromptSRC", "PromptedClassifier"]


@dataclass(frozen=True)
class PromptSRC(Method):
    """Learnt tokens in the first layers of both towers of a ViT; the towers stay as they are.

    Re-implemented. The loss is in
    :class:`~promptboost.methods.promptsrc_losses.SelfConsistency`. The classes of the frozen model
    are the means of the pool's templates (the authors take sixty). Trained by SGD with momentum 0.9
    and weight decay 0.0005, in single precision where the model is. All pictures are in memory while
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
        Pictures a step.
    learning_rate : float
        Goes down towards zero along a cosine.
    text_weight, image_weight : float
        Costs of moving away from the frozen rows.
    mean, std : float
        The prompts are averaged over the epochs with a Gaussian: (30, 30) and, for fine-grained
        sets, textures and satellite pictures, (45, 5) are the authors'.
    seed : int
        Decides the first prompts, the order of the pictures and their crops.

    Examples
    --------
    >>> from promptboost.methods import RowPictures
    >>> from promptboost.pool import build_pool
    >>> from promptboost.testing import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])[:, None]
    >>> shots = FewShotSet(RowPictures({encoder.id: rows}), np.array([0, 1]), ("red", "blue"))
    >>> PromptSRC().fit(shots, build_pool(["red", "blue"]), encoder)
    Traceback (most recent call last):
    promptboost.errors.EncoderError: deep prompts need a ViT of open_clip, such as ViT-B-32/openai; \
fake:8-0 has no such tower. Use such an encoder for promptsrc; with fake:8-0 use coop or logistic
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
        for setting in ("depth", "text_tokens", "vision_tokens", "epochs", "batch_size"):
            if getattr(self, setting) < 1:
                raise SettingError(f"{setting} is {getattr(self, setting)}, but must be 1 or more")
        for setting in ("learning_rate", "std"):
            if not 0 < getattr(self, setting) < np.inf:
                raise SettingError(f"{setting} is {getattr(self, setting)}, but must be above 0")
        for setting in ("text_weight", "image_weight", "seed"):
            if not 0 <= getattr(self, setting) < np.inf:
                raise SettingError(f"{setting} is {getattr(self, setting)}, but must be 0 or more")
        if not np.isfinite(self.mean):
            raise SettingError(f"mean is {self.mean}, but must be a number")

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Refuse towers without room for prompts, pictures that are rows only, and no templates."""
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
        if len(shots.pictures) == 0:
            raise DataError("promptsrc learns from pictures, and there are none")
        # Only asked for: rows without pictures refuse here, files are not opened yet.
        shots.pictures.images()
        towers = PromptedTowers(clip.model, clip.tokenizer)
        towers.class_tokens(shots.class_names, self.text_tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> PromptedClassifier:
        """Train the prompts."""
        import torch

        self.check(shots, pool, encoder)
        clip = vit_clip(encoder)
        towers = PromptedTowers(clip.model, clip.tokenizer)
        classes = towers.class_tokens(shots.class_names, self.text_tokens)
        images = list(shots.pictures.images())
        prompts, losses = train(
            towers,
            classes,
            towers.draw_prompts(
                np.random.default_rng(self.seed),
                depth=self.depth,
                text_tokens=self.text_tokens,
                vision_tokens=self.vision_tokens,
            ),
            TrainingPictures(images, shots.labels, clip.preprocess, towers.picture_size, self.seed),
            _frozen_texts(shots, pool, encoder).to(clip.device),
            SelfConsistency(clip.logit_scale, self.text_weight, self.image_weight),
            Schedule(self.epochs, self.batch_size, self.learning_rate, self.mean, self.std),
        )
        with torch.no_grad():
            rows = towers.text_rows(classes, prompts.text).float()
        return PromptedClassifier(
            Origin(spelled(self), shots.class_names, encoder),
            rows.cpu().numpy(),
            prompts.text.cpu().numpy(),
            prompts.vision.cpu().numpy(),
            {"losses": losses},
        )


def _frozen_texts(shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> "Tensor":
    """Embed the classes in all templates: what the learnt text rows stay near to."""
    import torch

    banks = [{fill(t, name): 1.0 for t in pool.templates} for name in shots.class_names]
    return torch.from_numpy(class_rows(banks, encoder, unit=True))
