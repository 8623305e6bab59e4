import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib

import pytest

from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from tests.cli.cli_tools import FIT, call
from tests.run.run_tools import start_promptboost, unfinish


def fit(capsys, task, *options):
    return call(capsys, "fit", task / "images", "-o", task / "run", *FIT, *options)


def test_what_a_newcomer_sees(capsys, task):
    answer = fit(capsys, task)
    assert answer.code == 0
    assert answer.err.startswith("the pool has templates only")
    for part in ("zero-shot, “a photo of a {}.”", "mean of 16 templates", "logistic regression"):
        assert part in answer.out
    assert "boosted, by gradient, 3 rounds" in answer.out
    assert "composed     by gradient" in answer.out
    assert "certificate  objective" in answer.out
    assert "distinct prompts per class on average" in answer.out
    assert f"promptboost predict {shlex.quote(str(task / 'run'))}" in answer.out
    assert str(task / "run/report.html") in answer.out


def test_held_out_images_that_were_learned_from_are_told_and_names_obey_nobody(capsys, task):
    for file in sorted((task / "images/sea").iterdir()):
        shutil.copy(file, file.with_name(f"\x1b[31m{file.name}"))
    answer = fit(capsys, task)
    assert "held-out images are in the training set" in answer.err
    assert "\x1b" not in answer.err + answer.out
    assert "% without the " in answer.out
    told = fit(capsys, task, "--overwrite", "--json").json
    leaks = told["overlap"]["leaks"]
    assert leaks["images"] == leaks["exact"] > 0
    assert told["methods"][0]["unseen_accuracy"] is not None
    run = call(capsys, "evaluate", task / "run", task / "images")
    assert "% without the " in run.out
    assert "\x1b" not in run.err + run.out


def kept_settings(task):
    kept = tomllib.loads((task / "run/run.toml").read_text())["fit"]
    return kept["composer"], kept["rounds"], kept["views_per_round"]


def test_a_preset_gives_way_to_the_file_and_the_file_to_what_is_typed(capsys, task):
    plain = ["fit", task / "images", "-o", task / "run", *FIT[:4], "--views", "4", "--overwrite"]
    config = task / "mine.toml"
    config.write_text("rounds = 2\nviews_per_round = 3\n")
    assert call(capsys, *plain, "--preset", "paper", "--rounds", "4").code == 0
    assert kept_settings(task) == ("greedy", 4, 4)
    assert call(capsys, *plain, "--preset", "paper", "--config", config).code == 0
    assert kept_settings(task) == ("greedy", 2, 3)
    typed = ["--composer", "gradient", "--rounds", "1"]
    assert call(capsys, *plain, "--preset", "paper", "--config", config, *typed).code == 0
    assert kept_settings(task) == ("gradient", 1, 3)


def test_all_views_are_seen_unless_fewer_are_asked_for(capsys, task):
    plain = ["fit", task / "images", "-o", task / "run", *FIT[:4], "--overwrite"]
    for options, seen in ((["--views", "3"], 3), (["--views", "3", "--views-per-round", "2"], 2)):
        assert call(capsys, *plain, *options).code == 0
        kept = json.loads((task / "run/ensemble.json").read_text())["settings"]
        assert (kept["views"], kept["views_per_round"]) == (3, seen)
    assert call(capsys, *plain, "--preset", "paper", "--views-per-round", "all").code == 0
    assert kept_settings(task) == ("greedy", 50, "all")


def test_a_preset_is_kept_when_a_run_goes_on(capsys, task):
    fit(capsys, task, "--preset", "paper")
    run = RunFolder(task / "run")
    before = run.ensemble_path.read_bytes()
    unfinish(run)
    run.ensemble_path.unlink()
    run.metrics_path.unlink()
    plain = ["fit", task / "images", "-o", task / "run", "--resume"]
    other = call(capsys, *plain, "--preset", "default", "--views-per-round", "1")
    assert other.code == 2
    assert "templates is own, but the run" in other.err
    assert call(capsys, *plain).code == 0
    assert run.ensemble_path.read_bytes() == before
    # The same command again, preset and all, is no other request.
    assert "already finished" in fit(capsys, task, "--preset", "paper", "--resume").err


