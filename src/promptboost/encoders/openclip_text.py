"""The text tower of an open_clip model, run on as many tokens as there are."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ["TextTower"]


class TextTower:
    """Runs a model's text tower on token matrices narrower than its context.

    open_clip adds all positions and applies the whole mask however short the texts are. In a
    causal tower nothing after the end token can reach it, so the same row comes out of the first
    columns with the first positions and the first rows and columns of the mask.

    Parameters
    ----------
    model : torch.nn.Module
        An open_clip model.

    Attributes
    ----------
    is_causal : bool
        Whether each token sees only those before it and the row is read at the end token. False
        for towers that read it at the last position (SigLIP), at a class token after the padding
        (CoCa), or look both ways (Hugging Face towers).
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # CLIP models hold the parts of their text tower themselves, others in `text`.
        self._inside = "text." if hasattr(model, "text") else ""
        tower = getattr(model, "text", model)
        self._pool: str = getattr(tower, "pool_type", getattr(model, "text_pool_type", ""))
        self._end: int = getattr(tower, "eos_id", getattr(model, "text_eos_id", -1))
        self.is_causal: bool = (
            getattr(tower, "attn_mask", None) is not None
            and getattr(tower, "cls_emb", None) is None
            and self._pool in ("argmax", "eos")
        )

    def lengths(self, tokens: "torch.Tensor") -> NDArray[np.int64]:
        """Count the tokens of each text up to the one its row is read at."""
        is_end = tokens == self._end if self._pool == "eos" else tokens
        ends: NDArray[np.int64] = is_end.int().argmax(dim=-1).numpy() + 1
        return ends

    def __call__(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Map tokens, ``(n, length)``, to rows of the joint space."""
        length = tokens.shape[1]
        tower = getattr(self._model, "text", self._model)
        if not self.is_causal or length == tower.attn_mask.shape[0]:
            rows: torch.Tensor = self._model.encode_text(tokens, normalize=True)
            return rows
        from torch.func import functional_call

        first = {
            f"{self._inside}positional_embedding": tower.positional_embedding[:length],
            f"{self._inside}attn_mask": tower.attn_mask[:length, :length],
        }
        outputs = functional_call(self._model, first, kwargs={"text": tokens})
        # Pictures' rows, texts' rows, scale; models that were asked to can name them.
        named = isinstance(outputs, dict)
        trimmed: torch.Tensor = outputs["text_features"] if named else outputs[1]
        return trimmed
