"""Encoders of open_clip: CLIP and its many descendants."""

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, report_truncated, unit_rows
from promptboost.encoders.graph import ImageGraph
from promptboost.encoders.runtime import encode_by_length

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from promptboost.encoders.base import DifferentiableText


def projected(states: "torch.Tensor", projection: Any) -> "torch.Tensor":
    """Map states into the joint space by a matrix, a layer or nothing."""
    if projection is None:
        return states
    rows: torch.Tensor = projection(states) if callable(projection) else states @ projection
    return rows


class TextTower:
    """Runs a model's text tower on token matrices narrower than its context.

    open_clip adds all positions and applies the whole mask however short the texts are. In a
    causal tower nothing after the end token can reach it, so the same row comes out of the first
    columns with the first positions and the first rows and columns of the mask.

    `is_causal` is False for towers that read the row at the last position (SigLIP), at a class
    token after the padding (CoCa), or look both ways (Hugging Face towers).
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # CLIP models hold the parts of their text tower themselves, others in `text`.
        self._inside = "text." if hasattr(model, "text") else ""
        tower = getattr(model, "text", model)
        self.pool: str = getattr(tower, "pool_type", getattr(model, "text_pool_type", ""))
        self._end: int = getattr(tower, "eos_id", getattr(model, "text_eos_id", -1))
        self.is_causal: bool = (
            getattr(tower, "attn_mask", None) is not None
            and getattr(tower, "cls_emb", None) is None
            and self.pool in ("argmax", "eos")
        )

    def lengths(self, tokens: "torch.Tensor") -> NDArray[np.int64]:
        """Count the tokens of each text up to the one its row is read at."""
        is_end = tokens == self._end if self.pool == "eos" else tokens
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
        # Images' rows, texts' rows, scale; models that were asked to can name them.
        named = isinstance(outputs, dict)
        trimmed: torch.Tensor = outputs["text_features"] if named else outputs[1]
        return trimmed


class OpenClipEncoder:
    """A model of open_clip, with its own tokenizer and preprocessing.

    Made by :func:`~promptboost.load_encoder`. Methods that go through the towers of
    `model` do not change its weights. `buckets` tells whether texts are encoded without computing
    what follows their end token: so it is for causal text towers that were seen, when loaded, to
    give the same row either way.
    """

    def __init__(
        self,
        model: Any,
        preprocess: Any,
        tokenizer: Any,
        *,
        id: str,
        fingerprint: str,
        half_precision: bool = False,
        batch_size: int = 64,
    ) -> None:
        self.id = id
        self.fingerprint = fingerprint
        self.half_precision = half_precision
        self.batch_size = batch_size
        self.context_length = int(tokenizer.context_length)
        self.logit_scale = float(model.logit_scale.detach().float().exp().mean())
        self.model = model
        self.device: torch.device = model.logit_scale.device
        self.preprocess = preprocess
        self.tokenizer = tokenizer
        self._tower = TextTower(model)
        self.causal_text = self._tower.is_causal
        # Trimming swaps tensors of the tower for the time of a batch.
        self._lock = threading.Lock()
        sample = self._rows(self.tokenizer(["a photo of a cat"]))
        self.dim = sample.shape[1]
        self.buckets = self.causal_text and self._trims_soundly()

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        if len(texts) == 0:
            return np.zeros((0, self.dim), dtype=np.float32)
        tokens = self.tokenizer(list(texts))
        lengths = self._lengths(texts, tokens)
        report_truncated(texts, lengths, self.context_length, self.id)
        width = tokens.shape[1]
        widths = np.minimum(lengths, width) if self.buckets else np.full_like(lengths, width)
        with self._lock:
            return encode_by_length(
                widths,
                self.dim,
                self.batch_size,
                lambda batch, length: self._rows(tokens[batch, :length]),
            )

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed images as unit rows, in the order given."""
        import torch

        kind = torch.float16 if self.half_precision else torch.float32
        blocks = [np.zeros((0, self.dim), dtype=np.float32)]
        for batch in batches(images, self.batch_size):
            inputs = torch.stack([self.preprocess(image) for image in batch])
            with torch.inference_mode():
                rows = self.model.encode_image(inputs.to(self.device, kind), normalize=True)
            blocks.append(unit_rows(rows.float().cpu().numpy()))
        return np.concatenate(blocks)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""
        if hasattr(self.tokenizer, "encode"):  # open_clip's own, without start and end tokens
            counts = [len(self.tokenizer.encode(text)) + 2 for text in texts]
        else:
            clean = [self.tokenizer.clean_fn(text) for text in texts]
            ids = self.tokenizer.tokenizer(clean, verbose=False).input_ids
            counts = [len(row) for row in ids]
        return np.array(counts, dtype=np.int64)

    def text_tower(self) -> "DifferentiableText":
        """Return the text tower for gradients."""
        from promptboost.encoders.openclip.tower import OpenClipTower

        return OpenClipTower(self.model, self.tokenizer, self.id)

    def image_graph(self) -> ImageGraph:
        """Return the image tower and the normalization of pixels as a graph."""
        from promptboost.encoders.openclip.tower import exported_tower

        return exported_tower(self.model, self.preprocess)

    def pixels(self, image: "Image") -> NDArray[np.uint8]:
        """Return an image as it is before its values are normalized."""
        from promptboost.encoders.openclip.tower import pixels_before_normalization

        return pixels_before_normalization(self.preprocess, image)

    def _lengths(self, texts: Sequence[str], tokens: "torch.Tensor") -> NDArray[np.int64]:
        """Count tokens before truncation, tokenising again only what may have been truncated."""
        if not self.causal_text:
            return self.count_tokens(texts)
        lengths = self._tower.lengths(tokens)
        full = np.flatnonzero(lengths >= tokens.shape[1])
        lengths[full] = self.count_tokens([texts[position] for position in full.tolist()])
        return lengths

    def _rows(self, tokens: "torch.Tensor") -> UnitRows:
        import torch

        with torch.inference_mode():
            rows = self._tower(tokens.to(self.device))
        return unit_rows(rows.float().cpu().numpy())

    def _trims_soundly(self) -> bool:
        """Whether a short text has the same row with and without what follows its end token."""
        tokens = self.tokenizer(["a photo of a cat", "a bird"])
        try:
            trimmed = self._rows(tokens[:, : int(self._tower.lengths(tokens).max())])
        except (RuntimeError, KeyError):  # a tower that needs its whole context
            return False
        tolerance = 5e-3 if self.half_precision else 1e-5
        return bool(np.allclose(trimmed, self._rows(tokens), atol=tolerance))
