"""Training: from labeled images and an embedded pool to an ensemble with its heads."""

from promptboost.training.pool_rows import Executor, PoolRows, PoolTexts
from promptboost.training.trainer import Fitted, Trainer

__all__ = ["Executor", "Fitted", "PoolRows", "PoolTexts", "Trainer"]
