"""Result: the fitted thing as text, its vectors, and the classifier that answers for images."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use
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


# No encoder is imported to read a text.
__getattr__ = on_first_use(__name__, {"classifier": ["PromptClassifier", "load"]})
