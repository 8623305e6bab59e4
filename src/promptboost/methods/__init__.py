"""The methods that promptboost is compared with, and promptboost itself, under one contract.

``docs/reference/methods.md`` has the differences from the papers.
"""

from promptboost.methods.base import FewShotSet, FittedMethod, Method, RowImages, Transfer
from promptboost.methods.fitted import LinearClassifier
from promptboost.methods.registry import make_method, register_method

__all__ = [
    "FewShotSet",
    "FittedMethod",
    "LinearClassifier",
    "Method",
    "RowImages",
    "Transfer",
    "make_method",
    "register_method",
]
