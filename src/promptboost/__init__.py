"""A few labeled images and a pool of sentences in, a classifier made of plain sentences out.

Names are resolved on first use, so that importing the package costs almost nothing.

Examples
--------
>>> import promptboost
>>> promptboost.PromptEnsemble.__name__
'PromptEnsemble'
"""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.api import fit
    from promptboost.encoders import Encoder, load_encoder
    from promptboost.estimator import ImageEmbedder, PromptBoostClassifier
    from promptboost.hub import from_pretrained, push_to_hub, save_pretrained
    from promptboost.model import Head, PromptClassifier, PromptEnsemble, load
    from promptboost.training.residual_refit import refit

__all__ = [
    "fit",
    "PromptBoostClassifier",
    "ImageEmbedder",
    "PromptClassifier",
    "PromptEnsemble",
    "Head",
    "Encoder",
    "load",
    "refit",
    "load_encoder",
    "from_pretrained",
    "save_pretrained",
    "push_to_hub",
]

__version__ = "0.1.0"

__getattr__ = on_first_use(
    __name__,
    {
        "api": ["fit"],
        "estimator": ["PromptBoostClassifier", "ImageEmbedder"],
        "model": ["PromptEnsemble", "Head"],
        "model.classifier": ["PromptClassifier", "load"],
        "encoders": ["Encoder", "load_encoder"],
        "hub": ["from_pretrained", "save_pretrained", "push_to_hub"],
        "training.residual_refit": ["refit"],
    },
)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
