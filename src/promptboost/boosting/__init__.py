"""Boosting: which prompts enter which bank, on arrays alone.

Read it in this order, next to the paper. First ``grid``: images and prompts as integers, and why. Then
the outer loop, ``samme``, and the result of one of its rounds, ``composition``. Then the two composers,
``greedy`` (the paper's) and ``gradient`` (the default); both multiply rows with ``compiled``. ``scale``
chooses logit scales by cross-validation; ``residual`` comes after boosting.
"""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.boosting.gradient.compose import GradientSettings
    from promptboost.boosting.grid import GridPool, Shots
    from promptboost.boosting.samme import BoostRound, BoostSettings, boost

__all__ = ["BoostRound", "BoostSettings", "GradientSettings", "GridPool", "Shots", "boost"]

# The grid needs no compiled code.
__getattr__ = on_first_use(
    __name__,
    {
        "samme": ["BoostRound", "BoostSettings", "boost"],
        "gradient.compose": ["GradientSettings"],
        "grid": ["GridPool", "Shots"],
    },
)
