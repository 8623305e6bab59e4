import json
import shutil

import msgspec
import numpy as np
import pytest
from PIL import Image

from promptboost.errors import FileFormatError, RunError
from promptboost.quality.issues import (
    find_issues,
    inspect_issues,
    summary_line,
    write_issues,
)
from promptboost.report import write_report
from promptboost.report.page import read_run
from promptboost.run.findings import Issues
from promptboost.run.fit import fit_run
from tests.report.page_tools import Page
from tests.run.run_tools import COLOURS, request, write_images, write_sentences

WRONG = {"leaf/ember-0.png": "ember", "sea/leaf-1.png": "leaf", "ember/sea-2.png": "sea"}


def plain_image(color, rng):
    pixels = rng.normal(np.array(color) + rng.normal(0, 12, 3), 40.0, (16, 20, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture
def mislabeled(tmp_path):
    """Clear images, some in the folder of another class; and the same image under two labels."""
    rng = np.random.default_rng(3)
    for name, color in COLOURS.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(12):
            plain_image(color, rng).save(tmp_path / "images" / name / f"{number}.png")
    for place, color in WRONG.items():
        plain_image(COLOURS[color], rng).save(tmp_path / "images" / place)
    shutil.copy(tmp_path / "images/sea/0.png", tmp_path / "images/night/copy.png")
    write_sentences(tmp_path / "sentences.json")
    fit_run(**request(tmp_path, shots=6))
    return tmp_path


def test_wrong_labels_and_copies_are_found(mislabeled):
    issues = find_issues(mislabeled / "run")
    labels = {item.image: item for item in issues.of_kind("label")}
    assert set(WRONG) <= set(labels)
    assert issues.to_look_at["label"] == len(labels) <= 8
    for image, true in WRONG.items():
        assert labels[image].suggested == true
        assert labels[image].probability > 0.5
        assert labels[image].label in labels[image].why
    assert next(iter(labels)) in {*WRONG, "night/copy.png"}
    (pair,) = issues.of_kind("two-labels")
    assert {pair.image, pair.other} == {"sea/0.png", "night/copy.png"}
    assert (pair.suggested, pair.score) == ("sea", 1.0)
    assert issues.learned_images == 24
    assert issues.held_out_images == 52 - 24
    assert {item.split for item in issues.findings} <= {"learned", "held-out"}
    scores = [item.score for item in issues.of_kind("label")]
    assert scores == sorted(scores, reverse=True)
    assert [item.kind for item in issues.first(1)].count("label") == 1


def test_a_wrong_label_that_was_learned_is_not_excused(mislabeled):
    fit_run(**request(mislabeled, "all", shots=None))
    issues = find_issues(mislabeled / "all")
    assert issues.held_out_images == 0
    assert set(WRONG) <= {item.image for item in issues.of_kind("label")}
    assert {item.split for item in issues.findings} == {"learned"}


def test_the_same_twice_and_nothing_is_written(mislabeled):
    before = sorted(file.name for file in (mislabeled / "run").iterdir())
    first = find_issues(mislabeled / "run")
    assert find_issues(mislabeled / "run") == first
    assert sorted(file.name for file in (mislabeled / "run").iterdir()) == before


def test_sentences_that_are_gone_are_done_without(mislabeled):
    (mislabeled / "sentences.json").unlink()
    issues = find_issues(mislabeled / "run")
    assert set(WRONG) <= {item.image for item in issues.of_kind("label")}


def test_one_image_of_each_class_is_judged_by_the_words_alone(tmp_path):
    write_images(tmp_path / "images", count=1)
    write_sentences(tmp_path / "sentences.json")
    fit_run(**request(tmp_path, shots=1))
    issues = find_issues(tmp_path / "run")
    assert issues.only_words == 4
    assert summary_line(issues).endswith("each checked with the text alone: no class has two")


def test_images_that_are_gone_moved_or_changed(mislabeled):
    run, images = mislabeled / "run", mislabeled / "images"
    images.rename(mislabeled / "moved")
    with pytest.raises(RunError, match=r"cannot be read: .* issues .*run DATA"):
        find_issues(run)
    moved = find_issues(run, str(mislabeled / "moved"))
    assert set(WRONG) <= {item.image for item in moved.of_kind("label")}
    (mislabeled / "moved").rename(images)
    for image in (images / "sea").glob("?.png"):
        image.unlink()
    with pytest.raises(RunError, match=r"not those that the run in .* learned from.*fit again"):
        find_issues(run)


def test_the_report_shows_them(mislabeled):
    run = mislabeled / "run"
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert "promptboost issues run" in page.text("issues")
    issues, task = inspect_issues(run)
    write_issues(run, issues, task)
    assert Issues.read(run / "issues.json") == issues
    assert read_run(run).issues == issues
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    shown = page.text("issues")
    assert all(image in shown for image in WRONG)
    titles = {image.get("title") for image in page.named("img")}
    assert set(WRONG) <= titles
    assert {
        item["image"] for item in json.loads((run / "metrics.json").read_text())["hardest"]
    } <= set(json.loads((run / "thumbnails.json").read_text()))
    fit_run(**request(mislabeled, overwrite=True, shots=6))
    assert not (run / "issues.json").exists()


def test_words_of_strangers_are_escaped_on_the_page(mislabeled):
    run = mislabeled / "run"
    issues = find_issues(run)
    evil = "<script>alert(1)</script>\u202e"
    item = msgspec.structs.replace(
        issues.findings[0], image=evil, label=evil, why=f"looks like {evil}", other=evil
    )
    changed = msgspec.structs.replace(issues, findings=(item,))
    (run / "issues.json").write_bytes(msgspec.json.encode(changed))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert not page.named("script")
    assert "<script>alert(1)</script>" in page.text("issues")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "schema_version"),
        ('{"schema_version": 2}', "schema_version"),
        ('{"schema_version": 1}', "learned_images"),
        ("{", "issues.json"),
    ],
)
def test_a_file_that_is_damaged_is_named(mislabeled, content, message):
    file = mislabeled / "run" / "issues.json"
    file.write_text(content)
    with pytest.raises(FileFormatError, match=message) as caught:
        write_report(mislabeled / "run")
    assert "issues.json" in str(caught.value)
