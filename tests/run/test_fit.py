import csv
import json
import shutil
import tomllib

import numpy as np
import pytest

import promptboost.run.fit as fit_module
from promptboost.data.decode import read_image
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError, EncoderError, PoolError, RunError, SettingError
from promptboost.io import write_text
from promptboost.model import Head, PromptEnsemble
from promptboost.run.fit import fit_run
from promptboost.run.predict import open_classifier
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from tests.run.run_tools import COLOURS, interrupted, request, unfinish, write_images


def accuracies(metrics):
    return {method.name: method.accuracy for method in metrics.methods}


@pytest.mark.parametrize("groups", [lambda path: path.parent.name, lambda path: path.name[0]])
def test_a_table_may_have_groups(fitted, groups):
    paths = sorted((fitted / "images").rglob("*.png"))
    rows = [(path, path.parent.name, groups(path)) for path in paths]
    with (fitted / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "group"), *rows])
    results = fit_run(**request(fitted, "grouped", source=str(fitted / "images.csv")))
    run = RunFolder(fitted / "grouped")
    assert run.state == "finished"
    alone = len({groups(path) for path in paths}) == len(COLOURS)
    scale = str(run.ensemble.settings["scale_choice"])
    assert ("no cross-validation" in scale) == alone
    assert results.task.held_out_images == 0 if alone else True


def test_a_run_folder_holds_what_it_should(fitted):
    run = RunFolder(fitted / "run")
    assert run.state == "finished"
    assert sorted(file.name for file in run.path.iterdir()) == [
        "README.md",
        "ensemble.json",
        "explanations.json",
        "head-fake-32-0.safetensors",
        "metrics.json",
        "predictions.csv",
        "report.html",
        "residual.json",
        "run.toml",
        "thumbnails.json",
        "weights.json",
    ]
    tables = tomllib.loads(run.settings_path.read_text())
    assert tables["fit"]["rounds"] == 5
    assert tables["data"]["classes"] == sorted(COLOURS)
    assert Results.read(run.metrics_path).encoder.id == "fake:32-0"


def test_figures_are_those_of_the_files(fitted):
    run = RunFolder(fitted / "run")
    metrics = Results.read(run.metrics_path)
    assert metrics.task.learn_images == metrics.task.held_out_images == 16
    assert metrics.task.class_sizes == dict.fromkeys(["ember", "leaf", "night", "sea"], 4)
    assert metrics.task.held_out == "rest"
    with run.predictions_path.open() as file:
        rows = list(csv.DictReader(file))
    right = np.mean([row["label"] == row["predicted"] for row in rows])
    assert len(rows) == 16
    assert accuracies(metrics)["promptboost"] == right
    # Rounds are of the text; the residual comes after the last.
    assert metrics.staged[-1].accuracy == accuracies(metrics)["text"]
    assert len(metrics.staged) == 5
    assert sum(item.count for item in metrics.confusions) == 16 - round(16 * right)
    weights = [item.weight for item in metrics.hardest]
    assert weights == sorted(weights, reverse=True)
    assert np.isclose(sum(weights), 1)


def test_what_is_measured_is_what_is_shipped(fitted):
    run = RunFolder(fitted / "run")
    ensemble = PromptEnsemble.load(run.ensemble_path)
    head = Head.load(run.head_path("fake:32-0"))
    assert head.ensemble_fingerprint == ensemble.fingerprint
    embedder = Embedder.open("fake:32-0", cache=False)
    np.testing.assert_allclose(head.weights, ensemble.embed(embedder.encoder).weights, atol=1e-5)
    with run.predictions_path.open() as file:
        for row in csv.DictReader(file):
            image = read_image(fitted / "images" / row["image"])
            rows = embedder.encoder.encode_images([image])
            assert head.predict(rows)[0] == row["predicted"]
            chances = head.predict_proba(rows)
            assert np.isclose(chances.max(), float(row["probability"]), atol=1e-4)


def test_boosting_helps_here(fitted):
    found = accuracies(Results.read(fitted / "run" / "metrics.json"))
    assert found["promptboost"] > found["zero-shot"]


def test_thumbnails_are_of_the_images_in_the_report(fitted):
    metrics = Results.read(fitted / "run" / "metrics.json")
    found = json.loads((fitted / "run" / "thumbnails.json").read_text())
    assert {item.image for item in metrics.hardest} <= set(found)
    assert all(address.startswith("data:image/jpeg;base64,") for address in found.values())


def test_the_same_fit_twice_gives_the_same_text(fitted):
    fit_run(**request(fitted, "again", cache=False))
    names = ("ensemble.json", "predictions.csv", "head-fake-32-0.safetensors")
    for name in names:
        assert (fitted / "run" / name).read_bytes() == (fitted / "again" / name).read_bytes()


