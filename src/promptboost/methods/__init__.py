"""Peers: every method promptboost is compared with, and promptboost itself, under one contract."""

from promptboost.methods.contract import Bank, Fitted, Group, Method, Origin, Transfer
from promptboost.methods.linear import LinearClassifier
from promptboost.methods.pictures import FewShotSet, FilePictures, Pictures, RowPictures
from promptboost.methods.registry import METHODS, MethodRecord, make_method, spelled
from promptboost.methods.saving import load_fitted, save_fitted
from promptboost.methods.text import TextClassifier

__all__ = [
    "Method",
    "Fitted",
    "Origin",
    "Group",
    "Transfer",
    "Bank",
    "METHODS",
    "MethodRecord",
    "make_method",
    "spelled",
    "Pictures",
    "FilePictures",
    "RowPictures",
    "FewShotSet",
    "TextClassifier",
    "LinearClassifier",
    "save_fitted",
    "load_fitted",
]
