import csv
import io
import json
import os
import re

import numpy as np
import pytest
from PIL import Image

from promptboost import Head, load
from promptboost.data import Dataset
from promptboost.data.memory import as_images
from promptboost.model import PromptEnsemble
from promptboost.model.head import staged_heads
from tests.cli.cli_tools import call


def predict(capsys, task, *arguments):
    return call(capsys, "predict", task / "run", *arguments)


def test_a_table_for_people(capsys, fitted):
    answer = predict(capsys, fitted, fitted / "images/sea/0.png", "--top-k", 2)
    assert answer.code == 0
    line = answer.out.splitlines()[1]
    assert line.startswith(str(fitted / "images/sea/0.png"))
    assert line.count("%") == 2


def test_the_formats_agree(capsys, fitted):
    (fitted / "images/sea/bad.png").write_bytes(b"")
    where = fitted / "images"
    one = predict(capsys, fitted, where, "--json", "--top-k", 3).json["predictions"]
    lines = predict(capsys, fitted, where, "--format", "jsonl", "--top-k", 3).out.splitlines()
    assert [json.loads(line) for line in lines] == one
    table = predict(capsys, fitted, where, "--format", "csv", "--top-k", 3).out
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == len(one) == 33
    for row, record in zip(rows, one, strict=True):
        assert row["predicted"] == (record["predicted"] or "")
        assert row["error"] == (record["error"] or "")
        if not record["error"]:
            assert float(row["probability_3"]) == round(record["top"][2]["probability"], 6)


def test_unreadable_images_are_marked_and_the_code_says_whether_any_was_read(capsys, fitted):
    (fitted / "bad.png").write_bytes(b"")
    both = predict(capsys, fitted, fitted / "bad.png", fitted / "images/sea/0.png")
    assert both.code == 0
    assert "! the file is empty" in both.out
    none = predict(capsys, fitted, fitted / "bad.png", fitted / "gone.png")
    assert none.code == 2
    assert "! no such file" in none.out


def test_a_spreadsheet_works_out_no_name(capsys, fitted, monkeypatch):
    monkeypatch.chdir(fitted)
    assert call(capsys, "edit", "run", "-o", "edited", "--rename-class", "sea=@SUM(A1)").code == 0
    os.renames("images/sea/0.png", "=1+1/0.png")
    table = call(capsys, "predict", "edited", "=1+1", "--format", "csv", "--top-k", 4).out
    (row,) = csv.DictReader(io.StringIO(table))
    assert row["image"] == "'=1+1/0.png"
    guesses = {row["predicted"], *(row[f"class_{k}"] for k in (1, 2, 3, 4))}
    assert "'@SUM(A1)" in guesses
    exact = json.loads(
        call(capsys, "predict", "edited", "=1+1", "--format", "jsonl", "--top-k", 4).out
    )
    assert exact["image"] == "=1+1/0.png"
    assert "@SUM(A1)" in {one["class"] for one in exact["top"]}


def test_control_characters_in_names(capsys, fitted):
    (fitted / "a\x1b[1m.png").write_bytes((fitted / "images/sea/0.png").read_bytes())
    for layout in ("table", "csv"):
        answer = predict(capsys, fitted, fitted / "a\x1b[1m.png", "--format", layout)
        assert "a�[1m.png" in answer.out


def test_no_images_given(capsys, fitted):
    assert "Missing argument" in predict(capsys, fitted).err


def test_every_face_says_the_same_probability(capsys, fitted):
    paths = sorted((fitted / "images").rglob("*.png"))
    records = predict(capsys, fitted, *paths, "--json", "--top-k", 4).json["predictions"]
    classifier = load(fitted / "run")
    typed = np.array(
        [
            [
                {t["class"]: t["probability"] for t in r["top"]}[name]
                for name in classifier.class_names
            ]
            for r in records
        ]
    )
    answered = classifier.predict_proba(paths)
    assert (typed == answered).all()
    rows = classifier.embedder.originals(Dataset(as_images(paths), ()))
    head = Head.load(fitted / "run/head-fake-32-0.safetensors")
    assert head.logit_scale == classifier.ensemble.logit_scale
    assert (head.predict_proba(rows) == answered).all()
    # What the estimator answers with.
    *_, last = staged_heads(classifier.ensemble, classifier.encoder, head)
    np.testing.assert_allclose(last.predict_proba(rows), answered, atol=1e-5)
    with (fitted / "run/predictions.csv").open() as file:
        for row in csv.DictReader(file):
            at = paths.index(fitted / "images" / row["image"])
            assert abs(float(row["probability"]) - answered[at].max()) < 1e-5


