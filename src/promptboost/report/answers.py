"""What a check can answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Answer", "Outcome", "fine", "found", "skipped"]

Outcome = Literal["found", "fine", "not applicable"]

_MOST_DETAILS = 12


@dataclass(frozen=True)
class Answer:
    """The outcome of one check on one run.

    Attributes
    ----------
    outcome : {"found", "fine", "not applicable"}
        Whether there is something to look at.
    summary : str
        One sentence with the figures.
    details : tuple of str
        Where it was found.
    type_next : str, optional
        A command or a line of Python that helps.
    """

    outcome: Outcome
    summary: str
    details: tuple[str, ...] = ()
    type_next: str | None = None


def found(summary: str, *, details: Sequence[str] = (), type_next: str) -> Answer:
    """Say what was found, where, and what to type next.

    Examples
    --------
    >>> found("20 things.", details=["thing"] * 20, type_next="ls").details[-1]
    '… and 8 more'
    """
    rest = len(details) - _MOST_DETAILS
    shown = [*details[:_MOST_DETAILS], *([f"… and {rest} more"] if rest > 0 else [])]
    return Answer("found", summary, tuple(shown), type_next)


def fine(summary: str) -> Answer:
    """Say that there is nothing to look at, and on what grounds."""
    return Answer("fine", summary)


def skipped(reason: str) -> Answer:
    """Say why a check has nothing to say about this run."""
    return Answer("not applicable", reason)
