"""Round: one weak classifier, as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptboost.ensemble import checks
from promptboost.errors import SettingError

__all__ = ["Round"]


@dataclass(frozen=True)
class Round:
    """One weak classifier: a bank of prompts for every class.

    Parameters
    ----------
    template : str
        The template the round began with, for example ``"a photo of a {}."``.
    banks : mapping of str to mapping of str to int
        Class name → {prompt: copies}. A class scores the mean cosine over its copies.
    error : float
        Weighted error on the views the round was composed on, when it was finished.
    template_error : float
        The same error with the template alone.
    vote : float, default=1.0
        Weight of the round's vote: always 1 in SAMME.R, whose votes weigh themselves. In
        SAMME, 0 is the vote of a round no better than chance.
    composer : str, default="greedy"
        How the banks were composed.
    objective, gap : float, optional
        What the gradient composer arrived at, and its certificate: no weighting of the pool's prompts
        has an objective lower by more than the gap.

    Examples
    --------
    >>> banks = {"cat": {"a cat.": 2, "a tabby asleep.": 1}, "dog": {"a dog.": 1}}
    >>> Round("a {}.", banks, error=0.1, template_error=0.3).banks["cat"]
    {'a cat.': 2, 'a tabby asleep.': 1}
    """

    template: str
    banks: Mapping[str, Mapping[str, int]]
    error: float
    template_error: float
    vote: float = 1.0
    composer: str = "greedy"
    objective: float | None = None
    gap: float | None = None

    def checked(self, class_names: tuple[str, ...], algorithm: str, where: str) -> "Round":
        """Check the fields against the ensemble the round is in; give them as plain types."""
        vote = checks.as_number(self.vote, f"{where}.vote")
        if vote < 0:
            raise SettingError(f"{where}.vote: must not be negative, and is {vote}.")
        if algorithm == "samme.r" and vote != 1:
            raise SettingError(f"{where}.vote: is {vote}; in SAMME.R every vote is 1.")
        return Round(
            template=checks.as_text(self.template, f"{where}.template"),
            banks=checks.as_banks(self.banks, class_names, f"{where}.banks"),
            error=checks.as_number(self.error, f"{where}.error"),
            template_error=checks.as_number(self.template_error, f"{where}.template_error"),
            vote=vote,
            composer=checks.as_text(self.composer, f"{where}.composer"),
            objective=checks.as_optional_number(self.objective, f"{where}.objective"),
            gap=checks.as_optional_number(self.gap, f"{where}.gap"),
        )

    def record(self) -> dict[str, Any]:
        """Give the fields in the order of the file: the facts, then the banks they are about."""
        facts = ("template", "composer", "vote", "template_error", "error", "objective", "gap")
        return {name: getattr(self, name) for name in (*facts, "banks")}
