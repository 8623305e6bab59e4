"""The fitted model: the ensemble as text, its heads, and the classifier."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use
from promptboost.model.ensemble import PromptEnsemble, Round
from promptboost.model.schema import json_schema

if TYPE_CHECKING:
    from promptboost.model.classifier import PromptClassifier, load
    from promptboost.model.head import Head
    from promptboost.model.prediction import Explanation, Prediction

__all__ = [
    "PromptClassifier",
    "PromptEnsemble",
    "Round",
    "Prediction",
    "Explanation",
    "json_schema",
    "Head",
    "load",
]


# To read a text, neither numpy nor an encoder is imported.
__getattr__ = on_first_use(
    __name__,
    {
        "classifier": ["PromptClassifier", "load"],
        "head": ["Head"],
        "prediction": ["Explanation", "Prediction"],
    },
)