def test_another_seed_gives_another_text(fitted):
    fit_run(**request(fitted, "again", seed=1))
    assert (fitted / "run/ensemble.json").read_bytes() != (
        fitted / "again/ensemble.json"
    ).read_bytes()


def test_an_interrupted_fit_goes_on_to_the_same_text(fitted):
    whole = (fitted / "run" / "ensemble.json").read_bytes()
    for stop_after in range(1, 6):
        name = f"stopped-{stop_after}"
        with interrupted(stop_after):
            fit_run(**request(fitted, name))
        assert RunFolder(fitted / name).state == "unfinished"
        said = []
        fit_run(**request(fitted, name, resume=True), say=said.append)
        assert f"resuming after round {stop_after}" in said
        assert (fitted / name / "ensemble.json").read_bytes() == whole
        assert RunFolder(fitted / name).state == "finished"


def test_a_fault_while_writing_leaves_an_unfinished_run_that_can_go_on(fitted, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Results, "write", full)
        with pytest.raises(OSError, match="No space left"):
            fit_run(**request(fitted, "other"))
    assert RunFolder(fitted / "other").state == "unfinished"
    fit_run(**request(fitted, "other", resume=True))
    assert (fitted / "other/ensemble.json").read_bytes() == (
        fitted / "run/ensemble.json"
    ).read_bytes()


def test_resume_of_nothing_starts_and_of_a_finished_run_changes_nothing(fitted):
    fit_run(**request(fitted, "other", resume=True))
    before = {file: file.read_bytes() for file in (fitted / "other").iterdir()}
    said = []
    metrics = fit_run(**request(fitted, "other", resume=True), say=said.append)
    assert "already finished" in said[0]
    assert metrics == Results.read(fitted / "other" / "metrics.json")
    assert before == {file: file.read_bytes() for file in (fitted / "other").iterdir()}


def unfinished(task):
    run = RunFolder(task / "run")
    unfinish(run)
    return run


def test_a_changed_image_cannot_be_resumed(fitted):
    unfinished(fitted)
    victim = json.loads((fitted / "run/metrics.json").read_text())["hardest"][0]["image"]
    other = next(file for file in (fitted / "images").rglob("*.png"))
    shutil.copy(other, fitted / "images" / victim)
    if other == fitted / "images" / victim:
        write_images(fitted / "new", seed=5)
        shutil.copy(fitted / "new" / victim, fitted / "images" / victim)
    with pytest.raises(RunError, match="the training images changed"):
        fit_run(**request(fitted, resume=True))


def test_other_settings_cannot_be_resumed(fitted):
    unfinished(fitted)
    with pytest.raises(RunError, match=r"rounds is 9, but the run .* with 5; .*--overwrite"):
        fit_run(**request(fitted, resume=True, rounds=9))
    # Another seed draws other images too, but the seed is the reason.
    with pytest.raises(RunError, match=r"seed is 5, but the run in .* was made with 0"):
        fit_run(**request(fitted, resume=True, seed=5))
    with pytest.raises(RunError, match=r"patience is 3, but the run in .* was made with none"):
        fit_run(**request(fitted, resume=True, patience=3))


def test_a_finished_run_is_not_resumed_with_other_settings_or_images(fitted):
    with pytest.raises(RunError, match=r"seed is 5, .* remove --seed"):
        fit_run(**request(fitted, resume=True, seed=5))
    shutil.copytree(fitted / "images", fitted / "copy")
    with pytest.raises(RunError, match=r"the images are .*copy, but .* type: promptboost fit"):
        fit_run(**request(fitted, resume=True, source=str(fitted / "copy")))


def test_a_run_goes_on_from_another_folder(fitted, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(fitted)
    fit_run(**request(fitted, "other", source="images", prompts="sentences.json"))
    run = RunFolder(fitted / "other")
    assert str(run.source) == str(fitted / "images")
    unfinish(run)
    assert run.resume_hint.startswith("promptboost fit images -o ")
    fit_run(**request(fitted, "other", source="images", prompts="sentences.json", resume=True))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    unfinish(run)
    fit_run(**request(fitted, "other", resume=True))
    assert run.state == "finished"


@pytest.mark.parametrize("fault", ["encoder", "long name", "place", "sentences"])
def test_what_is_cheap_to_find_is_found_before_images_are_read(task, monkeypatch, fault):
    def read(*_, **__):
        raise AssertionError("images were read")

    monkeypatch.setattr(fit_module, "load_task", read)
    (task / "file").write_text("")
    run, options, error, said = {
        "encoder": ("run", {"encoder": "conse:lite9"}, EncoderError, "no encoder"),
        "place": ("file/run", {}, RunError, "file: Not a directory; choose another folder"),
        "long name": ("run", {"encoder": f"some.{'x' * 250}:Eye"}, EncoderError, "too many for"),
        "sentences": ("run", {"prompts": "nowhere.json"}, PoolError, "cannot read"),
    }[fault]
    with pytest.raises(error, match=said):
        fit_run(**request(task, run, **options))
    assert not (task / "run").exists()


def test_a_store_that_cannot_be_written_is_done_without(task, monkeypatch):
    (task / "file").write_text("")
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(task / "file"))
    lines = []
    fit_run(**request(task, "run"), say=lines.append)
    assert RunFolder(task / "run").state == "finished"
    [line] = [line for line in lines if "PROMPTBOOST_CACHE" in line]
    assert line.endswith("Continuing without it")


