"""A run whose text was edited: what is learned again, what stays, and what is said."""

import json
import shutil

import numpy as np
import pytest

import promptboost
from promptboost.errors import DataError, LabelError, RunError
from promptboost.model.edits import Change
from promptboost.model.head import RESIDUAL_FILE, head_file
from promptboost.pool import build_pool
from promptboost.report import write_report
from promptboost.run.edit import edit_run
from promptboost.run.fit import fit_run
from promptboost.run.refit import refit_run
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Lineage
from promptboost.training.residual_refit import NoPoolWarning
from tests.cli.cli_tools import call
from tests.run.run_tools import (
    COLOURS,
    ENCODER,
    SENTENCES,
    request,
    write_images,
    write_sentences,
)

OPTIONS = {"composer": "gradient", "rounds": 1, "views": 4, "views_per_round": None}
ROWS = np.eye(32, dtype=np.float32)


@pytest.fixture
def run(task):
    """A run with a residual."""
    fit_run(**request(task, **OPTIONS))
    return task / "run"


def refit(run, **options):
    said = []
    results = refit_run(run, **options, say=said.append)
    return results, "\n".join(said)


def edit(run, change):
    """Change the text as an editor would, with spaces of its own."""
    file = run / "ensemble.json"
    edited = change(promptboost.load(run).ensemble).to_json()
    file.write_text(edited + "\n\n")
    return file.read_bytes()


def test_an_unedited_run_is_learned_as_it_was(run):
    files = ["ensemble.json", head_file(ENCODER), RESIDUAL_FILE, "predictions.csv", "weights.json"]
    before = {name: (run / name).read_bytes() for name in files}
    figures = RunFolder(run).results
    results, said = refit(run)
    assert {name: (run / name).read_bytes() for name in files} == before
    assert results.methods == figures.methods
    assert results.residual == figures.residual
    assert not said


def test_a_sentence_added_by_hand_stays_with_its_weight(run, tmp_path, capsys):
    change = Change(kind="add", class_name="sea", sentence="a calm bay", share=0.3)
    edit_run(run, [change], tmp_path / "edited")
    refit(tmp_path / "edited")
    classifier = promptboost.load(tmp_path / "edited")
    for ensemble in (classifier.ensemble, classifier.transfer("fake:16-1").ensemble):
        assert ensemble.pinned == {"sea": ("a calm bay",)}
        assert ensemble.prompts("sea")["a calm bay"] == pytest.approx(0.3, abs=1e-3)
    assert "a calm bay</bdi> <span" in write_report(tmp_path / "edited").read_text("utf-8")
    shown = call(capsys, "show", tmp_path / "edited")
    assert "30.0%  a calm bay  (added by hand)" in shown.out
    remove = Change(kind="remove", class_name="sea", sentence="a calm bay")
    edit_run(tmp_path / "edited", [remove], tmp_path / "removed")
    assert not promptboost.load(tmp_path / "removed").ensemble.pinned


def test_a_class_that_was_renamed_keeps_its_sentences_and_what_they_are_worth(task, tmp_path):
    sentences = {name: [f"all of {name}", f"the color of {name}"] for name in COLOURS}
    (tmp_path / "sentences.json").write_text(json.dumps(sentences))
    before = fit_run(**request(task, prompts=str(tmp_path / "sentences.json"), **OPTIONS))
    changes = [Change(kind="rename-class", class_name="sea", to="ocean")]
    edit_run(task / "run", changes, tmp_path / "renamed")
    results, said = refit(tmp_path / "renamed")
    assert "sentences of the fit are not used" not in said
    assert results.pool.missing == ()
    assert results.pool.prompts == before.pool.prompts
    assert results.residual.text_share == pytest.approx(before.residual.text_share, abs=0.1)
    assert results.residual.used == before.residual.used


def test_thresholds_follow_an_edit(tmp_path):
    write_images(tmp_path / "images", count=40, noise=150.0)
    write_sentences(tmp_path / "sentences.json")
    before = fit_run(**request(tmp_path, **OPTIONS, shots=8)).thresholds
    green = [
        Change(kind="add", class_name=name, sentence="all is green", share=0.9) for name in COLOURS
    ]
    rename = Change(kind="rename-class", class_name="sea", to="ocean")
    edit_run(tmp_path / "run", green, tmp_path / "green")
    edit_run(tmp_path / "run", [rename], tmp_path / "renamed")
    after, renamed = (refit_run(tmp_path / name).thresholds for name in ("green", "renamed"))
    # All logits rise with the sentence: the threshold of the fit would accept every image.
    assert after.least_logit > before.least_logit + 50
    assert before.accepted - 0.05 < after.accepted < 0.98
    # The text before the edit is composed again, exactly.
    assert renamed.least_logit == pytest.approx(before.least_logit, rel=1e-5)


def test_edited_words_stay_and_the_rest_is_learned_again(run, tmp_path, caplog):
    before = promptboost.load(run).head
    text = edit(run, lambda ensemble: ensemble.add("sea", "a green leaf", copies=9))
    hint = f"fitted with other sentences; to fit it again, type: promptboost refit {run}\n"
    kept = promptboost.load(run).head
    assert hint in caplog.text
    np.testing.assert_array_equal(kept.residual, before.residual)
    results, _ = refit(run, output=tmp_path / "again")
    assert (tmp_path / "again/ensemble.json").read_bytes() == text
    assert (run / "ensemble.json").read_bytes() == text
    caplog.clear()
    after = promptboost.load(tmp_path / "again").head
    assert not caplog.text
    assert np.abs(after.residual - before.residual).max() > 1e-3
    assert results.ensemble_fingerprint == promptboost.load(run).ensemble.fingerprint
    assert promptboost.load(run).head.residual_digest == before.residual_digest  # left alone


