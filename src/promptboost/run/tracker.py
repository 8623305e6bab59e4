"""Experiment trackers, as a fit sees them; :mod:`promptboost.trackers` has some."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from promptboost.run.results import Results

#: Files of a run that are logged.
FILES = ("ensemble.json", "run.toml", "metrics.json", "report.html", "README.md")


@runtime_checkable
class Tracker(Protocol):
    """A logger of fits.

    An error in a tracker never ends a fit: it is reported, and the tracker is not called again.
    """

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start logging a fit: the name of its folder, and its settings."""

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round; the first has number 1."""

    def end(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log final metrics and files; without files, mark the fit as failed."""


class Tracking:
    """Log one fit with several trackers; one that fails is not called again."""

    def __init__(self, trackers: Sequence[Tracker], say: Callable[[str], None]) -> None:
        self._trackers, self._say = list(trackers), say

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of every tracker."""
        for tracker in list(self._trackers):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # never worth losing a fit
                self._trackers.remove(tracker)
                reason = " ".join(str(error).split())[:200]
                self._say(f"{type(tracker).__name__} failed and is no longer called: {reason}")


def result_figures(results: Results) -> dict[str, float]:
    """Return the known figures of a fit by name."""
    figures: dict[str, float | None] = {}
    for method in results.methods:
        name = method.name.replace("-", "_")
        figures[f"accuracy_{name}"] = method.accuracy
        figures[f"class_accuracy_{name}"] = method.class_accuracy
        figures[f"log_loss_{name}"] = method.log_loss
    if results.residual is not None:
        figures["text_share"] = results.residual.text_share
    return {name: float(value) for name, value in figures.items() if value is not None}
