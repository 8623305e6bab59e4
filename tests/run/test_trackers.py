"""Fits are written down by trackers, MLflow's real file store among them, and never fail by them."""

import pytest

from promptboost.encoders import runtime
from promptboost.errors import MissingExtraError, SettingError
from promptboost.run.fit import fit_run
from promptboost.run.tracker import Tracker, result_figures
from promptboost.trackers import MLflowTracker, make_trackers
from tests.run.run_tools import request


class Notebook:
    """A tracker that keeps what it is told, and fails where it is asked to."""

    def __init__(self, fails=None):
        self.told, self.fails = [], fails

    def tell(self, kind, *what):
        self.told.append((kind, *what))
        if self.fails == kind:
            raise OSError("the disk is full")

    def begin(self, name, settings):
        self.tell("begin", name, settings)

    def round(self, number, figures):
        self.tell("round", number, figures)

    def end(self, figures, files):
        self.tell("end", figures, files)


def fit(task, tracker, **options):
    said = []
    results = fit_run(**request(task, **options), trackers=(tracker,), say=said.append)
    return results, said


def test_a_tracker_is_told_of_the_whole_fit(task):
    tracker = Notebook()
    assert isinstance(tracker, Tracker)
    results, _ = fit(task, tracker, rounds=3)
    kinds = [kind for kind, *_ in tracker.told]
    assert kinds == ["begin", "round", "round", "round", "end"]
    assert tracker.told[0][1] == "run"
    assert tracker.told[0][2]["shots"] == 4
    _, figures, files = tracker.told[-1]
    assert figures == result_figures(results)
    assert figures["accuracy_promptboost"] == results.method("promptboost").accuracy
    assert {file.name for file in files} >= {"ensemble.json", "report.html"}
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("kind", ["begin", "round", "end"])
def test_a_tracker_that_fails_is_left_out_and_the_fit_goes_on(task, kind):
    tracker = Notebook(fails=kind)
    _, said = fit(task, tracker, rounds=2)
    assert [one for one, *_ in tracker.told].count(kind) == 1
    assert any("Notebook failed and is no longer called: the disk is full" in line for line in said)
    assert (task / "run/ensemble.json").is_file()


def test_a_fit_that_fails_is_ended(task, monkeypatch):
    tracker = Notebook()
    monkeypatch.setattr("promptboost.run.fit.write_pages", lambda folder: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        fit_run(**request(task), trackers=(tracker,))
    assert tracker.told[-1] == ("end", {}, ())


def test_mlflow_has_settings_figures_and_files(task, monkeypatch):
    monkeypatch.setenv(
        "MLFLOW_ALLOW_FILE_STORE", "true"
    )  # its store of plain files, which needs no database
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    address = (task / "mlruns").as_uri()
    results, said = fit(task, MLflowTracker("colors", address), rounds=2)
    assert said == [] or not any("MLflow" in line for line in said)
    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("colors")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["encoder"] == "fake:32-0"
    assert run.data.metrics["accuracy_promptboost"] == pytest.approx(
        results.method("promptboost").accuracy
    )
    history = client.get_metric_history(run.info.run_id, "round_error")
    assert [point.step for point in history] == [1, 2]
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"ensemble.json", "report.html"} <= names


def test_a_library_that_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(runtime, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[wandb\]'"):
        make_trackers(["wandb"])
    with pytest.raises(SettingError, match="there is no tracker 'x'"):
        make_trackers(["x"])
