"""Choice: which prompts enter which bank, on arrays alone.

Read it in this order, beside the paper. First the numbers: ``grid`` (why they are integers) and
``problem`` (images and prompts as checked rows). Then the outer loop, ``boost``, and what one of its
rounds returns, ``composition``. Then the two composers, ``greedy`` (the paper's) and ``gradient`` (the
default). Both multiply rows with ``compiled``.
"""

from promptboost.boosting.boost import BoostRound, BoostSettings, BoostState, boost
from promptboost.boosting.composition import Composition, GradientTrace, GreedyTrace, Step
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.greedy.insertion import compose_greedily
from promptboost.boosting.problem import GridPool, Shots

__all__ = [
    "BoostRound",
    "BoostSettings",
    "BoostState",
    "Composition",
    "GradientSettings",
    "GradientTrace",
    "GreedyTrace",
    "GridPool",
    "Shots",
    "Step",
    "boost",
    "compose_by_gradient",
    "compose_greedily",
]
