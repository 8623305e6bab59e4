import json
import shutil

import numpy as np
import pytest
from PIL import Image

from promptboost.baselines import OURS, Guesses
from promptboost.compare.cells import CompareRequest
from promptboost.compare.compare import compare, write_results
from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.report import write_card, write_report
from promptboost.report.checks import run_checks
from promptboost.report.page import read_run
from promptboost.run.evaluate import evaluate_run
from promptboost.run.fit import fit_run
from promptboost.run.overlap import Overlap, inspect
from promptboost.run.results import Results
from tests.run.run_tools import ENCODER, write_images, write_sentences
from tests.run.test_copies import scene


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Training images, and a test split with copies of some: bytes, pixels, and a wrong label."""
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "store"))
    images = tmp_path / "images"
    write_images(images / "train", count=3)
    write_images(images / "test", count=4, seed=7)
    scene(0).save(images / "train/sea/scene.png")
    scene(0).resize((120, 80)).save(images / "test/sea/small.jpg", quality=70)
    shutil.copy(images / "train/leaf/1.png", images / "test/leaf/copy.png")
    shutil.copy(images / "train/leaf/2.png", images / "test/night/[wrong].png")
    shutil.copy(images / "test/ember/0.png", images / "test/ember/again.png")
    write_sentences(tmp_path / "sentences.json")
    return tmp_path


def settings(task):
    return FitConfig(encoder=ENCODER, shots=None, views=0, prompts=str(task / "sentences.json"))


def fit(task, said=None):
    return fit_run(
        str(task / "images"),
        task / "run",
        settings(task),
        say=(said if said is not None else []).append,
    )


def test_what_is_a_copy_of_what(task):
    data = load_data(task / "images")
    found = inspect(data.of_split("train"), data.of_split("test"))
    overlap = found.overlap
    assert (overlap.leaks.images, overlap.leaks.exact) == (3, 2)
    leaked = {copy.image: (copy.of, copy.exact) for copy in overlap.leaks.first}
    assert leaked == {
        "test/leaf/copy.png": ("train/leaf/1.png", True),
        "test/night/[wrong].png": ("train/leaf/2.png", True),
        "test/sea/small.jpg": ("train/sea/scene.png", False),
    }
    assert int(found.leaked.sum()) == 3
    mixed = overlap.contradictions
    assert (mixed.images, mixed.learned, len(mixed.first)) == (2, 1, 1)
    assert (mixed.first[0].label, mixed.first[0].of_label) == ("night", "leaf")
    assert (overlap.repeats.images, overlap.repeats.learned) == (2, 0)
    assert [copy.image for copy in overlap.repeats.first] == ["test/ember/again.png"]
    assert len(overlap.lines()) == 3


def test_digests_alone_find_what_is_the_same_byte_for_byte(task):
    data = load_data(task / "images")
    digests = [image.digest() for image in data.of_split("train").images]
    overlap = inspect(digests, data.of_split("test")).overlap
    assert (overlap.leaks.images, overlap.leaks.exact) == (2, 2)
    assert overlap.contradictions.images == 0
    assert overlap.repeats.images == 2


def test_nothing_is_said_of_images_that_are_all_different(tmp_path):
    write_images(tmp_path / "images")
    data = load_data(tmp_path / "images")
    half = len(data) // 2
    found = inspect(data.subset(range(half)), data.subset(range(half, len(data))))
    assert (found.overlap, found.overlap.lines()) == (Overlap(), [])
    assert not found.leaked.any()


def test_accuracy_without_the_images_that_were_learned_from():
    labels, leaked = np.array([0, 1, 1, 0]), np.array([True, True, False, False])
    guesses = Guesses("x", "x", np.array([0, 1, 0, 0]))
    assert guesses.result(labels, leaked=leaked).unseen_accuracy == 0.5
    assert guesses.result(labels, leaked=~leaked & leaked).unseen_accuracy is None
    assert guesses.result(labels, leaked=leaked | ~leaked).unseen_accuracy is None
    assert guesses.result(labels).unseen_accuracy is None


def test_a_fit_tells_it_in_its_words_its_files_and_its_pages(task):
    said = []
    results = fit(task, said)
    assert any(
        line.startswith("3 held-out images are in the training set (2 byte") for line in said
    )
    assert any("test/night/[wrong].png (night) = train/leaf/2.png (leaf)" in line for line in said)
    ours = results.method(OURS)
    right = round(ours.accuracy * 20)
    assert any(ours.unseen_accuracy == pytest.approx((right - k) / 17) for k in range(4))
    read = Results.read(task / "run/metrics.json")
    assert read.overlap == results.overlap
    assert read.record()["overlap"]["leaks"]["images"] == 3
    checks = {check.rule.code: check.answer for check in run_checks(read_run(task / "run"))}
    assert [checks[code].outcome for code in ("PB014", "PB015", "PB016")] == ["found"] * 3
    assert "without the 3 held-out images in the training set" in checks["PB014"].summary
    page = (task / "run/report.html").read_text(encoding="utf-8")
    card = (task / "run/README.md").read_text(encoding="utf-8")
    for text in (page, card):
        assert "without the 3 held-out images in the training set" in text
    assert "test/night/\\[wrong\\].png" in card


def test_figures_of_before_are_read_and_the_checks_say_so(task):
    fit(task)
    file = task / "run/metrics.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    del record["overlap"]
    for method in record["methods"]:
        del method["unseen_accuracy"]
    file.write_text(json.dumps(record), encoding="utf-8")
    assert Results.read(file).overlap is None
    checks = {check.rule.code: check.answer for check in run_checks(read_run(task / "run"))}
    for code in ("PB014", "PB015", "PB016"):
        assert checks[code].outcome == "not applicable"
    write_report(task / "run")
    write_card(task / "run")


def test_evaluate_knows_an_image_saved_anew_while_its_original_is_there(task):
    fit(task)
    new = task / "new/sea"
    new.mkdir(parents=True)
    scene(0).resize((90, 60)).save(new / "mine.jpg")
    Image.effect_noise((40, 30), 90).save(new / "other.png")
    found = evaluate_run(task / "run", str(task / "new"))
    assert found["learned_from"] == found["overlap"]["leaks"]["images"] == 1
    assert found["overlap"]["leaks"]["first"][0]["of"] == "train/sea/scene.png"
    assert found["remarks"][0].startswith("the run was trained on 1 of these images")
    assert found["methods"][0]["unseen_accuracy"] is not None
    (task / "images").rename(task / "gone")
    assert evaluate_run(task / "run", str(task / "new"))["learned_from"] == 0


def test_a_comparison_tells_it_of_each_draw(task):
    said = []
    request = CompareRequest(
        str(task / "images"),
        task / "out",
        ("zero-shot", "logistic"),
        (1, 4),
        (1, 2),
        ENCODER,
        words=settings(task),
    )
    found = compare(request, said.append)
    assert set(found.overlaps) == {(1, 1), (1, 2), (4, 1), (4, 2)}
    for seed in (1, 2):  # all there are
        assert found.overlaps[4, seed].leaks.images == 3
    assert any(line.startswith("4 shots, seed 1: 3 held-out images") for line in said)
    lines = {(line["method"], line["shots"], line["seed"]): line for line in found.lines}
    assert lines["logistic", 4, 1]["leaked_images"] == 3
    assert lines["logistic", 4, 1]["unseen_accuracy"] is not None
    assert json.loads(json.dumps(found.overlap_records()))[0]["shots"] == 1
    write_results(request, found)
    page = (task / "out/results.md").read_text(encoding="utf-8")
    assert "without the 3 test images that the training images contain" in page
    assert "unseen_accuracy" in (task / "out/results.csv").read_text().splitlines()[0]
    again = []
    assert compare(request, again.append).lines == found.lines
    assert any("3 held-out images" in line for line in again)