def certain(capsys, fitted, *arguments):
    """Return what is predicted of every image, and a probability that half of them do not have."""
    records = predict(capsys, fitted, fitted / "images", "--json", *arguments).json["predictions"]
    return records, sorted(record["probability"] or 0 for record in records)[len(records) // 2]


def test_below_the_least_probability_nothing_is_predicted(capsys, fitted):
    before, least = certain(capsys, fitted)
    answer = predict(capsys, fitted, fitted / "images", "--json", "--min-probability", least)
    after = answer.json["predictions"]
    assert [record["unsure"] for record in after] == [
        record["probability"] < least for record in before
    ]
    assert answer.json["unsure"] == sum(record["unsure"] for record in after) > 0
    assert answer.json["min_probability"] == least
    for old, new in zip(before, after, strict=True):
        assert not old["unsure"]
        assert new["predicted"] == (None if new["unsure"] else old["predicted"])
        assert {**new, "predicted": old["predicted"]} == {**old, "unsure": new["unsure"]}


def test_unsure_is_said_by_every_format(capsys, fitted):
    (fitted / "images/sea/bad.png").write_bytes(b"")
    records, least = certain(capsys, fitted)
    asked = (fitted / "images", "--min-probability", least)
    one = predict(capsys, fitted, *asked, "--json").json
    lines = predict(capsys, fitted, *asked, "--format", "jsonl")
    assert [json.loads(line) for line in lines.out.splitlines()] == one["predictions"]
    made = predict(capsys, fitted, *asked, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(made.out)))
    for row, record in zip(rows, one["predictions"], strict=True):
        assert row["predicted"] == (record["predicted"] or "")
        assert row["class_1"] == (record["top"][0]["class"] if record["top"] else "")
        assert row["unsure"] == str(record["unsure"]).lower()
    shown = predict(capsys, fitted, *asked)
    for line, record in zip(shown.out.splitlines()[1:], one["predictions"], strict=True):
        rest = line.removeprefix(record["image"]).split()
        if record["error"]:
            assert rest[0] == "!"
        else:
            assert (rest[0] == "unsure") == record["unsure"]
            assert record["top"][0]["class"] in rest
            assert re.fullmatch(r"\d+\.\d%,?", rest[-1])
    for answer in (shown, made, lines):
        assert answer.err.splitlines()[-1] == f"{one['unsure']} of {len(records) - 1} images unsure"
    assert "unsure" not in predict(capsys, fitted, *asked, "--quiet").err


def test_a_class_called_unsure_is_told_from_being_so(capsys, fitted):
    path, image = fitted / "run/ensemble.json", fitted / "images/sea/0.png"

    def said(*arguments):
        return predict(capsys, fitted, image, "--text-only", *arguments)

    (before,) = said("--json").json["predictions"]
    PromptEnsemble.load(path).rename_class(before["predicted"], "unsure").save(path)
    (sure,) = said("--json", "--min-probability", 0).json["predictions"]
    (unsure,) = said("--json", "--min-probability", 1).json["predictions"]
    assert (sure["predicted"], sure["unsure"]) == ("unsure", False)
    assert (unsure["predicted"], unsure["unsure"]) == (None, True)
    assert unsure["top"][0]["class"] == "unsure"
    for least, words in ((0, ["unsure"]), (1, ["unsure", "unsure"])):
        header, line = said("--min-probability", least).out.splitlines()
        assert line.split()[1:-1] == words
        # The name of the class stands in another column than the mark.
        assert line.rindex("unsure") == header.index("best guess")


def test_a_least_probability_is_from_0_to_1(capsys, fitted):
    for wrong in ("1.1", "-0.1", "nan", "much"):
        for command in ("predict", "evaluate"):
            answer = call(
                capsys, command, fitted / "run", fitted / "images", "--min-probability", wrong
            )
            assert answer.code == 2
            assert "--min-probability" in answer.err
    every = predict(capsys, fitted, fitted / "images", "--json", "--min-probability", "0").json
    assert every["unsure"] == 0


def test_evaluate_says_how_many_are_answered_and_how_many_of_them_rightly(capsys, fitted):
    records, least = certain(capsys, fitted)
    where = ("evaluate", fitted / "run", fitted / "images")
    assert "sure" not in call(capsys, *where, "--json").json
    found = call(capsys, *where, "--min-probability", least, "--json").json["sure"]
    kept = [r for r in records if r["probability"] >= least]
    right = sum(f"/{r['predicted']}/" in r["image"] for r in kept)
    assert found == {
        "min_probability": least,
        "answered": len(kept),
        "coverage": len(kept) / len(records),
        "accuracy": right / len(kept),
    }
    shown = call(capsys, *where, "--min-probability", 1).out
    unsure = f"boosted at 1: – accuracy on 0.0% of images (predicted 0, unsure {len(records)})"
    assert unsure in shown


