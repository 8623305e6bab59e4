"""Encoders: models that map images and texts into one space."""

from typing import TYPE_CHECKING

from promptboost.encoders.base import Encoder, StagedEncoder, unit_rows
from promptboost.encoders.registry import encoder_defaults, load_encoder, register_encoder
from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.encoders.embedder import Embedder
    from promptboost.encoders.group import EncoderGroup

__all__ = [
    "Embedder",
    "Encoder",
    "EncoderGroup",
    "StagedEncoder",
    "encoder_defaults",
    "load_encoder",
    "register_encoder",
    "unit_rows",
]

__getattr__ = on_first_use(__name__, {"embedder": ["Embedder"], "group": ["EncoderGroup"]})
