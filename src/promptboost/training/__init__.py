"""Training: from labeled images and an embedded pool to an ensemble with its heads."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.training.pool_rows import Executor, PoolRows, PoolTexts
    from promptboost.training.trainer import Fitted, Trainer

__all__ = ["Executor", "Fitted", "PoolRows", "PoolTexts", "Trainer"]

# Compiled code is imported with the trainer.
__getattr__ = on_first_use(
    __name__,
    {"pool_rows": ["Executor", "PoolRows", "PoolTexts"], "trainer": ["Fitted", "Trainer"]},
)