def test_settings_of_the_other_composer_are_refused(capsys, task):
    config = task / "mine.toml"
    config.write_text("logit_scale = 30\n")
    answer = fit(capsys, task, "--config", config, "--composer", "greedy")
    assert answer.code == 2
    assert "only the gradient composer has it" in answer.err


def test_every_setting_can_be_typed(capsys, task):
    typed = ["--spread", "0.5", "--caution", "0", "--copies", "8", "--sweeps", "5"]
    assert fit(capsys, task, *typed, "--view-scale", "0.3").code == 0
    kept = tomllib.loads((task / "run/run.toml").read_text())["fit"]
    assert (kept["spread"], kept["caution"], kept["copies"], kept["sweeps"]) == (0.5, 0.0, 8, 5)
    assert kept["view_scale"] == 0.3
    used = json.loads((task / "run/ensemble.json").read_text())
    # Copies are divided among the rounds.
    assert (used["settings"]["spread"], used["settings"]["copies"]) == (0.5, 8 // 3)
    assert {sum(bank.values()) for bank in used["rounds"][0]["banks"].values()} == {8 // 3}
    greedy = ["--composer", "greedy", "--no-penalty", "--overwrite"]
    assert fit(capsys, task, *greedy).code == 0
    kept = tomllib.loads((task / "run/run.toml").read_text())["fit"]
    assert kept["penalty"] is False
    assert "spread" not in kept
    refused = fit(capsys, task, *greedy, "--spread", "1")
    assert (refused.code, "spread is 1.0, but only the gradient" in refused.err) == (2, True)


def test_json_is_one_object_with_the_figures(capsys, task):
    answer = fit(capsys, task, "--json")
    assert answer.json["run"] == str(task / "run")
    assert Results.from_record(answer.json) == Results.read(task / "run/metrics.json")
    assert answer.json["methods"][-1]["name"] == "promptboost"


def test_the_default_encoder_is_told(capsys, task, monkeypatch):
    monkeypatch.setenv("PROMPTBOOST_ENCODER", "conse:lite0")
    answer = call(capsys, "fit", task / "images" / "sea", "-o", task / "run")
    assert "encoder conse:lite0: named by PROMPTBOOST_ENCODER" in answer.err
    quiet = call(capsys, "fit", task / "images" / "sea", "-o", task / "run", "--quiet")
    assert len(quiet.err.splitlines()) == 1


def test_an_existing_run_is_not_touched_without_a_word(capsys, task):
    fit(capsys, task)
    before = (task / "run/ensemble.json").read_bytes()
    answer = fit(capsys, task, "--seed", "5")
    assert answer.code == 2
    assert "--overwrite" in answer.err
    assert (task / "run/ensemble.json").read_bytes() == before
    assert fit(capsys, task, "--seed", "5", "--overwrite").code == 0
    assert (task / "run/ensemble.json").read_bytes() != before


def test_resume_needs_no_options_and_refuses_others(capsys, task):
    fit(capsys, task)
    run = RunFolder(task / "run")
    before = run.ensemble_path.read_bytes()
    unfinish(run)
    run.ensemble_path.unlink()
    run.metrics_path.unlink()
    plain = ["fit", task / "images", "-o", task / "run", "--resume"]
    other = call(capsys, *plain, "--rounds", "9")
    assert "rounds is 9, but the run" in other.err
    assert call(capsys, *plain).code == 0
    assert run.ensemble_path.read_bytes() == before
    assert "already finished" in call(capsys, *plain).err
    refused = call(capsys, *plain, "--seed", "5")
    assert refused.code == 2
    assert "seed is 5, but the run" in refused.err


def test_overwrite_and_resume_exclude_each_other(capsys, task):
    assert "cannot be combined" in fit(capsys, task, "--overwrite", "--resume").err


def test_what_is_typed_wins_over_the_file_and_both_are_kept(capsys, task):
    config = task / "mine.toml"
    config.write_text('rounds = 7\ntemperature = 0.5\nprompts = "sentences.json"\n')
    answer = fit(capsys, task, "--config", config, "--prompts", task / "sentences.json")
    assert answer.code == 0
    kept = tomllib.loads((task / "run/run.toml").read_text())["fit"]
    assert (kept["rounds"], kept["temperature"]) == (3, 0.5)
    assert kept["prompts"] == str(task / "sentences.json")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--shots", "few"], "'few' is neither a number nor 'all'"),
        (["--shots", "0"], "shots is 0, but must be 1 or more"),
        (["--views", "0"], "views_per_round is 1, but there are only 0 views"),
        (["--encoder", "conse:lite9"], "Did you mean"),
        (["--prompts", "nowhere.json"], "cannot read the descriptions nowhere.json"),
        (["--config", "nowhere.toml"], "cannot read the settings nowhere.toml"),
    ],
)
def test_bad_options(capsys, task, options, part):
    answer = fit(capsys, task, *options)
    assert answer.code == 2
    assert part in answer.err
    assert not (task / "run").exists()


