"""Images: data sets and their sources, decoding, few-shot splits and views."""

from promptboost.data.dataset import Dataset, LabeledImage
from promptboost.data.shots import few_shot
from promptboost.data.source import load_data

__all__ = ["Dataset", "LabeledImage", "few_shot", "load_data"]
