"""Choice: which prompts enter which bank, on arrays alone.

Read it in this order, beside the paper. First the numbers: :mod:`~promptboost.boosting.grid` (why they
are integers) and :mod:`~promptboost.boosting.problem` (images and prompts as checked rows). Then the
outer loop: :mod:`~promptboost.boosting.boost`, and what one of its rounds returns,
:mod:`~promptboost.boosting.composition`. Then the two composers. The paper's:
:mod:`~promptboost.boosting.greedy.insertion`, :mod:`~promptboost.boosting.greedy.search` (why it is fast)
and :mod:`~promptboost.boosting.greedy.flips` (its compiled loops). The default:
:mod:`~promptboost.boosting.gradient.scale`, :mod:`~promptboost.boosting.gradient.compose`,
:mod:`~promptboost.boosting.gradient.banks` and :mod:`~promptboost.boosting.gradient.linesearch`. Both
multiply rows with :mod:`~promptboost.boosting.compiled`.
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
