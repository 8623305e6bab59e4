"""Training: from labeled images and an embedded pool to an ensemble with its heads."""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.training.examples import Examples
    from promptboost.training.pool_rows import PoolRows, PoolTexts
    from promptboost.training.trainer import Fitted, Trainer

__all__ = ["Examples", "Fitted", "PoolRows", "PoolTexts", "Trainer"]

# Compiled code is imported with the trainer.
__getattr__ = on_first_use(
    __name__,
    {
        "examples": ["Examples"],
        "pool_rows": ["PoolRows", "PoolTexts"],
        "trainer": ["Fitted", "Trainer"],
    },
)
