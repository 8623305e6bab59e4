"""A run is a transaction: one writer, replaced at the end, and nothing outside it is touched."""

import json
import os
import shutil
import tomllib
from contextlib import nullcontext

import pytest
from filelock import FileLock

import promptboost.run.fit as fit_module
from promptboost.cli import main
from promptboost.errors import RunError
from promptboost.io import NEXT, writing
from promptboost.model import PromptEnsemble
from promptboost.report import write_report
from promptboost.run.fit import fit_run
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run
from tests.run.run_tools import interrupted, request

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes are those of POSIX")


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture
def begun(fitted):
    """A finished run with a file of the user's, and a fit that was interrupted while replacing it."""
    (fitted / "run/notes.txt").write_text("mine")

    with interrupted(2):
        fit_run(**request(fitted, overwrite=True, seed=1))
    return fitted


def test_the_old_run_is_whole_until_the_new_one_is_finished(fitted, request_seed_1, begun):
    run = RunFolder(begun / "run")
    assert run.state == "finished"
    assert run.settings.seed == run.results.task.seed == 0
    open_classifier(run.path)
    write_report(run.path)
    assert run.unfinished.settings.seed == 1
    said = []
    fit_run(**request(begun, resume=True, seed=1), say=said.append)
    assert "resuming after round 2" in said
    assert (run.path / "ensemble.json").read_bytes() == request_seed_1
    fresh = RunFolder(run.path)
    assert fresh.settings.seed == fresh.results.task.seed == 1
    assert sorted(os.listdir(run.path)) == [
        "README.md",
        "ensemble.json",
        "explanations.json",
        "head-fake-32-0.safetensors",
        "metrics.json",
        "notes.txt",
        "predictions.csv",
        "report.html",
        "residual.json",
        "run.toml",
        "thumbnails.json",
        "weights.json",
    ]
    assert "promptboost predict run" in (run.path / "README.md").read_text()
    assert NEXT not in (run.path / "report.html").read_text()


@pytest.fixture
def request_seed_1(fitted):
    fit_run(**request(fitted, "other", seed=1))
    return (fitted / "other/ensemble.json").read_bytes()


def test_what_is_there_is_said_of_a_run_that_is_being_replaced(begun, capsys):
    with pytest.raises(
        RunError, match=r"finished run and an unfinished one to replace it.*--resume"
    ):
        fit_run(**request(begun))
    with pytest.raises(RunError, match=r"seed is 0, but the run in .*run was made with 1"):
        fit_run(**request(begun, resume=True))
    options = ["--encoder", "fake:32-0", "--resume"]
    with pytest.raises(SystemExit) as leaving:
        main(["fit", str(begun / "images"), "-o", str(begun / "run"), *options])
    assert not leaving.value.code
    assert tomllib.loads((begun / "run/run.toml").read_text())["fit"]["seed"] == 1


def test_another_overwrite_starts_again(begun):
    fit_run(**request(begun, overwrite=True, seed=2))
    assert RunFolder(begun / "run").settings.seed == 2
    assert RunFolder(begun / "run").unfinished is None


