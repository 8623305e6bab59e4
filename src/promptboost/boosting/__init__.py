"""Choice: the algorithm, on arrays alone.

Read :mod:`~promptboost.boosting.grid` (what the numbers are), then
:mod:`~promptboost.boosting.greedy.insertion` and :mod:`~promptboost.boosting.boost` beside the paper, then
:mod:`~promptboost.boosting.greedy.search` (how the greedy search is fast), and
:mod:`~promptboost.boosting.gradient.compose` (the other composer).
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
