import pytest

from promptboost.config import FitConfig
from promptboost.errors import RunError
from promptboost.model.head import encoder_slug
from promptboost.run.run_folder import RunFolder


def started(path):
    run = RunFolder(path)
    run.begin(FitConfig(), {"data": {"source": "my images"}})
    return run


def test_slugs_are_file_names():
    assert encoder_slug("hf-hub:org/name") == "hf-hub-org-name"
    assert encoder_slug("conse:lite0?temperature=2") == "conse-lite0-temperature-2"


def test_states(tmp_path):
    run = RunFolder(tmp_path / "run")
    assert run.state == "missing"
    (tmp_path / "run").mkdir()
    assert run.state == "missing"
    started(run.path)
    assert run.state == "unfinished"
    run.partial_path.write_text("{}")
    run.metrics_path.write_text("{}")
    assert run.state == "unfinished"
    run.partial_path.unlink()
    assert run.state == "finished"


def test_leftover_temporary_files_do_not_make_a_folder_somebody_elses(tmp_path):
    (tmp_path / ".promptboost-0123.tmp").write_text("half a file")
    assert RunFolder(tmp_path).state == "missing"


def test_other_peoples_folders_and_files_are_refused_whatever_is_asked(tmp_path):
    (tmp_path / "thesis.tex").write_text("all my work")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        for flags in ({"overwrite": True, "resume": False}, {"overwrite": False, "resume": True}):
            with pytest.raises(RunError, match="exists and is not a run folder"):
                RunFolder(path).check_free(**flags)


def test_clear_deletes_only_what_a_run_writes(tmp_path):
    run = started(tmp_path / "run")
    for name in ("metrics.json", "head-a.safetensors", "notes.txt", ".promptboost-1.tmp"):
        (run.path / name).write_text("x")
    run.clear()
    assert [file.name for file in run.path.iterdir()] == ["notes.txt"]


def test_what_to_type_about_an_existing_run(tmp_path):
    run = started(tmp_path / "run")
    with pytest.raises(RunError, match="--resume to continue it, or --overwrite"):
        run.check_free(overwrite=False, resume=False)
    with pytest.raises(RunError, match=r"promptboost fit 'my images' -o .* --resume"):
        run.check_finished()
    run.metrics_path.write_text("{}")
    with pytest.raises(RunError, match="add --overwrite"):
        run.check_free(overwrite=False, resume=False)
    run.check_free(overwrite=True, resume=False)
    run.check_free(overwrite=False, resume=True)


def test_no_run_at_all(tmp_path):
    with pytest.raises(RunError, match="does not exist; to make one, type: promptboost fit DATA"):
        RunFolder(tmp_path / "run").check_finished()
    with pytest.raises(RunError, match=r"type: promptboost fit DATA -o '\S+/my run'"):
        RunFolder(tmp_path / "my run").check_finished()
    with pytest.raises(RunError, match="is not a run folder"):
        RunFolder(tmp_path).check_finished()


def test_what_python_saved_is_no_run_and_is_told_apart(tmp_path):
    (tmp_path / "ensemble.json").write_text("{}")
    run = RunFolder(tmp_path)
    for needed in (run.check_finished, lambda: run.tables):
        with pytest.raises(
            RunError, match=r"saved from Python, .* To make a run, type: promptboost fit"
        ):
            needed()