def test_rules_of_decision(capsys, fitted):
    where = fitted / "images"
    table = predict(capsys, fitted, where, "--reject", "--coverage", 0.9)
    rejected = sum("  rejected  " in line for line in table.out.splitlines())
    assert f"{rejected} of 32 images rejected" in table.err
    assert table.out.count("{") == 32
    record = predict(capsys, fitted, where, "--accept", 0.5, "--coverage", 0.9, "--json").json
    assert record["accept"] == 0.5
    assert record["rejected"] == sum(one["rejected"] for one in record["predictions"]) > rejected
    rows = predict(capsys, fitted, where, "--accept", 0.5, "--coverage", 0.9, "--format", "csv").out
    for row, one in zip(csv.DictReader(io.StringIO(rows)), record["predictions"], strict=True):
        assert row["predicted"] == (one["predicted"] or "")
        assert row["rejected"] == str(one["rejected"]).lower()
        assert row["prediction_set"].split("|") == one["prediction_set"]
        assert row["class_1"] == one["prediction_set"][0]


def test_class_priors_count_changes(capsys, fitted):
    (fitted / "shares.json").write_text('{"sea": 1}')
    where = fitted / "images"
    answer = predict(capsys, fitted, where, "--class-priors", fitted / "shares.json", "--json")
    changed = sum(one["unadjusted"] != "sea" for one in answer.json["predictions"])
    assert answer.json["changed"] == changed > 10
    assert {one["predicted"] for one in answer.json["predictions"]} == {"sea"}
    estimated = predict(capsys, fitted, where, "--class-priors", "estimate")
    assert "two halves of the images differ by" in estimated.err
    assert re.search(r"\d+ of 32 images changed", estimated.err)
    (fitted / "shares.json").write_text("[1]")
    bad = predict(capsys, fitted, where, "--class-priors", fitted / "shares.json")
    assert bad.code == 2
    assert "expected a JSON object" in bad.err
    unknown = predict(capsys, fitted, where, "--class-priors", "some")
    assert unknown.code == 2
    assert "give equal, estimate, or a JSON file" in unknown.err
    options = ("--class-priors", "equal", "-o", fitted / "a.jsonl", "--per-shard", 8)
    assert "without shards" in predict(capsys, fitted, where, *options).err


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_class_priors_are_in_the_file(capsys, fitted, name):
    parquet = pytest.importorskip("pyarrow.parquet")
    (fitted / "shares.json").write_text('{"sea": 3, "leaf": 1}')
    (fitted / "images/sea/0.png").write_bytes(b"poison")
    options = (fitted / "images", "--class-priors", fitted / "shares.json", "--accept", 0.5)
    expected = predict(capsys, fitted, *options, "--json").json
    answer = predict(capsys, fitted, *options, "-o", fitted / name, "--json")
    assert (answer.code, answer.json["errors"]) == (0, 1)
    assert answer.json["changed"] == expected["changed"] > 5
    if name.endswith("l"):
        rows = [json.loads(line) for line in (fitted / name).read_text().splitlines()]
        assert rows == expected["predictions"]
    else:
        rows = parquet.read_table(fitted / name).to_pylist()
        assert list(rows[0])[-2:] == ["rejected", "unadjusted"]
        assert rows == [
            {key: record.get(key) for key in rows[0]} for record in expected["predictions"]
        ]
    told = predict(capsys, fitted, *options, "-o", fitted / name).out
    assert f"31 of 32 images predicted: {fitted / name}" in told
    assert f"adjusted to class priors: {expected['changed']} changed" in told


def test_rejection_without_thresholds_is_an_error(capsys, fitted):
    answer = predict(capsys, fitted, fitted / "images", "--reject", "--text-only")
    assert answer.code == 2
    assert "no cross-validated training images" in answer.err


def test_suggested_images_are_new_and_balanced(capsys, fitted):
    for number, path in enumerate(sorted((fitted / "images").rglob("*.png"))):
        pixels = np.asarray(Image.open(path)).copy()
        pixels[0, 0] = 0
        (fitted / "new").mkdir(exist_ok=True)
        if number % 2:
            Image.fromarray(pixels).save(fitted / f"new/{path.parent.name}-{path.name}")
    (fitted / "new/copy.png").write_bytes((fitted / "images/sea/0.png").read_bytes())
    (fitted / "new/bad.png").write_bytes(b"")
    listed = call(capsys, "suggest", fitted / "run", fitted / "new", "-n", 8, "--json").json
    images = [one["image"] for one in listed["images"]]
    assert len(set(images)) == 8
    assert not {str(fitted / f"new/{name}.png") for name in ("copy", "bad")} & set(images)
    predicted = [one["predicted"] for one in listed["images"]]
    assert max(map(predicted.count, predicted)) <= 3
    text = call(capsys, "suggest", fitted / "run", fitted / "new", "-n", 2).out.splitlines()
    assert [line.split()[0] for line in text[1:]] == images[:2]
    empty = call(capsys, "suggest", fitted / "run", fitted / "images")
    assert (empty.code, empty.out) == (0, "")
    assert "no images to label: the run has all of them" in empty.err
