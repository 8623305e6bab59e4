"""An encoder that remembers the texts it has seen, across runs."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.store.keys import text_key
from promptboost.encoders.store.shelf import Dtype
from promptboost.encoders.store.store import EmbeddingStore

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["StoredEncoder"]


class StoredEncoder:
    """An encoder whose texts go through a store; itself an encoder.

    Pictures pass straight through: only the caller knows the bytes and the view they come from,
    and files them with :meth:`EmbeddingStore.get_or_compute` and :func:`picture_key`.

    Parameters
    ----------
    encoder : Encoder
        What computes the vectors that are not stored.
    store : EmbeddingStore
        Where they are kept.
    batch : int, default=1024
        Texts encoded between two writes: what a killed run can lose.
    dtype : {"float32", "float16"}, default="float32"
        Number type on disk; ``"float16"`` for very large pools.
    progress : callable, optional
        Called with the number of further texts that are done.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.testing import FakeEncoder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoder = StoredEncoder(FakeEncoder(dim=8), EmbeddingStore(folder))
    ...     encoder.encode_texts(["a red bird", "a red bird", "a blue fish"]).shape
    (3, 8)
    """

    def __init__(
        self,
        encoder: Encoder,
        store: EmbeddingStore,
        *,
        batch: int = 1024,
        dtype: Dtype = "float32",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.encoder = encoder
        self.store = store
        self.batch = batch
        self.dtype: Dtype = dtype
        self.progress = progress
        self.id = encoder.id
        self.fingerprint = encoder.fingerprint
        self.dim = encoder.dim
        self.context_length = encoder.context_length
        self.causal_text = encoder.causal_text
        self.logit_scale = encoder.logit_scale

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, encoding only those never encoded before, each once."""
        return self.store.get_or_compute(
            self.fingerprint,
            [text_key(text) for text in texts],
            lambda positions: self.encoder.encode_texts([texts[i] for i in positions]),
            dim=self.dim,
            batch=self.batch,
            dtype=self.dtype,
            name=self.id,
            progress=self.progress,
        )

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB pictures as unit rows, without the store."""
        return self.encoder.encode_images(images)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, before any truncation."""
        return self.encoder.count_tokens(texts)
