"""A few labelled images and a pool of sentences in, a classifier made of plain sentences out.

Names are resolved on first use, so that importing the package costs almost nothing.

Examples
--------
>>> import promptboost
>>> promptboost.PromptEnsemble.__name__
'PromptEnsemble'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptboost.encoders import Encoder, load_encoder
    from promptboost.estimator import ImageEmbedder, PromptBoostClassifier
    from promptboost.model import Head, PromptClassifier, PromptEnsemble, load
    from promptboost.plot import (
        BankDisplay,
        ConfusionDisplay,
        ReliabilityDisplay,
        StagedAccuracyDisplay,
    )
    from promptboost.threads import set_threads
    from promptboost.training.refit import refit

__all__ = [
    "PromptBoostClassifier",
    "ImageEmbedder",
    "PromptClassifier",
    "PromptEnsemble",
    "Head",
    "Encoder",
    "load",
    "refit",
    "load_encoder",
    "BankDisplay",
    "ConfusionDisplay",
    "ReliabilityDisplay",
    "StagedAccuracyDisplay",
    "set_threads",
]

__version__ = "0.1.0"

_HOME = {
    "PromptBoostClassifier": "promptboost.estimator",
    "ImageEmbedder": "promptboost.estimator",
    "PromptEnsemble": "promptboost.model",
    "Head": "promptboost.model",
    "PromptClassifier": "promptboost.model.classifier",
    "load": "promptboost.model.classifier",
    "refit": "promptboost.training.refit",
    "Encoder": "promptboost.encoders",
    "load_encoder": "promptboost.encoders",
    "BankDisplay": "promptboost.plot",
    "ConfusionDisplay": "promptboost.plot",
    "ReliabilityDisplay": "promptboost.plot",
    "StagedAccuracyDisplay": "promptboost.plot",
    "set_threads": "promptboost.threads",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'promptboost' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
