"""The embedding store: every vector is computed once, kept on disk, and found again by content.

Reading order: :mod:`~promptboost.encoders.store.keys` (what a vector is filed under),
:mod:`~promptboost.encoders.store.segment` (one immutable file of vectors),
:mod:`~promptboost.encoders.store.shelf` (the segments of one encoder),
:mod:`~promptboost.encoders.store.store` (what callers use).
"""

from promptboost.encoders.store.encoder import StoredEncoder
from promptboost.encoders.store.keys import picture_key, text_key
from promptboost.encoders.store.report import ShelfReport, StoreReport, Verification
from promptboost.encoders.store.store import EmbeddingStore, default_root

__all__ = [
    "EmbeddingStore",
    "StoredEncoder",
    "StoreReport",
    "ShelfReport",
    "Verification",
    "default_root",
    "picture_key",
    "text_key",
]