def test_shots_may_be_all(capsys, task):
    answer = fit(capsys, task, "--shots", "all", "--json")
    assert answer.json["task"]["learn_images"] == 32
    assert "no image is held out" in answer.err


def test_names_with_control_characters_are_harmless(capsys, task):
    (task / "images/sea/\x1b[31mred\n.png").write_bytes(b"")
    answer = fit(capsys, task)
    assert "\x1b" not in answer.out + answer.err
    assert "�[31mred�.png: the file is empty" in answer.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_what_is_wrong_is_said_before_a_word_about_encoders(capsys, task, monkeypatch):
    monkeypatch.delenv("PROMPTBOOST_ENCODER")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (task / "full").mkdir()
    (task / "full" / "mine.txt").write_text("mine")
    for wrong in (
        (task / "imags", "-o", task / "new"),
        (task / "images", "-o", task / "full"),
        (task / "images", "-o", task / "new", "--prompts", task / "none.json"),
    ):
        answer = call(capsys, "fit", *wrong)
        assert answer.code == 2
        assert answer.err.startswith("error: ")


def test_images_beside_the_only_class_are_told(capsys, task):
    shutil.copy(task / "images" / "sea" / "0.png", task / "images" / "sea" / "one.png")
    (task / "images" / "sea" / "nested").mkdir()
    shutil.copy(task / "images" / "sea" / "0.png", task / "images" / "sea" / "nested")
    answer = call(capsys, "fit", task / "images" / "sea", "-o", task / "new", *FIT)
    assert "one class only, 'nested'" in answer.err
    assert "files are next to its folder" in answer.err
    assert "give the folder above" in answer.err


def test_ctrl_c_leaves_a_run_to_go_on_with(task, tmp_path):
    options = [*FIT, "--rounds", "100000"]
    process = start_promptboost("fit", "images", "-o", "run", *options, cwd=task, cache=tmp_path)
    run = RunFolder(task / "run")
    deadline = time.monotonic() + 60
    while not run.partial_path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    said = errors.splitlines()[-1]
    assert said.startswith("error: interrupted; to resume, type: ")
    assert said.endswith(" -m promptboost fit images -o run --resume")
    assert run.state == "unfinished"


def test_a_read_only_place_is_one_line(capsys, task):
    (task / "file").write_text("")
    answer = call(capsys, "fit", task / "images", "-o", task / "file" / "run", *FIT)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert f"{task / 'file'}: Not a directory; choose another folder" in answer.err


def test_nothing_but_the_result_when_piped(task):
    done = subprocess.run(
        [sys.executable, "-m", "promptboost", "fit", "images", "-o", "run", *FIT],
        cwd=task,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1  # a note, no progress bars
    assert done.stdout.startswith("4 classes, 16 training images, 16 held out\n")
