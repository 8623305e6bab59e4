"""Encoders of open_clip: CLIP and its many descendants."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import HALF_TOLERANCE, UnitRows, unit_rows
from promptboost.encoders.dual_encoder import DualEncoder, Tokens
from promptboost.encoders.graph import ImageGraph
from promptboost.encoders.onnx_files import TowerPair
from promptboost.encoders.openclip.onnx_pair import onnx_pair
from promptboost.encoders.openclip.tower import (
    OpenClipTower,
    TextTower,
    exported_tower,
    pixels_before_normalization,
)

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image


class OpenClipEncoder(DualEncoder):
    """A model of open_clip, with its own tokenizer and preprocessing.

    Created by :func:`~promptboost.load_encoder`. No method changes the weights of `model`.
    """

    model_type = "open_clip"

    def __init__(
        self,
        model: Any,
        preprocess: Any,
        tokenizer: Any,
        *,
        id: str,
        fingerprint: str,
        precision: str = "fp32",
        batch_size: int = 64,
    ) -> None:
        self.id = id
        self.fingerprint = fingerprint
        self.precision = precision
        self.batch_size = batch_size
        self.context_length = int(tokenizer.context_length)
        self.logit_scale = float(model.logit_scale.detach().float().exp().mean())
        self.model = model
        self.device: torch.device = model.logit_scale.device
        self._transform = preprocess
        self.tokenizer = tokenizer
        self._tower = TextTower(model)
        self.causal_text = self._tower.is_causal
        # Trimming swaps tensors of the tower for the time of a batch.
        self._lock = threading.Lock()
        self.tolerance = HALF_TOLERANCE.get(precision, 1e-5)
        self.dim = self._rows(self.tokenizer(["a photo of a cat"])).shape[1]
        self.trims = self.causal_text and super().trims

    def preprocess(self, image: "Image") -> "torch.Tensor":
        """Return the pixels that the image tower takes."""
        pixels: torch.Tensor = self._transform(image)
        return pixels

    def encode_preprocessed(self, inputs: "Sequence[torch.Tensor]") -> UnitRows:
        """Embed what `preprocess` returned as unit rows, in the order given."""
        import torch

        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision, torch.float32)
        pixels = torch.stack(list(inputs)).to(self.device, kind)
        with torch.inference_mode():
            rows = self.model.encode_image(pixels, normalize=True)
        return unit_rows(rows.float().cpu().numpy())

    def _counts(self, texts: list[str]) -> list[int]:
        if hasattr(self.tokenizer, "encode"):  # open_clip's own, without start and end tokens
            return [len(self.tokenizer.encode(text)) + 2 for text in texts]
        clean = [self.tokenizer.clean_fn(text) for text in texts]
        return [len(ids) for ids in self.tokenizer.tokenizer(clean, verbose=False).input_ids]

    def text_tower(self) -> OpenClipTower:
        """Return the text tower for gradients."""
        return OpenClipTower(self.model, self.tokenizer, self.id)

    def image_graph(self) -> ImageGraph:
        """Return the image tower and the normalization of pixels as a graph."""
        return exported_tower(self.model, self._transform)

    def tower_pair(self) -> TowerPair:
        """Return both towers with tokenizer and preprocessing, for ONNX files."""
        return onnx_pair(self.model, self._transform, self.tokenizer)

    def pixels(self, image: "Image") -> NDArray[np.uint8]:
        """Return an image as it is before its values are normalized."""
        return pixels_before_normalization(self._transform, image)

    def _tokenize(self, texts: list[str]) -> tuple[Any, Tokens]:
        tokens = self.tokenizer(texts)
        present = np.ones(tokens.shape, dtype=np.int64)
        if self.causal_text:
            present = present * (np.arange(tokens.shape[1]) < self._tower.lengths(tokens)[:, None])
        return tokens, present

    def _text_rows(self, tokens: "torch.Tensor", present: Tokens) -> UnitRows:
        with self._lock:
            return self._rows(tokens)

    def _rows(self, tokens: "torch.Tensor") -> UnitRows:
        import torch

        with torch.inference_mode():
            rows = self._tower(tokens.to(self.device))
        return unit_rows(rows.float().cpu().numpy())
