"""The embedding store: every vector is computed once, kept on disk, and found again by content.

Reading order: :mod:`~promptboost.encoders.store.segment` (what a vector is filed under),
:mod:`~promptboost.encoders.store.segment` (one immutable file of vectors),
:mod:`~promptboost.encoders.store.shelf` (the segments of one encoder),
:mod:`~promptboost.encoders.store.store` (what callers use).
"""

from promptboost.encoders.store.segment import image_key, text_key
from promptboost.encoders.store.store import EmbeddingStore, StoredEncoder, default_root
from promptboost.encoders.store.upkeep import ShelfReport, StoreReport, Verification

__all__ = [
    "EmbeddingStore",
    "StoredEncoder",
    "StoreReport",
    "ShelfReport",
    "Verification",
    "default_root",
    "image_key",
    "text_key",
]