def test_a_path_that_no_file_can_have_is_found_first(task):
    with pytest.raises((RunError, SettingError, OSError), match=r"too long"):
        fit_run(**request(task, "/".join(["x" * 200] * 25)))


def test_figures_do_not_say_where_the_images_lay(task):
    (task / "images" / sorted(COLOURS)[0] / "broken.png").write_bytes(b"no")
    fit_run(**request(task, "run", source=str(task / "images")))
    text = (task / "run" / "metrics.json").read_text()
    assert str(task) not in text
    assert "broken.png" in text
    assert str(task) in (task / "run" / "run.toml").read_text()
    from promptboost.report import write_card, write_report

    for write in (write_report, write_card):
        assert str(task) not in write(task / "run").read_text()


def test_changed_sentences_cannot_be_resumed(fitted):
    unfinished(fitted)
    write_text(fitted / "sentences.json", '{"ember": ["hot"]}')
    with pytest.raises(RunError, match=r"cannot resume .*pool's fingerprint.*--overwrite"):
        fit_run(**request(fitted, resume=True))


def test_a_damaged_partial_file_is_named(fitted):
    unfinished(fitted).partial_path.write_text("{")
    with pytest.raises(RunError, match=r"cannot resume .*partial\.json"):
        fit_run(**request(fitted, resume=True))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"source": "nowhere"}, DataError),
        ({"prompts": "nowhere.json"}, PoolError),
    ],
)
def test_bad_input_leaves_the_old_run_as_it_was(fitted, options, error):
    before = {file: file.read_bytes() for file in (fitted / "run").iterdir()}
    with pytest.raises(error):
        fit_run(**request(fitted, overwrite=True, **options))
    assert before == {file: file.read_bytes() for file in (fitted / "run").iterdir()}


def test_a_run_among_the_images_is_refused(task):
    for run in ("images/run", "images"):
        with pytest.raises(RunError):
            fit_run(**request(task, run))
    with pytest.raises(RunError, match="read as a class"):
        fit_run(**request(task, "images/run"))


def test_bad_input_makes_no_folder(task):
    with pytest.raises(DataError):
        fit_run(**request(task, source=str(task / "nowhere")))
    assert not (task / "run").exists()


def test_overwrite_replaces_the_run_and_its_other_heads(fitted):
    (fitted / "run" / "head-other.safetensors").write_bytes(b"stale")
    fit_run(**request(fitted, overwrite=True, rounds=2))
    assert len(PromptEnsemble.load(fitted / "run" / "ensemble.json")) == 2
    assert not (fitted / "run" / "head-other.safetensors").exists()


