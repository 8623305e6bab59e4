"""Peers: every method promptboost is compared with, and promptboost itself, under one contract."""

from promptboost.methods.archive import load_fitted, register_fitted, save_fitted
from promptboost.methods.base import (
    Bank,
    FewShotSet,
    FileImages,
    FittedMethod,
    Group,
    Images,
    Method,
    Origin,
    RowImages,
    Transfer,
)
from promptboost.methods.fitted import LinearClassifier, TextClassifier
from promptboost.methods.registry import (
    METHODS,
    MethodRecord,
    make_method,
    register_method,
    spelled,
)

__all__ = [
    "Method",
    "FittedMethod",
    "Origin",
    "Group",
    "Transfer",
    "Bank",
    "METHODS",
    "MethodRecord",
    "make_method",
    "register_method",
    "spelled",
    "Images",
    "FileImages",
    "RowImages",
    "FewShotSet",
    "TextClassifier",
    "LinearClassifier",
    "save_fitted",
    "load_fitted",
    "register_fitted",
]
