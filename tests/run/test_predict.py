import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import promptboost.encoders.embedder as stream_module
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import ClassPriorsWarning, DataError, RunError, SettingError
from promptboost.model import Head, PromptEnsemble
from promptboost.model.edits import Change
from promptboost.progress import ProgressBars
from promptboost.run.edit import edit_run
from promptboost.run.fit import fit_run
from promptboost.run.predict import open_classifier, predict_paths
from promptboost.run.refit import refit_run
from promptboost.run.transfer import transfer_run
from tests.cli.cli_tools import call
from tests.run.run_tools import request


def answers(task, *paths, text_only=False, cache=True, **options):
    classifier = open_classifier(task / "run", text_only=text_only, cache=cache)
    return list(predict_paths(classifier, [task / path for path in paths], **options))


def test_a_run_folder_and_an_encoder_are_enough(fitted):
    (fitted / "new.png").write_bytes((fitted / "images/sea/0.png").read_bytes())
    shutil.rmtree(fitted / "images")
    (fitted / "sentences.json").unlink()
    (answer,) = answers(fitted, "new.png", top_k=9)
    chances = [choice.probability for choice in answer.top]
    assert len(chances) == 4
    assert np.isclose(sum(chances), 1)
    assert chances == sorted(chances, reverse=True)
    assert answer.image == str(fitted / "new.png")


def test_unreadable_images_have_a_line_and_the_others_their_own(fitted):
    folder = fitted / "images/sea"
    (folder / "1.png").write_bytes(b"not an image")
    found = answers(fitted, "images/sea/0.png", "images/sea/1.png", "gone.png", "images/ember")
    errors = {answer.image: answer.error for answer in found if answer.error}
    assert set(errors) == {str(folder / "1.png"), str(fitted / "gone.png")}
    assert all(errors.values())
    assert sum(bool(answer.top) for answer in found) == 9


def test_many_images_keep_their_order(fitted):
    paths = sorted((fitted / "images").rglob("*.png"))
    for number in range(270):
        shutil.copy(paths[number % len(paths)], fitted / f"{number:03}.png")
    found = answers(fitted, *(f"{number:03}.png" for number in range(270)))
    assert [answer.image for answer in found] == [
        str(fitted / f"{number:03}.png") for number in range(270)
    ]
    assert found[0].top == found[len(paths)].top


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_the_head_the_text_is_embedded_again(fitted, damage, caplog):
    text = answers(fitted, "images", text_only=True)
    head = fitted / "run/head-fake-32-0.safetensors"
    head.unlink() if damage == "missing" else head.write_bytes(b"broken")
    after = answers(fitted, "images")
    # All but the residual, which is in no other file.
    assert [a.predicted for a in text] == [a.predicted for a in after]
    assert "promptboost refit" in caplog.text


def test_edited_text_wins_over_the_head(fitted):
    path = fitted / "run/ensemble.json"
    ensemble = PromptEnsemble.load(path)
    ensemble.rename_class("sea", "ocean").save(path)
    names = {
        choice.class_name for answer in answers(fitted, "images", top_k=4) for choice in answer.top
    }
    assert names == {"ember", "leaf", "ocean", "night"}


def test_another_encoder_can_look(fitted):
    classifier = open_classifier(fitted / "run", encoder="fake:16-1")
    assert classifier.head.dim == 16
    assert list(predict_paths(classifier, [fitted / "images/sea"]))


def test_the_text_alone_is_enough(fitted):
    for file in (fitted / "run").iterdir():
        if file.name != "ensemble.json":
            file.unlink()
    assert len(answers(fitted, "images")) == 32


def test_a_text_without_an_encoder_asks_for_one(fitted):
    path = fitted / "run/ensemble.json"
    replace(PromptEnsemble.load(path), encoder_id=None).save(path)
    with pytest.raises(RunError, match="add --encoder NAME"):
        answers(fitted, "images")


def test_nothing_to_look_at(fitted):
    (fitted / "empty").mkdir()
    with pytest.raises(DataError, match="there are no images"):
        answers(fitted, "empty")