def test_without_held_out_images_figures_are_about_the_learned_ones(task):
    said = []
    metrics = fit_run(**request(task, shots=None), say=said.append)
    [remark] = [line for line in said if "no image is held out" in line]
    assert remark.endswith("--shots 4 would leave some for testing")
    assert metrics.task.held_out is None
    assert metrics.task.shots is None
    assert all(method.accuracy is None for method in metrics.methods)
    assert all(method.learn_accuracy is not None for method in metrics.methods)
    rows = (task / "run" / "predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + 32
    assert Results.read(task / "run/metrics.json") == metrics
    right, images = metrics.thresholds.accuracy, metrics.thresholds.images
    _, chances = open_classifier(task / "run").head.calibration  # of the true classes
    assert images == len(chances) == 32
    assert np.mean(chances > 0.5) <= right <= np.mean(chances >= 0.25)
    told = f"{100 * right:.1f}% of them predicted correctly"
    assert f"Thresholds from 32 cross-validated training images, {told}" in (
        (task / "run/report.html").read_text("utf-8")
    )


def test_bad_and_few_images_are_mentioned(task):
    (task / "images/ember/broken.png").write_bytes(b"")
    for number in range(6):
        (task / f"images/sea/{number}.png").unlink()
    said = []
    metrics = fit_run(**request(task), say=said.append)
    assert any("broken.png: the file is empty" in line for line in said)
    assert any("fewer than 4 training images: sea (2)" in line for line in said)
    assert metrics.task.bad_images[0].reason == "the file is empty"
    with pytest.raises(DataError, match="cannot be used"):
        fit_run(**request(task, "other", on_bad="stop"))


def test_a_class_without_training_images_is_predicted_by_its_sentences(task):
    for split, numbers in (("train", range(4)), ("test", range(4, 8))):
        for name in COLOURS:
            (task / "split" / split / name).mkdir(parents=True)
            for number in numbers:
                if (split, name) != ("train", "leaf"):
                    shutil.copy(task / f"images/{name}/{number}.png", task / "split" / split / name)
    said = []
    results = fit_run(**request(task, source=str(task / "split"), shots=None), say=said.append)
    assert "classes without training images, predicted by their sentences alone: leaf" in said
    assert not any("fewer than" in line for line in said)
    assert results.task.class_sizes["leaf"] == 0
    (leaf,) = (each for each in results.per_class if each.class_name == "leaf")
    assert leaf.count == 4
    assert leaf.accuracy["promptboost"] > 0


def test_what_the_pool_lacks_is_mentioned(task):
    said = []
    fit_run(**request(task, "templates", prompts=None), say=said.append)
    assert any("templates only" in line for line in said)
    write_text(task / "sentences.json", '{"sea": ["waves"], "Leaf": ["green"], "lake": ["calm"]}')
    fit_run(**request(task), say=said.append)
    assert "no sentences for the classes ember, night" in said
    assert "sentences for unknown classes: lake" in said
    assert not any("no words" in line for line in said)


def test_class_names_that_are_no_words_are_mentioned(task):
    (task / "images/sea").rename(task / "images/0")
    (task / "images/night").rename(task / "images/n01514668")
    said = []
    fit_run(**request(task, prompts=None), say=said.append)
    (line,) = (line for line in said if "without words" in line)
    assert "“a photo of a 0.”: 0, n01514668; rename" in line


def test_one_class_is_not_a_task(tmp_path):
    write_images(tmp_path / "all")
    shutil.copytree(tmp_path / "all" / "sea", tmp_path / "images" / "sea")
    with pytest.raises(DataError, match="one class only, 'sea'"):
        fit_run(**request(tmp_path, prompts=None))


def test_without_views(task):
    metrics = fit_run(**request(task, views=0, views_per_round=0))
    assert accuracies(metrics)["promptboost"] is not None


def test_names_that_are_not_utf8(task):
    source = task / "images" / "sea" / "0.png"
    source.rename(source.with_name("caf\udce9.png"))
    fit_run(**request(task, shots=8))
    assert "caf\\\\udce9.png" in (task / "run/weights.json").read_text()


def test_a_second_fit_computes_nothing_anew(fitted, monkeypatch):
    from promptboost.encoders.fake import FakeEncoder

    def fail(*_):
        raise AssertionError("computed")

    monkeypatch.setattr(FakeEncoder, "encode_images", fail)
    monkeypatch.setattr(FakeEncoder, "encode_texts", fail)
    fit_run(**request(fitted, "other"))


def test_one_round_by_gradient_says_how_it_was_composed(task):
    metrics = fit_run(**request(task, rounds=1, views_per_round=4))
    ensemble = PromptEnsemble.load(task / "run" / "ensemble.json")
    [only] = ensemble.rounds
    assert only.composer == ensemble.settings["composer"] == "gradient"
    # The fake encoder's own scale is 20, and what is tried are multiples of it.
    assert ensemble.settings["logit_scale"] in (20.0, 40.0, 60.0, 80.0, 120.0)
    assert ensemble.settings["scale_choice"].startswith("logit scale")
    composed = metrics.composed
    assert composed.scale_choice == ensemble.settings["scale_choice"]
    assert (composed.objective, composed.gap) == (only.objective, only.gap)
    labels = [method.label for method in metrics.methods[-2:]]
    assert labels == ["text alone: boosted, by gradient", "text + residual"]
    page = (task / "run" / "report.html").read_text()
    assert "no weighting of the pool" in page
    assert "Accuracy per round" not in page


def test_a_given_scale_is_taken(task):
    metrics = fit_run(**request(task, rounds=1, logit_scale=7))
    assert metrics.composed.logit_scale == 7
    assert metrics.composed.scale_choice is None


def test_greedy_rounds_are_the_other_composer(task):
    metrics = fit_run(**request(task, composer="greedy"))
    assert metrics.composed.composer == "greedy"
    assert metrics.composed.logit_scale is None
    assert metrics.methods[-2].label == "text alone: boosted, 5 rounds"
    with pytest.raises(RunError, match=r"composer is gradient, but the run .* with greedy"):
        fit_run(**request(task, resume=True))
