"""Log fits with MLflow or Weights & Biases."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from promptboost.encoders.runtime import require_modules
from promptboost.errors import SettingError
from promptboost.run.tracker import Tracker


class MLflowTracker:
    """Log fits with MLflow: settings as parameters, figures as metrics, files as artifacts.

    `address` is a tracking URI; by default MLFLOW_TRACKING_URI, or the folder ``mlruns``.
    """

    def __init__(self, experiment: str = "promptboost", address: str | None = None) -> None:
        self._mlflow: Any = _library("mlflow")
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
        """Log the figures and the files, and end the run."""
        self._mlflow.log_metrics(dict(figures))
        for file in files:
            self._mlflow.log_artifact(str(file))
        self._mlflow.end_run("FINISHED" if files else "FAILED")


class WandbTracker:
    """Log fits with Weights & Biases."""

    def __init__(self, project: str = "promptboost") -> None:
        self._wandb: Any = _library("wandb")
        self._project = project
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a run."""
        self._run = self._wandb.init(project=self._project, name=name, config=dict(settings))

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round as a step."""
        self._run.log(dict(figures), step=number)

    def end(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log the figures and the files, and end the run."""
        self._run.summary.update(dict(figures))
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")
        self._run.finish(exit_code=0 if files else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {"mlflow": MLflowTracker, "wandb": WandbTracker}


def make_trackers(names: Iterable[str]) -> tuple[Tracker, ...]:
    """Make trackers by name; raise if a name is unknown or a library is missing."""
    trackers = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise SettingError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
        trackers.append(TRACKERS[name]())
    return tuple(trackers)


def _library(module: str) -> Any:
    require_modules([module], module, f"fits tracked with {module}")
    return import_module(module)