def test_figures_of_an_edited_run_count_as_a_look_at_all_held_out_images(run, tmp_path):
    change = Change(kind="add", class_name="sea", sentence="a green leaf")
    edit_run(run, [change], tmp_path / "edited")
    before = Lineage.read(tmp_path / "edited")
    assert before.final_looks == 0
    _, said = refit(tmp_path / "edited")
    after = Lineage.read(tmp_path / "edited")
    assert (after.looks, after.final_looks) == (before.looks + 1, 1)
    assert after.edits == before.edits
    assert "counted as a use of both" in said


def test_classes_may_come_without_images_and_go(task, run):
    edit(run, lambda ensemble: ensemble.add_class("fog", ["grey light"]).drop_class("leaf"))
    results, said = refit(run)
    assert "classes that are not in the ensemble are not used: leaf" in said
    assert "predicted by their sentences alone: fog" in said
    head = promptboost.load(run).head
    assert head.class_names == ("ember", "night", "sea", "fog")
    assert head.balance.class_names == ("ember", "night", "sea")
    assert not head.residual[-1].any()
    assert results.task.classes == 4
    assert {row.class_name: row.count for row in results.per_class}["fog"] == 0


def test_images_of_a_new_class_are_learned_from(task, run):
    edit(run, lambda ensemble: ensemble.add_class("fog", ["grey light"]))
    learned = set(RunFolder(run).results.task.learn_digests)
    shutil.copytree(task / "images/sea", task / "images/fog")
    for number, image in enumerate(sorted((task / "images/fog").iterdir())):
        image.write_bytes((task / "images/night" / f"{number}.png").read_bytes() + b" ")
    results, said = refit(run)
    assert "differ from those of the fit: 20 images" in said
    assert promptboost.load(run).head.residual[-1].any()
    assert learned < set(results.task.learn_digests)  # what the words have seen is not forgotten


def test_images_that_are_gone_are_named(task, run):
    (task / "images").rename(task / "moved")
    before = (run / "metrics.json").read_bytes()
    with pytest.raises(DataError, match=r"images does not exist; --data DIR gives another folder"):
        refit(run)
    assert (run / "metrics.json").read_bytes() == before
    _, said = refit(run, source=str(task / "moved"))
    assert not said
    assert str(RunFolder(run).source) == str(task / "moved")


def test_other_images_that_the_text_has_seen_are_not_measured_on(task, run):
    write_images(task / "more", seed=9)
    for name in COLOURS:  # every image of the fit is there as well
        for image in (task / "images" / name).iterdir():
            shutil.copy(image, task / "more" / name / f"old-{image.name}")
    before = RunFolder(run).results.task
    results, said = refit(run, source=str(task / "more"), output=task / "again")
    assert "differ from those of the fit" in said
    assert results.task.held_out_images < 64 - results.task.learn_images
    assert set(before.learn_digests) < set(results.task.learn_digests)


def test_a_place_that_is_taken_is_left_alone(task, run):
    (task / "notes").mkdir()
    (task / "notes/mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not a run folder"):
        refit(run, output=task / "notes")
    with pytest.raises(RunError, match="there is a finished run"):
        refit(run, output=run)


def test_without_the_sentences_of_the_fit_templates_do(task, run):
    (task / "sentences.json").unlink()
    _, said = refit(run)
    assert "the sentences of the fit are not used" in said
    assert promptboost.load(run).head.residual is not None


def test_the_command(task, run, capsys):
    text = edit(run, lambda ensemble: ensemble.add("sea", "waves"))
    shown = call(capsys, "refit", run, "--json")
    assert shown.code == 0
    assert json.loads(shown.out)["run"] == str(run)
    assert (run / "ensemble.json").read_bytes() == text
    shutil.rmtree(task / "images")
    shown = call(capsys, "refit", run)
    assert shown.code == 2
    assert f"{task / 'images'} does not exist; --data DIR" in shown.err


def test_a_classifier_is_refitted_in_memory(task, run):
    images = sorted((task / "images").glob("*/*.png"))
    labels = [path.parent.name for path in images]
    classifier = promptboost.load(run, text_only=True)
    with pytest.warns(NoPoolWarning, match="weighted like a plain template"):
        again = promptboost.refit(classifier, images, labels, views=4)
    assert classifier.head.residual is None
    assert again.ensemble is classifier.ensemble
    right = [np.mean(one.predict(images) == labels) for one in (classifier, again)]
    assert right[1] > right[0]
    again.save(task / "kept")
    kept = promptboost.load(task / "kept")
    np.testing.assert_allclose(kept.predict_proba(ROWS), again.predict_proba(ROWS), rtol=1e-5)
    rows = classifier.embedder.originals(images)
    pool = build_pool(classifier.class_names, descriptions=SENTENCES)
    assert promptboost.refit(classifier, rows, labels, pool).head.residual.shape == (4, 32)
    with pytest.raises(LabelError, match="There is no class 'lake'"):
        promptboost.refit(classifier, images, ["lake"] * len(images))
    with pytest.raises(LabelError, match="3 labels for 32 images"):
        promptboost.refit(classifier, images, ["sea", "sea", "leaf"], pool)
