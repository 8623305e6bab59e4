"""Trackers: fits written down where experiments are kept, by MLflow, W&B or anything with three methods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from promptboost.errors import MissingExtraError, SettingError
from promptboost.run.results import Results

#: Files of a run that a tracker keeps: text, figures, report and card.
FILES = ("ensemble.json", "run.toml", "metrics.json", "report.html", "README.md")


@runtime_checkable
class Tracker(Protocol):
    """Something that is told of a fit while it goes on.

    What goes wrong in a tracker never ends a fit: it is said, and the tracker is left alone.

    Examples
    --------
    >>> class Printer:
    ...     def begin(self, name, settings):
    ...         print("began", name)
    ...
    ...     def round(self, number, figures):
    ...         print("round", number, figures)
    ...
    ...     def end(self, figures, files):
    ...         print("ended", figures)
    >>> isinstance(Printer(), Tracker)
    True
    """

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Be told that a fit begins: the name of its folder, and what it was asked to do."""

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Be told that a round is done, the first of them number 1."""

    def end(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """Be told what was measured, and which files tell of it; without files, that the fit failed."""


class MLflowTracker:
    """Writes fits into MLflow: settings as parameters, figures as metrics, files as artefacts.

    Parameters
    ----------
    experiment : str, default="promptboost"
        The experiment that runs are in.
    address : str, optional
        A tracking URI; by default what MLFLOW_TRACKING_URI says, or the folder ``mlruns``.
    """

    def __init__(self, experiment: str = "promptboost", address: str | None = None) -> None:
        self._mlflow: Any = _library("mlflow", "mlflow")
        if address is not None:
            self._mlflow.set_tracking_uri(address)
        self._experiment = experiment

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a run."""
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=name)
        self._mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round as a step."""
        self._mlflow.log_metrics(dict(figures), step=number)

    def end(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log the figures, keep the files, and end the run."""
        self._mlflow.log_metrics(dict(figures))
        for file in files:
            self._mlflow.log_artifact(str(file))
        self._mlflow.end_run("FINISHED" if files else "FAILED")


class WandbTracker:
    """Writes fits into Weights & Biases.

    Parameters
    ----------
    project : str, default="promptboost"
        The project that runs are in.
    """

    def __init__(self, project: str = "promptboost") -> None:
        self._wandb: Any = _library("wandb", "wandb")
        self._project = project
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a run."""
        self._run = self._wandb.init(project=self._project, name=name, config=dict(settings))

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round as a step."""
        self._run.log(dict(figures), step=number)

    def end(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log the figures, keep the files, and end the run."""
        self._run.summary.update(dict(figures))
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")
        self._run.finish(exit_code=0 if files else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {"mlflow": MLflowTracker, "wandb": WandbTracker}


def make_trackers(names: Iterable[str]) -> tuple[Tracker, ...]:
    """Make the trackers of these names; raise if one is not known or its library is not there."""
    made = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise SettingError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
        made.append(TRACKERS[name]())
    return tuple(made)


def _library(module: str, extra: str) -> Any:
    if find_spec(module) is None:
        raise MissingExtraError(
            f"tracking with {module} needs {module}, which is not installed. Type: "
            f"pip install 'promptboost[{extra}]'"
        )
    return import_module(module)


class Tracking:
    """Tells trackers of one fit; one that fails is left out from then on."""

    def __init__(self, trackers: Sequence[Tracker], say: Callable[[str], None]) -> None:
        self._left, self._say = list(trackers), say

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Tell that a fit begins."""
        self._tell(lambda tracker: tracker.begin(name, settings))

    def round(self, number: int, error: float) -> None:
        """Tell that a round is done."""
        self._tell(lambda tracker: tracker.round(number, {"round_error": error}))

    def end(self, results: Results, folder: Path) -> None:
        """Tell what was measured."""
        files = [folder / name for name in FILES if (folder / name).is_file()]
        figures = result_figures(results)
        self._tell(lambda tracker: tracker.end(figures, files))

    def fail(self) -> None:
        """Tell that nothing more will come."""
        self._tell(lambda tracker: tracker.end({}, ()))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._left):
            try:
                what(tracker)
            except Exception as error:  # whatever it is, the fit is worth more
                self._left.remove(tracker)
                reason = " ".join(str(error).split())[:200]
                self._say(f"{type(tracker).__name__} does not work, and is left out: {reason}")


def result_figures(results: Results) -> dict[str, float]:
    """Return the figures of a fit by name, those that are known."""
    figures: dict[str, float | None] = {}
    for method in results.methods:
        name = method.name.replace("-", "_")
        figures[f"accuracy_{name}"] = method.accuracy
        figures[f"class_accuracy_{name}"] = method.class_accuracy
        figures[f"log_loss_{name}"] = method.log_loss
    if results.residual is not None:
        figures["text_share"] = results.residual.text_share
    return {name: float(value) for name, value in figures.items() if value is not None}
