import csv
import io
import json
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.cli_tools import FIT, call

COLOURS = {"fire": (220, 40, 40), "ice": (40, 60, 220)}
WRONG = "ice/wrong\x1b[31m\u202e=1+1,.png"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)

    def image(color):
        pixels = rng.normal(np.array(color), 30.0, (16, 16, 3))
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    for name, color in COLOURS.items():
        Path("images", name).mkdir(parents=True)
        for number in range(8):
            image(color).save(Path("images", name, f"{number}.png"))
    image(COLOURS["fire"]).save(Path("images", WRONG))
    shutil.copy("images/fire/0.png", "images/fire/again.png")
    assert call(capsys, "fit", "images", "-o", "run", *FIT, "--quiet").code == 0
    return Path("run")


def test_a_table_says_what_to_look_at_and_why(capsys, run):
    answer = call(capsys, "issues", "run")
    assert answer.code == 0
    assert "labels that are probably wrong: 1 to review" in answer.out
    assert "looks like fire" in answer.out
    assert "8 training images and 10 held-out images" in answer.out
    assert "report  run/report.html" in answer.out
    assert Path("run/issues.json").exists()
    assert "ice" in Path("run/report.html").read_text()


def test_json_has_the_same_fields_whatever_is_found(capsys, run):
    answer = call(capsys, "issues", "run", "--json").json
    assert answer["schema_version"] == 1
    assert set(answer["to_look_at"]) == {"label", "two-labels", "leak", "outlier", "repeat"}
    for item in answer["findings"]:
        assert set(item) == {
            *(
                "kind",
                "image",
                "split",
                "label",
                "suggested",
                "probability",
                "score",
                "other",
                "why",
            )
        }
    (wrong,) = [item for item in answer["findings"] if item["kind"] == "label"]
    assert wrong["image"] == WRONG
    assert (wrong["label"], wrong["suggested"]) == ("ice", "fire")
    assert any(item["other"] for item in answer["findings"])


def test_csv_and_jsonl_are_the_same_findings(capsys, run):
    findings = call(capsys, "issues", "run", "--json").json["findings"]
    lines = call(capsys, "issues", "run", "--format", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == findings
    table = list(csv.DictReader(io.StringIO(call(capsys, "issues", "run", "--format", "csv").out)))
    assert [row["kind"] for row in table] == [item["kind"] for item in findings]
    assert [row["why"] for row in table if row["other"]] == [
        item["why"] for item in findings if item["other"]
    ]
    for row, item in zip(table, findings, strict=True):
        assert float(row["score"]) == pytest.approx(item["score"], abs=1e-6)


@pytest.mark.parametrize("layout", ["table", "csv", "jsonl"])
def test_no_terminal_obeys_the_name_of_a_file(capsys, run, layout):
    answer = call(capsys, "issues", "run", "--format", layout)
    hidden = [c for c in answer.out + answer.err if unicodedata.category(c) in ("Cc", "Cf")]
    assert set(hidden) <= {"\n"}


def test_a_limit_is_for_each_kind(capsys, run):
    answer = call(capsys, "issues", "run", "--json", "--limit", 1).json
    kinds = [item["kind"] for item in answer["findings"]]
    assert len(kinds) == len(set(kinds))
    assert call(capsys, "issues", "run", "--limit", 0).code == 2
    more = call(capsys, "issues", "run", "--json", "--limit", 5).json
    assert sum(item["kind"] == "label" for item in more["findings"]) == 5
    assert more["to_look_at"]["label"] == 1
    kept = json.loads(Path("run/issues.json").read_text())["findings"]
    assert sum(item["kind"] == "label" for item in kept) == 1


def test_images_that_are_gone_and_what_to_type(capsys, run):
    Path("images").rename("moved")
    answer = call(capsys, "issues", "run")
    assert answer.code == 2
    assert "issues run DATA" in answer.err
    assert call(capsys, "issues", "run", "moved").code == 0
    assert call(capsys, "issues", "nothing").code == 2


@pytest.mark.parametrize("old", ["gradient", "paper"])
def test_a_run_of_an_old_version(capsys, tmp_path, monkeypatch, old):
    shutil.copytree(Path(__file__).parents[1] / "old_runs", tmp_path / "old")
    file = tmp_path / "old" / old / "run.toml"
    file.write_text(file.read_text().replace("@HERE@", str(tmp_path / "old")))
    monkeypatch.chdir(tmp_path / "old")
    answer = call(capsys, "issues", old, "--json")
    assert answer.code == 0
    assert answer.json["learned_images"] == 9
    assert answer.json["held_out_images"] == 6
