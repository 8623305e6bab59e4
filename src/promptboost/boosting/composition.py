"""What a composer gives: one bank of prompts for every class, and how it came about."""

from collections.abc import Mapping
from dataclasses import dataclass

from promptboost.boosting.search import Effort

__all__ = ["Composition", "GradientTrace", "GreedyTrace", "Step"]


@dataclass(frozen=True)
class Step:
    """``copies`` of prompt ``prompt`` appended to the bank of one class, and the error after that."""

    class_index: int
    prompt: int
    copies: int
    error: float


@dataclass(frozen=True)
class GreedyTrace:
    """How the greedy composer went.

    Attributes
    ----------
    steps : tuple of Step
        What was appended, in order.
    cycles : int
        Number of passes over all classes; the last one changed nothing.
    effort : Effort
        What the search has done.
    """

    steps: tuple[Step, ...]
    cycles: int
    effort: Effort


@dataclass(frozen=True)
class GradientTrace:
    """How the gradient composer went.

    Attributes
    ----------
    objectives, gaps : tuples of float
        The objective and its Frank-Wolfe gap before each sweep, and at the end. The last gap is the
        certificate: no weighting of all prompts of the pool, whole copies or not, has an objective
        lower by more than that (the pictures weighed as at the end, see
        :class:`~promptboost.boosting.gradient.GradientSettings`).
    pool_reads : int
        How often the whole pool was looked at.
    """

    objectives: tuple[float, ...]
    gaps: tuple[float, ...]
    pool_reads: int

    @property
    def sweeps(self) -> int:
        """Number of passes over all classes."""
        return len(self.objectives) - 1


@dataclass(frozen=True)
class Composition:
    """One weak classifier, and how it was composed.

    Attributes
    ----------
    template : int
        The template every bank began with.
    template_error : float
        Weighted error with the template alone.
    error : float
        Weighted error of the weak classifier on the rows it was composed on.
    template_copies : tuple of int
        For each class, the copies of the template in its bank; may be 0.
    banks : tuple of mapping of int to int
        For each class, prompt → number of copies, in order of entry, without the template.
    trace : GreedyTrace or GradientTrace
        How it came about.
    """

    template: int
    template_error: float
    error: float
    template_copies: tuple[int, ...]
    banks: tuple[Mapping[int, int], ...]
    trace: GreedyTrace | GradientTrace

    @property
    def composer(self) -> str:
        """Name of the composer."""
        return "greedy" if isinstance(self.trace, GreedyTrace) else "gradient"
