import csv
import io
import json

import numpy as np

from promptboost import LinearHead, load
from promptboost.data import Dataset
from promptboost.data.memory import as_images
from promptboost.model.residual import Residual
from promptboost.model.vectors import EmbeddedRounds
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
        assert row["problem"] == (record["problem"] or "")
        if not record["problem"]:
            assert float(row["probability_3"]) == round(record["top"][2]["probability"], 6)


def test_unreadable_images_are_marked_and_the_code_says_whether_any_was_read(capsys, fitted):
    (fitted / "bad.png").write_bytes(b"")
    both = predict(capsys, fitted, fitted / "bad.png", fitted / "images/sea/0.png")
    assert both.code == 0
    assert "! the file is empty" in both.out
    none = predict(capsys, fitted, fitted / "bad.png", fitted / "gone.png")
    assert none.code == 2
    assert "! no such file" in none.out


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
    head = LinearHead.load(fitted / "run/head-fake-32-0.safetensors")
    assert head.logit_scale == classifier.ensemble.logit_scale
    assert (head.predict_proba(rows) == answered).all()
    # What the estimator answers with.
    residual = Residual(head.residual, head.text_scale, penalty=1.0)
    stages = EmbeddedRounds.of(classifier.ensemble, classifier.encoder, residual)
    np.testing.assert_allclose(stages.final().predict_proba(rows), answered, atol=1e-5)
    with (fitted / "run/predictions.csv").open() as file:
        for row in csv.DictReader(file):
            at = paths.index(fitted / "images" / row["picture"])
            assert abs(float(row["probability"]) - answered[at].max()) < 1e-5
