"""Choice: the algorithm, on arrays alone.

Read :mod:`~promptboost.boosting.grid` (what the numbers are), then
:mod:`~promptboost.boosting.compose` and :mod:`~promptboost.boosting.boost` beside the paper, then
:mod:`~promptboost.boosting.search` (how the search is fast).
"""

from promptboost.boosting.boost import BoostRound, BoostSettings, BoostState, boost
from promptboost.boosting.compose import Composition, Step, compose
from promptboost.boosting.problem import GridPool, Shots

__all__ = [
    "BoostRound",
    "BoostSettings",
    "BoostState",
    "Composition",
    "GridPool",
    "Shots",
    "Step",
    "boost",
    "compose",
]
