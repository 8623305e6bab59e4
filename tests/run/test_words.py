"""Text and residual in a run: what is learned, kept, moved, left out, and never believed."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import promptboost
from promptboost.baselines import text_shares
from promptboost.errors import RunError
from promptboost.model import Head
from promptboost.model.classifier import PromptClassifier
from promptboost.model.head import RESIDUAL_FILE, head_file, write_head
from promptboost.run.fit import fit_run
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import transfer_run
from tests.cli.cli_tools import call
from tests.run.run_tools import ENCODER, request

OTHER = "fake:16-1"


@pytest.fixture
def run(task):
    """A run with a residual."""
    fit_run(**request(task, composer="gradient", rounds=1, views=4, views_per_round=None))
    head = Head.load(task / "run" / head_file(ENCODER))
    assert head.residual is not None
    assert np.abs(head.residual).max() > 0.01
    return task / "run"


def test_the_text_is_the_same_with_and_without_a_residual(task, run):
    fit_run(
        **request(
            task,
            run="plain",
            composer="gradient",
            rounds=1,
            views=4,
            views_per_round=None,
            residual=False,
        )
    )
    text = (task / "plain/ensemble.json").read_bytes()
    assert (run / "ensemble.json").read_bytes() == text
    assert not (task / "plain" / RESIDUAL_FILE).exists()
    results = RunFolder(task / "plain").results
    assert results.residual is None
    assert results.method("text") is None


def test_both_are_measured_and_the_classifier_answers_as_measured(task, run):
    results = RunFolder(run).results
    text, both = results.method("text"), results.method("promptboost")
    images = sorted(str(path) for path in (task / "images").rglob("*.png"))
    labels = np.array([path.split("/")[-2] for path in images])
    held_out = [row.split(",")[0] for row in (run / "predictions.csv").read_text().split()[1:]]
    kept = [i for i, path in enumerate(images) if any(path.endswith(name) for name in held_out)]
    for text_only, method in ((True, text), (False, both)):
        classifier = promptboost.load(run, text_only=text_only)
        answers = classifier.predict([images[i] for i in kept])
        assert np.mean(answers == labels[kept]) == pytest.approx(method.accuracy)
    assert 0 <= results.residual.text_share <= 1
    assert set(results.residual.class_text_shares) <= set(promptboost.load(run).class_names)


def test_logits_are_text_and_residual_added(run):
    classifier = promptboost.load(run)
    head, rows = classifier.head, np.eye(32, dtype=np.float32)[:5]
    logits = head.text_scale * rows @ head.weights.T / head.rounds + rows @ head.residual.T
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        classifier.predict_proba(rows), chances / chances.sum(axis=1, keepdims=True), rtol=1e-5
    )


def test_shares_of_the_text_need_a_residual_and_are_between(run):
    head, rows = promptboost.load(run).head, np.eye(32, dtype=np.float32)
    assert text_shares(head.without_residual(), rows) is None
    assert ((text_shares(head, rows) >= 0) & (text_shares(head, rows) < 1)).all()
    # Ten times the residual leaves the words less to say.
    louder = replace(head, residual=head.residual * 10)
    assert text_shares(louder, rows).mean() < text_shares(head, rows).mean()


def test_a_forged_residual_is_left_out(run, caplog):
    path = run / head_file(ENCODER)
    before = promptboost.load(run, text_only=True).predict_proba(np.eye(32, dtype=np.float32))
    head = Head.load(path)
    replace(head, residual=head.residual + 1).save(path)
    classifier = promptboost.load(run)
    np.testing.assert_array_equal(classifier.predict_proba(np.eye(32, dtype=np.float32)), before)
    assert "is not used" in caplog.text


@pytest.mark.parametrize("record", ["[]", "{", '{"head-fake-32-0.safetensors": 3}', ""])
def test_a_record_that_cannot_be_read_leaves_the_text(run, record):
    (run / RESIDUAL_FILE).write_text(record)
    assert promptboost.load(run).head.residual is None


def test_edited_text_keeps_the_residual_and_says_so(run, caplog):
    classifier = promptboost.load(run)
    sentence = next(iter(classifier.ensemble.prompts("sea")))
    edited = classifier.ensemble.add("sea", "waves at noon").add_class("fog", ["grey"])
    edited = edited.remove(sentence, "sea") if len(edited.prompts("sea")) > 2 else edited
    edited.save(run / "ensemble.json")
    again = promptboost.load(run).head
    assert "with other sentences" in caplog.text
    np.testing.assert_array_equal(again.residual[:-1], classifier.head.residual)
    assert not again.residual[-1].any()


def test_a_saved_classifier_keeps_its_residual(run, tmp_path):
    rows = np.eye(32, dtype=np.float32)
    classifier = promptboost.load(run)
    classifier.save(tmp_path / "kept")
    again = promptboost.load(tmp_path / "kept")
    np.testing.assert_allclose(again.predict_proba(rows), classifier.predict_proba(rows))
    moved = classifier.transfer(OTHER)
    assert moved.head.residual is None


def test_nothing_is_saved_over_a_run(run):
    """It would be measured on what the run held out, which it may have learned from."""
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(
        RunError, match=r"holds a run of promptboost fit.*: save it into another folder"
    ):
        promptboost.load(run).save(run)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_a_head_without_a_residual_takes_the_record_away(run):
    classifier = promptboost.load(run, text_only=True)
    write_head(run, classifier.head)
    record = json.loads((run / RESIDUAL_FILE).read_text())
    assert set(record) == {"heads"}, "no residual is named, and the balance is kept"
    write_head(run, replace(classifier.head, balance=None))
    assert json.loads((run / RESIDUAL_FILE).read_text()) == {}


def test_transfer_learns_the_residual_anew_where_the_images_are(task, run):
    moved = transfer_run(run, OTHER)
    assert {"text", "promptboost"} <= set(moved["accuracy"])
    assert promptboost.load(run, OTHER).head.residual.shape == (4, 16)
    assert promptboost.load(run).head.residual is not None  # that of the fit stays
    for image in (task / "images/sea").iterdir():
        image.unlink()
    gone = transfer_run(run, "fake:24-2")
    assert "without a residual" in gone["note"]
    assert promptboost.load(run, "fake:24-2").head.residual is None


def test_a_transfer_back_restores_the_residual_of_the_fit(task, run):
    path, record = run / head_file(ENCODER), json.loads((run / RESIDUAL_FILE).read_text())
    fitted, results = path.read_bytes(), RunFolder(run).results
    transfer_run(run, OTHER)
    back = transfer_run(run, ENCODER)
    assert back["accuracy"]["promptboost"] == results.method("promptboost").accuracy
    alone = transfer_run(run, ENCODER, text_only=True)
    assert alone["accuracy"]["promptboost"] == results.method("text").accuracy
    for image in (task / "images/sea").iterdir():
        image.unlink()
    assert "without a residual" not in transfer_run(run, ENCODER)["note"]
    assert path.read_bytes() == fitted
    assert json.loads((run / RESIDUAL_FILE).read_text())[path.name] == record[path.name]


def test_a_transferred_residual_is_kept_where_none_can_be_fitted(task, run):
    transfer_run(run, OTHER)
    residual = promptboost.load(run, OTHER).head.residual
    for image in (task / "images/sea").iterdir():
        image.unlink()
    assert "without a residual" not in transfer_run(run, OTHER)["note"]
    np.testing.assert_array_equal(promptboost.load(run, OTHER).head.residual, residual)
    assert "is dropped" in transfer_run(run, OTHER, text_only=True)["note"]
    assert promptboost.load(run, OTHER).head.residual is None


def test_another_encoder_has_no_residual_and_that_is_logged(run, caplog):
    assert promptboost.load(run, OTHER).head.residual is None
    assert f"on '{OTHER}' the text predicts alone" in caplog.text
    caplog.clear()
    assert promptboost.load(run, OTHER, text_only=True).head.residual is None
    assert promptboost.load(run).head.residual is not None
    assert not caplog.messages


def test_a_classifier_transferred_back_has_its_residual(run, caplog):
    loaded = promptboost.load(run)
    given = PromptClassifier(loaded.ensemble, ENCODER, loaded.head)
    for classifier in (loaded, given):
        moved = classifier.transfer(OTHER)
        assert moved.head.residual is None
        assert "the text predicts alone" in caplog.text
        caplog.clear()
        back = moved.transfer("fake:24-2").transfer(ENCODER)
        np.testing.assert_array_equal(back.head.matrix, classifier.head.matrix)
        assert not caplog.messages
    alone = PromptClassifier(loaded.ensemble, ENCODER, loaded.head, text_only=True)
    assert alone.transfer(OTHER).transfer(ENCODER).head.residual is None
    assert not caplog.messages


def test_a_transferred_classifier_is_saved_with_its_residual(run, tmp_path):
    loaded = promptboost.load(run)
    moved = PromptClassifier(loaded.ensemble, ENCODER, loaded.head).transfer(OTHER)
    moved.save(tmp_path / "moved")
    np.testing.assert_array_equal(
        promptboost.load(tmp_path / "moved").head.matrix, loaded.head.matrix
    )


def test_residuals_of_embeddings_without_an_encoder_are_saved(run, tmp_path, caplog):
    loaded = promptboost.load(run)
    texts, encode = loaded.ensemble.texts(), loaded.embedder.encode_texts
    ensemble = replace(loaded.ensemble, encoder_id=None, encoder_fingerprint=None)
    head = replace(
        loaded.head,
        encoder_id=None,
        encoder_fingerprint=None,
        ensemble_fingerprint=ensemble.fingerprint,
    )
    PromptClassifier(ensemble, encode, head).save(tmp_path / "kept")
    mapping = dict(zip(texts, encode(texts), strict=True))
    for source in (None, mapping, encode):
        again = promptboost.load(tmp_path / "kept", source).head
        np.testing.assert_allclose(again.residual, head.residual)
        assert promptboost.load(tmp_path / "kept", source, text_only=True).head.residual is None
    assert not caplog.messages
    other = {text: row[::-1] for text, row in mapping.items()}
    assert promptboost.load(tmp_path / "kept", other).head.residual is None
    assert "is not the head of its ensemble" in caplog.text


def test_a_residual_of_another_version_of_the_encoder_is_logged(run, caplog):
    path = run / head_file(ENCODER)
    replace(Head.load(path), encoder_fingerprint="other").save(path)
    assert promptboost.load(run).head.residual is None
    assert "another version of its encoder" in caplog.text


def test_edited_classes_lose_no_residual_silently(run, caplog):
    ensemble = promptboost.load(run).ensemble
    ensemble.rename_class("sea", "ocean").drop_class("night").save(run / "ensemble.json")
    head = promptboost.load(run).head
    assert not head.residual[head.class_names.index("ocean")].any()
    assert "so their residual is dropped: ['night', 'sea']" in caplog.text


def test_the_command_answers_by_words_alone_if_asked(task, run, capsys):
    image = str(next((task / "images/sea").iterdir()))
    chances = {
        option: json.loads(call(capsys, "predict", run, image, "--format", "jsonl", *option).out)
        for option in ((), ("--text-only",))
    }
    for option, answer in chances.items():
        classifier = promptboost.load(run, text_only=bool(option))
        ((_, chance),) = classifier.top_k(image, 1)[0]
        assert answer["probability"] == pytest.approx(chance, abs=1e-6)
    shown = call(capsys, "evaluate", run, task / "images", "--text-only", "--json")
    assert shown.code == 0


def test_the_paper_s_preset_has_no_residual(task, capsys):
    shown = call(
        capsys, "fit", task / "images", "-o", task / "paper", "--preset", "paper",
        "--encoder", ENCODER, "--shots", 4, "--rounds", 2,
    )  # fmt: skip
    assert shown.code == 0
    assert "residual" not in shown.out
    assert not (task / "paper" / RESIDUAL_FILE).exists()


def test_a_classifier_of_a_head_can_leave_its_residual_out(run):
    loaded = promptboost.load(run)
    bare = PromptClassifier(loaded.ensemble, ENCODER, loaded.head, text_only=True)
    assert bare.head.residual is None


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_lost_head_leaves_the_text_and_names_the_command(run, damage, caplog):
    path, rows = run / head_file(ENCODER), np.eye(32, dtype=np.float32)
    before = promptboost.load(run, text_only=True).predict_proba(rows)
    path.unlink() if damage == "gone" else path.write_bytes(b"broken")
    again = promptboost.load(run)
    np.testing.assert_allclose(again.predict_proba(rows), before, rtol=1e-5)
    assert again.head.residual is None
    assert again.head.balance is not None
    (warning,) = caplog.messages
    assert f"{head_file(ENCODER)}' is lost" in warning
    assert f"to fit it again, type: promptboost refit {run}" in warning
    assert ("missing" if damage == "gone" else "damaged or not a safetensors") in warning
    caplog.clear()
    assert promptboost.load(run, text_only=True).head.residual is None
    assert ("is computed from the text" in caplog.text) == (damage == "damaged")


def test_a_record_of_before_is_enough_for_the_residual(run):
    record = json.loads((run / RESIDUAL_FILE).read_text())
    del record["heads"]
    (run / RESIDUAL_FILE).write_text(json.dumps(record))
    head = promptboost.load(run).head
    assert head.residual is not None
    assert head.balance is None


def test_an_added_class_is_in_balance_with_and_without_the_residual(run):
    classifier = promptboost.load(run)
    classifier.ensemble.add_class("fog", ["red green blue", "dark"]).save(run / "ensemble.json")
    for text_only in (False, True):
        head = promptboost.load(run, text_only=text_only).head
        balance = head.balance
        scores = head.matrix @ balance.center / head.rounds
        lift = balance.text_lift if text_only else balance.lift
        assert scores[-1] == pytest.approx(scores[:-1].mean() + lift, abs=1e-5)
    promptboost.load(run).save(run.parent / "kept")
    again = promptboost.load(run.parent / "kept").head
    np.testing.assert_allclose(again.matrix, promptboost.load(run).head.matrix, rtol=1e-5)


def test_each_image_says_how_much_of_its_answer_is_words(run):
    results = RunFolder(run).results
    head, rows = (
        promptboost.load(run).head,
        [*csv.DictReader((run / "predictions.csv").read_text().splitlines())],
    )
    images = [run.parent / "images" / row["image"] for row in rows]
    shares = text_shares(head, promptboost.load(run).embedder.originals(images))
    np.testing.assert_allclose([float(row["text_share"]) for row in rows], shares, atol=1e-3)
    assert results.residual.text_share == pytest.approx(shares.mean())
    by_image = {row["image"]: float(row["text_share"]) for row in rows}
    assert results.confusions
    for pair in results.confusions:
        assert len(pair.text_shares) == len(pair.images)
        for image, share in zip(pair.images, pair.text_shares, strict=True):
            assert share == pytest.approx(by_image[image], abs=1e-3)
    assert all(0 <= item.text_share <= 1 for item in results.hardest)
    page = (run / "report.html").read_text()
    assert page.count('<p class="note">text: ') == len(results.confusions)
