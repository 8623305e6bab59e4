"""What PromptSRC gives: an image tower with prompts in it, and a row for each class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows, unit_rows
from promptboost.encoders.buckets import batches
from promptboost.encoders.deep_prompts import PromptedTowers
from promptboost.encoders.openclip_vit import vit_clip
from promptboost.errors import FileFormatError
from promptboost.methods.contract import Arrays, Fitted, Logits, Origin
from promptboost.methods.eft import EmulatedClassifier, emulate
from promptboost.methods.pictures import Pictures

__all__ = ["PromptedClassifier"]

_ARRAYS = ("class_rows", "text_prompts", "vision_prompts")


@dataclass(frozen=True)
class PromptedClassifier(Fitted):
    """Prompts of both towers of one encoder.

    It looks at the pictures themselves: rows that were embedded without the prompts are of no use.

    Parameters
    ----------
    origin : Origin
        Method, classes and encoder.
    class_rows : array of float32, shape (K, D)
        The classes as the prompted text tower embeds them; the tower is not needed again.
    text_prompts, vision_prompts : array of float32, shape (layers, tokens, width)
        The prompts.
    details : mapping, optional
        What else the method wants to remember; ready for JSON.
    """

    kind: ClassVar[str] = "promptsrc"
    origin: Origin
    class_rows: NDArray[np.float32]
    text_prompts: NDArray[np.float32]
    vision_prompts: NDArray[np.float32]
    details: Mapping[str, Any] = field(default_factory=dict)

    def logits(self, pictures: Pictures) -> Logits:
        """Run the prompted image tower on the pictures."""
        scores = self._rows(pictures) @ self.class_rows.T * self.origin.encoder.logit_scale
        return np.asarray(scores, dtype=np.float32)

    def _rows(self, pictures: Pictures) -> UnitRows:
        import torch

        encoder = vit_clip(self.origin.encoder)
        towers = PromptedTowers(encoder.model, encoder.tokenizer)
        prompts = torch.from_numpy(self.vision_prompts).to(encoder.device)
        blocks = [np.zeros((0, encoder.dim), dtype=np.float32)]
        for batch in batches(pictures.images(), encoder.batch_size):
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
        """The image tower with its prompts: not the one that embeds pictures for other methods."""
        return (f"{self.origin.encoder.id} with prompts",)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Keep everything."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        return {"details": dict(self.details)}, arrays

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Read everything."""
        encoder = vit_clip(origin.encoder)
        towers = PromptedTowers(encoder.model, encoder.tokenizer)
        try:
            found = {name: np.asarray(arrays[name], dtype=np.float32) for name in _ARRAYS}
            fitted = cls(origin, **found, details=dict(fields["details"]))
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
