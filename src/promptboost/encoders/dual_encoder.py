"""DualEncoder: an image tower, a text tower and a tokenizer that pads to the context."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, report_truncated
from promptboost.encoders.runtime import encode_by_length

if TYPE_CHECKING:
    from PIL.Image import Image

Tokens = NDArray[np.int64]


class DualEncoder(ABC):
    """Embeds texts and images with two towers.

    Texts are padded to the whole context, as towers such as SigLIP's were trained. If a probe has the
    same embeddings without padding, texts are only padded to the longest of their batch.
    """

    id: str
    fingerprint: str
    dim: int
    context_length: int
    causal_text = False  # not known of a graph; padding is removed where a probe allows it
    logit_scale: float
    logit_bias: float  # before a sigmoid; a softmax over classes does not depend on it
    model_type: str  # of config.json
    batch_size: int
    tolerance = 1e-5  # of an embedding computed without padding

    @property
    def is_siglip(self) -> bool:
        """Whether texts are lower case, and padding is attended to."""
        return self.model_type.startswith("siglip")

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        if len(texts) == 0:
            return np.zeros((0, self.dim), dtype=np.float32)
        texts = self._cased(texts)
        tokens, present = self._tokenize(texts)
        lengths = present.sum(axis=1)
        full = np.flatnonzero(lengths >= self.context_length)
        lengths[full] = self.count_tokens([texts[position] for position in full])
        report_truncated(texts, lengths, self.context_length, self.id)
        width = tokens.shape[1]
        widths = np.minimum(lengths, width) if self.trims else np.full_like(lengths, width)
        return encode_by_length(
            widths,
            self.dim,
            self.batch_size,
            lambda batch, length: self._text_rows(tokens[batch, :length], present[batch, :length]),
        )

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed images as unit rows, in the order given."""
        blocks = [np.zeros((0, self.dim), dtype=np.float32)]
        for batch in batches(images, self.batch_size):
            blocks.append(self.encode_preprocessed([self.preprocess(image) for image in batch]))
        return np.concatenate(blocks)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""
        return np.array(self._counts(self._cased(texts)), dtype=np.int64)

    def _cased(self, texts: Sequence[str]) -> list[str]:
        return [text.lower() if self.is_siglip else text for text in texts]

    @cached_property
    def trims(self) -> bool:
        """Whether texts are encoded without padding, which changes no embedding."""
        tokens, present = self._tokenize(self._cased(["a photo of a cat", "a bird"]))
        length = int(present.sum(axis=1).max())
        try:
            trimmed = self._text_rows(tokens[:, :length], present[:, :length])
        except Exception:  # a tower of a fixed length; what ONNX raises has no common base
            return False
        return bool(np.allclose(trimmed, self._text_rows(tokens, present), atol=self.tolerance))

    @abstractmethod
    def preprocess(self, image: "Image") -> Any:
        """Return what the image tower takes of an image."""

    @abstractmethod
    def encode_preprocessed(self, inputs: Sequence[Any]) -> UnitRows:
        """Embed what `preprocess` returned as unit rows, in the order given."""

    @abstractmethod
    def _tokenize(self, texts: list[str]) -> tuple[Any, Tokens]:
        """Return tokens, truncated and padded to the context, and 1 where they are no padding."""

    @abstractmethod
    def _counts(self, texts: list[str]) -> list[int]: ...

    @abstractmethod
    def _text_rows(self, tokens: Any, present: Tokens) -> UnitRows: ...
