"""The methods that promptboost is compared with, and promptboost itself, under one contract."""

from promptboost.methods.base import (
    FewShotSet,
    FittedMethod,
    Group,
    Method,
    RowImages,
    Transfer,
)
from promptboost.methods.fitted import LinearClassifier
from promptboost.methods.registry import make_method, register_method

__all__ = [
    "FewShotSet",
    "FittedMethod",
    "Group",
    "LinearClassifier",
    "Method",
    "RowImages",
    "Transfer",
    "make_method",
    "register_method",
]
