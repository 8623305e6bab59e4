"""Vectors: what turns pictures and sentences into rows of one space."""

from promptboost.encoders.base import Encoder, unit_rows
from promptboost.encoders.models import MODELS, ModelRecord, models_by_family
from promptboost.encoders.registry import load_encoder
from promptboost.encoders.truncation import TruncatedPromptWarning

__all__ = [
    "Encoder",
    "load_encoder",
    "MODELS",
    "ModelRecord",
    "models_by_family",
    "TruncatedPromptWarning",
    "unit_rows",
]
