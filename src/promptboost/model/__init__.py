"""Result: the fitted thing as text, its vectors, and the classifier that answers for images."""

from typing import TYPE_CHECKING, Any

from promptboost.model.ensemble import LearntOn, PromptEnsemble, Round
from promptboost.model.head import Head
from promptboost.model.schema import json_schema

if TYPE_CHECKING:
    from promptboost.model.classifier import PromptClassifier, load

__all__ = [
    "LearntOn",
    "PromptClassifier",
    "PromptEnsemble",
    "Round",
    "json_schema",
    "Head",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("PromptClassifier", "load"):  # to read a text, no encoder is imported
        from promptboost.model import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module 'promptboost.model' has no attribute {name!r}")