def test_stopped_before_it_took_its_place_it_takes_it_when_resumed(begun, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("promptboost.run.run_folder.swap", stop)
        with pytest.raises(KeyboardInterrupt):
            fit_run(**request(begun, resume=True, seed=1))
    assert RunFolder(begun / "run").results.task.seed == 0
    said = []
    results = fit_run(**request(begun, resume=True, seed=1), say=said.append)
    assert "already finished" in said[-1]
    assert results.task.seed == RunFolder(begun / "run").results.task.seed == 1


def test_resume_never_ends_well_without_a_text(fitted):
    whole = (fitted / "run/ensemble.json").read_bytes()
    (fitted / "run/ensemble.json").unlink()
    fit_run(**request(fitted, resume=True))
    assert (fitted / "run/ensemble.json").read_bytes() == whole


@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_left_is_swept_though_nothing_is_to_be_done(fitted, seed):
    before = content(fitted / "run")
    for name in (".promptboost.lock", ".promptboost-0123.tmp"):
        (fitted / "run" / name).write_text("left by a process that was killed")
    (fitted / "run" / NEXT).mkdir()
    # Another seed is refused.
    with pytest.raises(RunError, match="was made with 0") if seed else nullcontext():
        fit_run(**request(fitted, resume=True, seed=seed))
    assert content(fitted / "run") == before
    assert not (fitted / "run" / NEXT).exists()
    assert not (fitted / "run" / NEXT).exists()


def test_rounds_of_another_are_never_gone_on_with(task):
    """A folder with nothing but the rounds of another fit is nobody's run."""
    (task / "run").mkdir()
    (task / "run/partial.json").write_text("{}")
    with pytest.raises(RunError, match="is not a run folder"):
        fit_run(**request(task))


def test_a_second_fit_is_refused_before_it_reads_anything(task, monkeypatch):
    def read(*_, **__):
        raise AssertionError("images were read")

    monkeypatch.setattr(fit_module, "load_task", read)
    (task / "run").mkdir()
    with FileLock(task / "run/.promptboost.lock"):
        (task / "run/.promptboost.lock").write_text("fit (process 123 on here)")
        with pytest.raises(
            RunError, match=r"another fit \(process 123 on here\) is writing to .*run"
        ):
            fit_run(**request(task))


def test_a_transfer_of_a_text_that_was_changed_meanwhile_writes_nothing(fitted, monkeypatch):
    from promptboost.run import transfer

    measure = transfer._measure

    def edited_meanwhile(*given):
        text = PromptEnsemble.load(fitted / "run/ensemble.json")
        text.add("sea", "something new").save(fitted / "run/ensemble.json")
        return measure(*given)

    monkeypatch.setattr(transfer, "_measure", edited_meanwhile)
    with pytest.raises(RunError, match="was changed meanwhile"):
        transfer_run(fitted / "run", "fake:16-1")
    assert not list((fitted / "run").glob("head-fake-16*"))
    assert not RunFolder(fitted / "run").results.transfers


@pytest.mark.parametrize(
    "name",
    ["report.html", "README.md", "metrics.json", "head-fake-16-1.safetensors"],
)
def test_a_link_in_a_run_is_replaced_and_its_target_left_alone(fitted, name):
    run, precious = fitted / "run", fitted / "precious"
    file = run / name
    if file.exists():
        shutil.copy(file, precious)
        file.unlink()
    else:
        precious.write_bytes(b"mine")
    file.symlink_to(precious)
    before = precious.read_bytes()
    transfer_run(run, "fake:16-1")
    assert precious.read_bytes() == before
    assert file.is_file()
    assert not file.is_symlink()
    assert file.read_bytes() != before


def test_a_fit_leaves_the_targets_of_links_alone(begun):
    """All that a fit writes into the folder of the new run is a link to somewhere else."""
    stage = begun / "run" / NEXT
    (begun / "precious").write_bytes(b"mine")
    (begun / "outside").mkdir()
    (begun / "outside/precious").write_bytes(b"mine")
    for name in ("ensemble.json", "weights.json", "metrics.json", "predictions.csv", "report.html"):
        (stage / name).symlink_to(begun / "precious")
    (stage / "pool-rows").symlink_to(begun / "outside")
    fit_run(**request(begun, resume=True, seed=1))
    assert (begun / "precious").read_bytes() == b"mine"
    assert content(begun / "outside") == {"precious": b"mine"}
    assert RunFolder(begun / "run").results.task.seed == 1
    assert not any(file.is_symlink() for file in (begun / "run").iterdir())


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("ensemble.json", ("show", "predict", "report", "transfer")),
        ("metrics.json", ("show", "report", "transfer")),
        ("run.toml", ("transfer",)),
        ("weights.json", ("show", "predict", "report")),
        ("report.html", ("report",)),
    ],
)
def test_a_pipe_in_a_run_is_an_error_and_no_wait(fitted, capsys, name, commands):
    (fitted / "run" / name).unlink()
    os.mkfifo(fitted / "run" / name)
    more = {"predict": [str(fitted / "images")], "transfer": ["--encoder", "fake:16-1"]}
    for command in commands:
        with pytest.raises(SystemExit) as leaving:
            main([command, str(fitted / "run"), *more.get(command, [])])
        assert leaving.value.code == 2, command
        assert "regular file" in capsys.readouterr().err or command == "report"


def test_a_pipe_in_the_place_of_a_head_is_passed_by(fitted):
    head = fitted / "run/head-fake-32-0.safetensors"
    head.unlink()
    os.mkfifo(head)
    classifier = open_classifier(fitted / "run")
    assert classifier.head.dim == 32


def test_a_pipe_for_settings_or_sentences(task, capsys):
    fit = ["fit", str(task / "images"), "-o", str(task / "run"), "--encoder", "fake:16-0"]
    for option, name in (("--config", "pipe.toml"), ("--prompts", "pipe.json")):
        os.mkfifo(task / name)
        with pytest.raises(SystemExit) as leaving:
            main([*fit, option, str(task / name)])
        assert leaving.value.code == 2
        assert name in capsys.readouterr().err


def test_a_report_waits_for_the_writer(fitted, monkeypatch):
    monkeypatch.setattr("promptboost.io._PATIENCE", 0.1)
    before = json.loads((fitted / "run/metrics.json").read_text())
    with writing(fitted / "run", "fit"):
        write_report(fitted / "run")  # the same thread is the same writer
    assert json.loads((fitted / "run/metrics.json").read_text()) == before