def test_no_run(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        open_classifier(tmp_path / "run")


def test_each_image_is_decoded_once(fitted, monkeypatch):
    read, names = stream_module.read_image, []

    def counted(source, name, **options):
        names.append(name)
        return read(source, name, **options)

    def never(*_):
        raise AssertionError("decoded before it is embedded")

    shutil.rmtree(EmbeddingStore().root)
    monkeypatch.setattr(stream_module, "read_image", counted)
    monkeypatch.setattr("promptboost.data.dataset.read_thumbnail", never)
    assert len(answers(fitted, "images")) == 32
    assert len(names) == len(set(names)) == 32


def test_one_bar_for_all_images(fitted, monkeypatch, capsys):
    monkeypatch.setattr(stream_module, "STORED_AT_ONCE", 8)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    capsys.readouterr()
    classifier = open_classifier(fitted / "run", progress=ProgressBars())
    assert len(list(predict_paths(classifier, [fitted / "images"]))) == 32
    shown = capsys.readouterr().err
    assert "predicting" in shown
    assert "/32 " in shown
    assert "/8 " not in shown


def write_foreign(folder, number=6):
    """Yellow images, which are of no class and unlike the mean of all."""
    folder.mkdir()
    for seed in range(number):
        pixels = np.random.default_rng(seed).normal((250, 250, 30), 60, (16, 20, 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{seed}.png")


def test_foreign_images_are_rejected_and_training_images_accepted(fitted):
    write_foreign(fitted / "foreign")
    (least,) = {open_classifier(fitted / "run").head.least_logit(0.95)}
    own = answers(fitted, "images", accept=0.95)
    foreign = answers(fitted, "foreign", accept=0.95)
    assert np.mean([answer.rejected for answer in own]) < 0.3
    assert np.mean([answer.rejected for answer in foreign]) > 0.5
    for answer in (*own, *foreign):
        assert answer.rejected is (answer.predicted is None)
        assert answer.top
    # The same decisions in Python, and by the definition.
    classifier = open_classifier(fitted / "run")
    paths = sorted((fitted / "foreign").glob("*.png"))
    expected = classifier.head.logits(classifier.embeddings(paths)).max(axis=1) < least
    assert [answer.rejected for answer in foreign] == expected.tolist()
    assert [one is None for one in classifier.predict(paths, reject=True)] == expected.tolist()
    assert all(answer.rejected for answer in answers(fitted, "foreign", accept=0.0))


def test_prediction_sets_hold_every_class_that_is_probable_enough(fitted):
    classifier = open_classifier(fitted / "run")
    paths = sorted((fitted / "images").rglob("*.png"))
    least, chances = classifier.head.least_probability(0.9), classifier.predict_proba(paths)
    found = answers(fitted, "images", coverage=0.9)
    for answer, row in zip(found, chances, strict=True):
        names = [name for name, p in zip(classifier.class_names, row, strict=True) if p >= least]
        assert set(answer.prediction_set) == set(names) | {answer.predicted}
        assert answer.prediction_set[0] == answer.predicted
    sets = classifier.prediction_sets(paths, coverage=0.9)
    assert [list(answer.prediction_set) for answer in found] == sets
    said = []
    everything = answers(fitted, "images/sea", coverage=1.0, say=said.append)
    assert {len(answer.prediction_set) for answer in everything} == {4}
    assert "too few" in said[0]


def test_class_priors_apply_to_all_images_at_once(fitted):
    (fitted / "images/sea/bad.png").write_bytes(b"")
    plain = [answer for answer in answers(fitted, "images/sea") if answer.error is None]
    found = answers(fitted, "images/sea", class_priors={"sea": 1, "leaf": 0})
    assert sum(answer.error is not None for answer in found) == 1
    found = [answer for answer in found if answer.error is None]
    assert {answer.predicted for answer in found} == {"sea"}
    assert [answer.unadjusted for answer in found] == [answer.predicted for answer in plain]
    classifier = open_classifier(fitted / "run")
    paths = [answer.image for answer in found]
    assert set(classifier.predict(paths, class_priors={"sea": 1})) == {"sea"}
    with pytest.warns(ClassPriorsWarning):
        classifier.predict_proba(paths, class_priors="equal")


def test_thresholds_follow_the_residual_and_not_a_text_without_images(fitted):
    transfer_run(fitted / "run", "fake:16-1", cache=False)
    moved = open_classifier(fitted / "run", encoder="fake:16-1").head
    assert np.isfinite(moved.least_logit())
    assert moved.least_logit() != open_classifier(fitted / "run").head.least_logit()
    (fitted / "images").rename(fitted / "moved")
    change = Change(kind="add", class_name="sea", sentence="a wave", share=0.2)
    edited = edit_run(fitted / "run", [change], fitted / "edited", cache=False)
    assert any("--reject and --coverage are dropped" in note for note in edited.notes)
    with pytest.raises(SettingError, match="no cross-validated training images"):
        list(predict_paths(open_classifier(fitted / "edited"), [fitted / "moved"], accept=0.95))
    (fitted / "moved").rename(fitted / "images")
    refit_run(fitted / "edited", cache=False)
    assert np.isfinite(open_classifier(fitted / "edited").head.least_logit())
    with pytest.raises(SettingError, match="no cross-validated training images"):
        open_classifier(fitted / "run", text_only=True).predict(
            [fitted / "images/sea/0.png"], reject=True
        )


def calibration(folder):
    return open_classifier(folder).head.calibration


def test_an_edit_moves_the_thresholds_as_it_moves_the_logits(fitted, capsys):
    run, edited = open_classifier(fitted / "run"), fitted / "edited"
    changes = [
        Change(kind="add", class_name=name, sentence="all is green", share=0.9)
        for name in run.class_names
    ]
    (note,) = edit_run(fitted / "run", changes, edited, cache=False).notes
    assert "thresholds" not in note
    paths = sorted((fitted / "images").rglob("*.png"))
    rows = run.embedder.encode_images([Image.open(path).convert("RGB") for path in paths])
    head = open_classifier(edited).head
    moves = head.logits(rows) - run.head.logits(rows)
    assert np.abs(moves).min() > 0.5  # else the thresholds of the fit would do
    differences = head.calibration[0] - run.head.calibration[0]
    assert (differences >= moves.min() - 1e-4).all()
    assert (differences <= moves.max() + 1e-4).all()
    assert (head.calibration[0] >= head.least_logit(0.95)).mean() >= 0.95
    answer = call(capsys, "predict", edited, fitted / "images", "--reject", "--json")
    assert answer.code == 0
    assert np.mean([record["rejected"] for record in answer.json["predictions"]]) <= 0.2


def test_an_edit_of_classes_keeps_the_thresholds_of_the_others(fitted):
    known = calibration(fitted / "run")
    rename = Change(kind="rename-class", class_name="leaf", to="zebra")
    add = Change(kind="add-class", class_name="fog", sentences=("gray light",))
    edit_run(fitted / "run", [rename, add], fitted / "named", cache=False)
    np.testing.assert_allclose(calibration(fitted / "named"), known, rtol=1e-5)
    drop = Change(kind="drop-class", class_name="zebra")
    edit_run(fitted / "named", [drop], fitted / "twice", cache=False)
    drop = Change(kind="drop-class", class_name="leaf")
    edit_run(fitted / "run", [drop], fitted / "once", cache=False)
    assert calibration(fitted / "once").shape == (2, known.shape[1] * 3 // 4)
    np.testing.assert_allclose(
        calibration(fitted / "twice"), calibration(fitted / "once"), rtol=1e-4
    )


@pytest.mark.parametrize("lost", ["images", "changed images", "sentences"])
def test_an_edit_without_what_was_fitted_to_drops_the_thresholds(fitted, lost):
    if lost == "images":
        shutil.rmtree(fitted / "images")
    elif lost == "sentences":
        (fitted / "sentences.json").unlink()
    else:
        for path in (fitted / "images/sea").iterdir():
            path.unlink()
            Image.new("RGB", (8, 8), (int(path.stem), 0, 0)).save(path)
    change = Change(kind="add", class_name="sea", sentence="a wave", share=0.2)
    edited = edit_run(fitted / "run", [change], fitted / "edited", cache=False)
    assert any("--reject and --coverage are dropped" in note for note in edited.notes)
    assert calibration(fitted / "edited") is None


def test_an_edit_calibrates_every_encoder(task):
    encoders = ("fake:32-0", "fake:16-1")
    fit_run(**request(task, encoder=encoders))
    change = Change(kind="rename-class", class_name="leaf", to="zebra")
    edit_run(task / "run", [change], task / "edited", cache=False)
    for encoder in encoders:
        old, new = (
            open_classifier(task / name, encoder=encoder).head.calibration
            for name in ("run", "edited")
        )
        np.testing.assert_allclose(new, old, rtol=1e-5)


def test_an_edit_finds_moved_images(fitted):
    known = calibration(fitted / "run")
    (fitted / "images").rename(fitted / "moved")
    change = Change(kind="rename-class", class_name="leaf", to="zebra")
    data = str(fitted / "moved")
    edit_run(fitted / "run", [change], fitted / "edited", data=data, cache=False)
    np.testing.assert_allclose(calibration(fitted / "edited"), known, rtol=1e-5)


def test_without_its_residual_a_head_has_no_thresholds(fitted):
    path = fitted / "run/head-fake-32-0.safetensors"
    head = Head.load(path)
    assert np.array_equal(open_classifier(fitted / "run").head.calibration, head.calibration)
    replace(head, residual=head.residual * 2).save(path)
    assert open_classifier(fitted / "run").head.calibration is None


def test_transfer_without_images_drops_the_thresholds(fitted):
    shutil.rmtree(fitted / "images")
    moved = transfer_run(fitted / "run", "fake:16-1", cache=False)
    assert "without a residual and thresholds" in moved["note"]
    assert open_classifier(fitted / "run", encoder="fake:16-1").head.calibration is None
