from pathlib import Path

import pytest

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import FileFormatError, PoolError
from promptboost.pool.lint import RULES, lint
from promptboost.pool.names import read_class_names
from promptboost.pool.readers.source import Source
from promptboost.pool.sources import join_sentences, match_classes, sentences_about


def source(sentences, **more):
    return Source("mine", more.pop("kind", "cupl"), Path("mine.json"), sentences, **more)


def findings(given, classes, synonyms=None, encoder=None):
    found = lint(match_classes(given, classes, synonyms), classes, encoder)
    return {finding.rule.code: list(finding.details) for finding in found}


def test_numbers_are_distinct_and_in_order():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))


def test_nothing_to_find():
    assert findings(source({"owl": ("An owl.",), "bat": ("A bat.",)}), ["owl", "bat"]) == {}


@pytest.mark.parametrize(
    ("code", "given", "details"),
    [
        ("PP001", source({"owl": ("An owl.",)}), ["bat"]),
        ("PP002", source({"owl": (), "Bat": ("x",), "BAT": ("y",)}), ["Bat or BAT for bat (case)"]),
        ("PP003", source({"owl": (), "bat": (), "elk": ("x",)}), ["elk"]),
        ("PP004", source({"owls": ("x",), "bat": ()}), ["'owls' is matched with 'owl' (plural)"]),
        ("PP010", source({"owl": (), "bat": ("x",)}), ["owl"]),
        ("PP011", source({"owl": ("x",), "bat": ()}, blank={"owl": 3}), ["owl: 3"]),
        ("PP012", source({"owl": ("An Owl", "an  owl", "x"), "bat": ()}), ["owl: “an  owl”"]),
        (
            "PP013",
            source({"owl": ("x",), "bat": ()}, skipped=["owl: U+001B"]),
            ["owl: U+001B"],
        ),
        (
            "PP015",
            source({"owl": ("a bat at night.", "two owls and a bat", "acrobat"), "bat": ()}),
            ["owl: “a bat at night.” names bat"],
        ),
        ("PP018", source({"owl": ("1.", ".", "Ω", "x"), "bat": ()}), ["owl: “1.”", "owl: “.”"]),
        ("PP020", source({"owl": ("x",), "bat": ()}, stray=("notes.md",)), ["notes.md"]),
    ],
)
def test_each_rule(code, given, details):
    assert findings(given, ["owl", "bat"])[code] == details


@pytest.mark.parametrize(
    "text",
    [
        "</p>An owl",
        "- an owl",
        "1. an owl",
        "**owl**",
        "a &amp; b",
        "https://x",
        "a {}",
    ],
)
def test_markup(text):
    assert len(findings(source({"owl": (text,)}), ["owl"])["PP014"]) == 1


@pytest.mark.parametrize("text", ["a 3-door car - red", "5 < 6 & 7 > 2", "2012 Audi"])
def test_no_markup(text):
    assert "PP014" not in findings(source({"owl": (text,)}), ["owl"])


def test_the_nearest_unused_name_is_offered_and_not_taken():
    found = findings(source({"sea or lakes view": ("x",)}), ["sea or lake"])
    assert found["PP001"] == ["sea or lake (is it 'sea or lakes view'?)"]
    assert "PP003" in found


def test_sentences_over_the_context_length():
    encoder = FakeEncoder(16, 0)
    given = source({"owl": ("word " * 75, "word " * 76)})
    assert len(findings(given, ["owl"], encoder=encoder)["PP016"]) == 1
    assert "PP016" not in findings(given, ["owl"])


def test_a_sentence_with_the_name_the_file_uses_names_its_own():
    given = source({"head of a crocodile": ("the head of a crocodile, no bat",), "bat": ("x",)})
    classes = ["crocodile head", "bat"]
    synonyms = {"crocodile head": ["head of a crocodile"]}
    assert "PP015" not in findings(given, classes, synonyms)


def test_fragments_in_a_plain_file_are_pointed_out():
    given = source({"owl": ("large eyes", "a beak")}, kind="plain")
    assert list(findings(given, ["owl"])) == ["PP017"]
    assert findings(source({"owl": ("It has eyes.",)}, kind="plain"), ["owl"]) == {}


def test_what_describes_an_image_is_no_fragment_for_want_of_a_full_stop():
    texts = ("a small owl with large round eyes on a branch", "two owls asleep in a hollow tree")
    assert findings(source({"owl": texts}, kind="plain"), ["owl"]) == {}


def test_templates_are_for_every_class():
    given = source({}, templates=("a {} at night",))
    assert findings(given, ["owl", "bat"]) == {}
    assert join_sentences([match_classes(given, ["owl", "bat"])], ["owl", "bat"]) == {
        "owl": ["an owl at night"],
        "bat": ["a bat at night"],
    }


def test_join_keeps_the_order_and_each_sentence_once():
    first, second = source({"Owl": ("b", "a")}), source({"owl": ("A", "c"), "bat": ()})
    classes = ["bat", "owl"]
    assert join_sentences(
        [match_classes(first, classes), match_classes(second, classes)], classes
    ) == {"owl": ["b", "a", "c"]}


def test_join_refuses_to_guess():
    with pytest.raises(PoolError, match=r"'Bat' or 'BAT' could be 'bat'.*--synonyms"):
        join_sentences([match_classes(source({"Bat": ("x",), "BAT": ("y",)}), ["bat"])], ["bat"])
    with pytest.raises(PoolError, match="no class has a sentence"):
        join_sentences([match_classes(source({"elk": ("x",)}), ["bat"])], ["bat"])


def test_sentences_about_one_class():
    given = source({"Barn Owl": ("eyes",)}, phrase=lambda name, text: f"{name}: {text}")
    assert sentences_about([given], "barn_owl") == {"mine": ["barn_owl: eyes"]}
    with pytest.raises(PoolError, match="there is 'Barn Owl'"):
        sentences_about([given], "Barn Awl")


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.txt", "owl\n\n bat \r\n", ("owl", "bat")),
        ("a.json", '["owl", "bat"]', ("owl", "bat")),
        (
            "a.json",
            '{"1": "bat", "10": "elk", "0": "owl", "2": "cat"}',
            ("owl", "bat", "cat", "elk"),
        ),
        ("a.json", '{"owl": ["x"], "bat": []}', ("owl", "bat")),
        ("a.csv", "path,label", None),
    ],
)
def test_class_names(tmp_path, name, content, names):
    (tmp_path / name).write_text(content)
    assert read_class_names(tmp_path / name) == names


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('["owl", "OWL"]', "same name"),
        ("[]", "no class names"),
        ('["owl", ""]', "class name 2 is empty"),
        ('{"n01": "owl"}', '"0": "name"'),
        ("3", "should be"),
    ],
)
def test_class_names_that_cannot_be_used(tmp_path, content, says):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises((PoolError, FileFormatError), match=says):
        read_class_names(path)
