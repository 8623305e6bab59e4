"""The embedding store: every embedding is computed once, kept on disk, and found by content."""

from promptboost.encoders.store.report import EncoderShare, StoreReport, Verification
from promptboost.encoders.store.store import (
    EmbeddingStore,
    default_root,
    head_key,
    image_key,
    text_key,
)

__all__ = [
    "EmbeddingStore",
    "EncoderShare",
    "StoreReport",
    "Verification",
    "default_root",
    "head_key",
    "image_key",
    "text_key",
]
