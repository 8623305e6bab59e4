"""Vectors: what turns images and sentences into rows of one space."""

from promptboost.encoders.base import (
    DifferentiableText,
    Encoder,
    TruncatedPromptWarning,
    encode_with,
    open_tower,
    unit_rows,
)
from promptboost.encoders.registry import (
    MODELS,
    ModelRecord,
    load_encoder,
    models_by_family,
    register_encoder,
)

__all__ = [
    "Encoder",
    "load_encoder",
    "MODELS",
    "ModelRecord",
    "models_by_family",
    "register_encoder",
    "TruncatedPromptWarning",
    "unit_rows",
    "DifferentiableText",
    "encode_with",
    "open_tower",
]
