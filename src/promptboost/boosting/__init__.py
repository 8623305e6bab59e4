"""Choice: which prompts enter which bank, on arrays alone.

Read it in this order, beside the paper. First the numbers: ``grid`` (why they are integers) and
``problem`` (images and prompts as checked rows). Then the outer loop, ``samme``, and what one of its
rounds returns, ``composition``. Then the two composers, ``greedy`` (the paper's) and ``gradient`` (the
default). Both multiply rows with ``compiled``.
"""

from typing import TYPE_CHECKING

from promptboost.lazy import on_first_use

if TYPE_CHECKING:
    from promptboost.boosting.composition import Composition, GradientTrace, GreedyTrace, Step
    from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
    from promptboost.boosting.greedy.insertion import compose_greedily
    from promptboost.boosting.problem import GridPool, Shots
    from promptboost.boosting.samme import BoostRound, BoostSettings, BoostState, boost

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

# Answering for images needs the balance only, and none of the compiled code.
__getattr__ = on_first_use(
    __name__,
    {
        "samme": ["BoostRound", "BoostSettings", "BoostState", "boost"],
        "composition": ["Composition", "GradientTrace", "GreedyTrace", "Step"],
        "gradient.compose": ["GradientSettings", "compose_by_gradient"],
        "greedy.insertion": ["compose_greedily"],
        "problem": ["GridPool", "Shots"],
    },
)
