"""Runs and ensembles as an earlier promptboost fitted them, in tests/old_runs, with its answers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import promptboost
from promptboost.encoders import load_encoder
from promptboost.errors import FileFormatError
from promptboost.model import PromptEnsemble
from promptboost.report.page import read_run
from tests.cli.cli_tools import call

OLD = Path(__file__).parents[1] / "old_runs"
ANSWERS = json.loads((OLD / "answers.json").read_text())
RUNS = ["gradient", "paper"]


def holds(now, before):
    """Whether an answer says all that it said before; it may say more."""
    if isinstance(before, dict):
        return all(key in now and holds(now[key], before[key]) for key in before)
    if isinstance(before, list):
        return len(now) == len(before) and all(map(holds, now, before))
    return now == before


@pytest.fixture
def old(tmp_path, monkeypatch):
    """The folder in which the commands of then were typed."""
    shutil.copytree(OLD, tmp_path / "old")
    for file in (tmp_path / "old").glob("*/run.toml"):
        file.write_text(file.read_text().replace("@HERE@", str(tmp_path / "old")))
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def top(records):
    return {r["image"]: {t["class"]: t["probability"] for t in r["top"]} for r in records}


@pytest.mark.parametrize("run", ANSWERS)
def test_the_text_is_read_as_it_was(run):
    ensemble = PromptEnsemble.load(OLD / run / "ensemble.json")
    for name, weights in ANSWERS[run]["prompts"].items():
        assert ensemble.prompts(name) == pytest.approx(weights, rel=1e-12)
    assert ensemble.fingerprint == ANSWERS[run]["fingerprint"]
    assert ensemble.logit_scale is None
    assert len(ensemble.sample_weights) == 9
    assert PromptEnsemble.from_json(ensemble.to_json()) == ensemble


@pytest.mark.parametrize("run", ANSWERS)
def test_predict_answers_as_it_did(capsys, old, run):
    arguments = ("predict", run, "images", "--json", "--top-k", 3)
    for extra, key in (([], "predictions"), (["--encoder", "fake:16-1"], "on fake:16-1")):
        records = call(capsys, *arguments, *extra).json["predictions"]
        before = ANSWERS[run][key]
        assert [r["predicted"] for r in records] == [r["predicted"] for r in before]
        for image, chances in top(before).items():
            # The text is embedded again where there is no head, and float32 has seven digits.
            assert top(records)[image] == pytest.approx(chances, rel=1e-5)


@pytest.mark.parametrize("run", RUNS)
def test_the_head_that_lies_there_is_used_as_it_is(old, run):
    head = old / run / "head-fake-16-0.safetensors"
    classifier = promptboost.load(run)
    data = [record["image"] for record in ANSWERS[run]["predictions"]]
    chances = classifier.predict_proba(data)
    before = top(ANSWERS[run]["predictions"])
    for image, row in zip(data, chances, strict=True):
        answered = dict(zip(classifier.class_names, row.tolist(), strict=True))
        assert answered == pytest.approx(before[image], rel=1e-7)
    stored = type(classifier.head).load(head)
    assert (stored.weights == classifier.head.weights).all()
    assert stored.ensemble_fingerprint == classifier.ensemble.fingerprint
    assert stored.logit_scale is None


@pytest.mark.parametrize("run", ANSWERS)
def test_embedded_anew_it_votes_as_it_did(old, run):
    from promptboost.data.decode import read_image

    encoder = load_encoder("fake:16-0")
    head = PromptEnsemble.load(f"{run}/ensemble.json").embed(encoder)
    before = ANSWERS[run]["head"]
    rows = encoder.encode_images([read_image(Path(image)) for image in before])
    votes = head.decision_function(rows)
    np.testing.assert_allclose(votes, list(before.values()), rtol=1e-4, atol=1e-5)


def test_hard_votes_are_no_longer_read(capsys, old):
    with pytest.raises(FileFormatError, match=r'"samme".*hard vote.*cannot be read: fit again'):
        PromptEnsemble.load("samme/ensemble.json")
    answer = call(capsys, "predict", "samme", "images")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert "cannot be read: fit again" in answer.err


@pytest.mark.parametrize("run", RUNS)
def test_show_report_evaluate_and_transfer(capsys, old, run):
    shown = call(capsys, "show", run, "--json")
    before = ANSWERS[run]["show"]
    assert shown.json["edited"] is False
    assert holds(shown.json["hardest"], before["hardest"])
    assert shown.json["rounds"] == before["rounds"]
    assert call(capsys, "report", run).code == 0
    assert (old / run / "report.html").exists()
    assert not read_run(run).is_edited
    measured = call(capsys, "evaluate", run, "images", "--json").json
    for key in ("images", "learned_from", "methods", "per_class"):
        assert holds(measured[key], ANSWERS[run]["evaluate"][key])
    moved = call(capsys, "transfer", run, "--encoder", "fake:16-1", "--json")
    answered = ANSWERS[run]["transfer"]
    assert moved.json["images"] == answered["images"]
    now, then = moved.json["accuracy"], answered["accuracy"]
    assert now["promptboost"] == then["promptboost"]
    # Templates have changed since: that pool cannot be built again, and zero-shot has another sentence.
    assert (now["template-mean"], now["pool-mean"]) == (None, None)
    assert 0 <= now["zero-shot"] <= 1
