import json

import pytest

from promptboost.pool import read_descriptions
from tests.cli.cli_tools import FIT, call
from tests.runs.run_tools import write_pictures


@pytest.fixture
def files(tmp_path):
    (tmp_path / "classes.txt").write_text("barn owl\nbat\nelk\n")
    (tmp_path / "birds_prompts_full.json").write_text(
        json.dumps({"Barn_Owl": ["An owl.", "", "an  OWL."], "bat": ["An elk."], "cow": ["A cow."]})
    )
    (tmp_path / "descriptors_birds.json").write_text(json.dumps({"bat": ["wings"]}))
    return tmp_path


def test_check_says_what_matched_how_and_what_is_odd(capsys, files):
    arguments = ["pool", "check", files / "birds_prompts_full.json"]
    arguments += [files / "descriptors_birds.json", "--classes", files / "classes.txt"]
    text = call(capsys, *arguments)
    assert text.code == 0
    for line in (
        "names met: 1 underscores, 1 exact",
        "PP001 issue: Missing classes (1)",
        "PP003 tip: Names of no class (1)",
        "Barn_Owl: 1",
        "PP012 tip: Repeated sentences (1)",
        "bat: “An elk.” names elk",
        "2 of 3 classes have sentences; not elk",
    ):
        assert line in text.out
    record = call(capsys, *arguments, "--json").json
    assert record["without_sentences"] == ["elk"]
    first, second = record["sources"]
    assert first["matched"][0] == {"class": "barn owl", "name": "Barn_Owl", "how": "underscores"}
    codes = [finding["code"] for finding in first["findings"]]
    assert codes == ["PP001", "PP003", "PP011", "PP012", "PP015"]
    assert (second["kind"], second["missing"]) == ("dclip", ["barn owl", "elk"])


def test_check_with_an_encoder(capsys, files):
    (files / "long.json").write_text(json.dumps({"bat": ["word " * 100 + "."]}))
    arguments = ["pool", "check", files / "long.json", "--classes", files / "classes.txt", "--json"]
    found = call(capsys, *arguments, "--encoder", "fake:16-0").json["sources"][0]["findings"]
    assert [item["code"] for item in found] == ["PP001", "PP016"]
    assert "103 tokens, 77 are read" in found[1]["details"][0]


def test_long_sentences_are_cut_for_people_only(capsys, files):
    (files / "long.json").write_text(json.dumps({"bat": ["word " * 10_000] * 2}))
    arguments = ["pool", "check", files / "long.json", "--classes", files / "classes.txt"]
    assert max(map(len, call(capsys, *arguments).out.splitlines())) < 300
    assert len(call(capsys, *arguments, "--json").out) > 50_000


def test_what_check_prints_cannot_move_the_cursor(capsys, files):
    (files / "bad.json").write_text(json.dumps({"bat": ["a \x1b[2J", "b \u200b- c."]}))
    answer = call(capsys, "pool", "check", files / "bad.json", "--classes", files / "classes.txt")
    assert "PP013" in answer.out
    assert "\x1b" not in answer.out
    assert "\u200b" not in answer.out


def test_build_writes_what_fit_reads(capsys, files):
    arguments = ["pool", "build", files / "birds_prompts_full.json"]
    arguments += [files / "descriptors_birds.json", "--classes", files / "classes.txt"]
    answer = call(capsys, *arguments, "-o", files / "all.json", "--json")
    assert read_descriptions(files / "all.json") == {
        "barn owl": ["An owl."],
        "bat": ["An elk.", "bat, which has wings."],
    }
    assert answer.json["left_out"] == {
        "blank": 1,
        "damaged": 0,
        "repeated": 1,
        "names_of_no_class": 1,
    }
    assert "1 of 3 classes have no sentence: elk" in answer.err
    shown = call(capsys, "pool", "show", files / "all.json", "--class", "Barn_Owl")
    assert shown.out == "An owl.\n"
    assert call(capsys, "pool", "show", files / "all.json").out.splitlines()[1].split() == [
        *("barn", "owl", "1", "all.json")
    ]


def test_build_uses_synonyms(capsys, files):
    (files / "synonyms.json").write_text(json.dumps({"elk": ["cow"]}))
    arguments = ["pool", "build", files / "birds_prompts_full.json", "-o", files / "all.json"]
    arguments += ["--classes", files / "classes.txt", "--synonyms", files / "synonyms.json"]
    assert call(capsys, *arguments).code == 0
    assert read_descriptions(files / "all.json")["elk"] == ["A cow."]


def test_build_refuses_to_guess_and_leaves_the_old_file(capsys, files):
    (files / "two.json").write_text(json.dumps({"Bat": ["x"], "BAT": ["y"]}))
    (files / "all.json").write_text("old")
    answer = call(
        *(capsys, "pool", "build", files / "two.json", "--classes", files / "classes.txt"),
        *("-o", files / "all.json"),
    )
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "--synonyms" in answer.err
    assert (files / "all.json").read_text() == "old"


def test_classes_may_be_pictures_and_the_pool_fits(capsys, tmp_path):
    write_pictures(tmp_path / "pictures")
    names = [
        folder.name for folder in sorted((tmp_path / "pictures").rglob("*")) if folder.is_dir()
    ]
    sentences = "".join(f"{name.upper()}\tone kind of {name}.\n" for name in names)
    (tmp_path / "mine.txt").write_text(sentences)
    arguments = ["pool", "build", tmp_path / "mine.txt", "--classes", tmp_path / "pictures"]
    built = call(capsys, *arguments, "-o", tmp_path / "pool.json", "--json")
    assert built.json["without_sentences"] == []
    arguments = ["fit", tmp_path / "pictures", "-o", tmp_path / "run", *FIT, "--json"]
    assert call(capsys, *arguments, "--prompts", tmp_path / "pool.json").code == 0


def test_fit_points_at_build_for_a_file_with_blank_sentences(capsys, tmp_path):
    write_pictures(tmp_path / "pictures")
    (tmp_path / "blank.json").write_text('{"sea": [""]}')
    arguments = ["fit", tmp_path / "pictures", "-o", tmp_path / "run", *FIT]
    answer = call(capsys, *arguments, "--prompts", tmp_path / "blank.json")
    assert answer.code == 2
    assert "promptboost pool build" in answer.err


def test_show_templates_and_records(capsys, tmp_path):
    (tmp_path / "t.json").write_text('{"birds": ["a photo of a {c}."], "cars": ["a {c}"]}')
    answer = call(capsys, "pool", "show", tmp_path / "t.json", "--dataset", "birds")
    assert answer.out == "a photo of a {}.\n"
    record = call(capsys, "pool", "show", tmp_path / "t.json", "--dataset", "cars", "--json").json
    assert record["sources"][0]["templates"] == ["a {}"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pool", "show", "none.json"], "does not exist"),
        (["pool", "show", "birds_prompts_full.json", "--class", "bar owl"], "'Barn_Owl'"),
        (["pool", "show", "birds_prompts_full.json", "--kind", "cuppl"], "the kinds are"),
        (["pool", "check", "descriptors_birds.json"], "--classes"),
        (["pool", "check", "descriptors_birds.json", "--classes", "none"], "none"),
        (["pool", "bild"], "bild"),
    ],
)
def test_errors_are_one_line(capsys, files, monkeypatch, arguments, says):
    monkeypatch.chdir(files)
    answer = call(capsys, *arguments)
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert says in answer.err


def test_the_group_alone_shows_its_help(capsys):
    answer = call(capsys, "pool")
    assert (answer.code, answer.err) == (0, "")
    assert all(word in answer.out for word in ("check", "build", "show"))
