import json
import os
from dataclasses import replace

import pytest
from hypothesis import given

from promptboost.errors import FileFormatError
from promptboost.model import PromptEnsemble
from tests.model.ensembles import PATIENT, TEXT, ensembles, pets


def changed(change):
    """Give the JSON of a good ensemble after a change to what it says."""
    record = json.loads(pets().to_json(sample_weights=True))
    change(record)
    return json.dumps(record)


@given(ensembles(prompts=TEXT))
@PATIENT
def test_round_trip_is_the_identity(ensemble):
    text = ensemble.to_json()
    again = PromptEnsemble.from_json(text)
    assert again == ensemble
    assert again.to_json() == text
    assert again.fingerprint == ensemble.fingerprint
    # Order is lost on equality of mappings, and matters to who reads.
    assert again.texts() == ensemble.texts()


@given(ensembles(prompts=TEXT))
@PATIENT
def test_files_round_trip(tmp_path_factory, ensemble):
    path = tmp_path_factory.getbasetemp() / "ensemble.json"
    ensemble.save(path)
    assert path.read_bytes() == ensemble.to_json().encode()
    assert PromptEnsemble.load(path) == ensemble


def test_the_text_is_one_to_read_and_compare():
    lines = pets().to_json().splitlines()
    assert lines[1:4] == [
        ' "format": "promptboost-ensemble",',
        ' "schema_version": 1,',
        ' "algorithm": "samme.r",',
    ]
    assert lines.count('     "a red cat": 3,') == 1
    assert pets().to_json().endswith("}\n")
    named = pets().rename_class("cat", "café 猫").to_json()
    assert '"café 猫"' in named


def test_the_same_ensemble_is_the_same_text_whatever_the_order_it_came_in():
    weights = {"b.png": 0.5, "a.png": 0.5}
    one = pets(sample_weights=weights, settings={"a": 1, "b": 2})
    other = pets(sample_weights=dict(sorted(weights.items())), settings={"b": 2, "a": 1})
    assert one.to_json() == other.to_json()
    rounds = [replace(r, banks=dict(reversed(r.banks.items()))) for r in one.rounds]
    assert replace(one, rounds=rounds).to_json() == one.to_json()


def test_ids_of_images_may_be_names_that_are_not_unicode(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    ensemble = pets(sample_weights={name: 1.0})
    ensemble.save(tmp_path / "a.json", sample_weights=True)
    assert PromptEnsemble.load(tmp_path / "a.json").sample_weights == {name: 1.0}


def test_the_weights_of_images_are_no_part_of_the_text(tmp_path):
    other = pets(sample_weights={"cat/1.png": 1.0})
    assert other == pets()
    assert other.fingerprint == pets().fingerprint
    assert "cat/1.png" not in pets().to_json()
    pets().save(tmp_path / "a.json")
    assert PromptEnsemble.load(tmp_path / "a.json").sample_weights == {}


@given(ensembles(prompts=TEXT))
@PATIENT
def test_with_the_weights_nothing_is_lost(ensemble):
    again = PromptEnsemble.from_json(ensemble.to_json(sample_weights=True))
    assert again == ensemble
    assert again.sample_weights == ensemble.sample_weights


@given(ensembles(prompts=TEXT))
@PATIENT
def test_banks_are_written_heaviest_first_and_equals_by_their_text(ensemble):
    for item in json.loads(ensemble.to_json())["rounds"]:
        for bank in item["banks"].values():
            assert list(bank.items()) == sorted(bank.items(), key=lambda pair: (-pair[1], pair[0]))


def test_what_is_known_is_enough():
    def forget(record):
        keep = {"format", "schema_version", "class_names", "rounds"}
        for name in set(record) - keep:
            del record[name]
        for item in record["rounds"]:
            del item["vote"], item["composer"], item["objective"], item["gap"]

    ensemble = PromptEnsemble.from_json(changed(forget))
    assert ensemble.rounds == pets().rounds
    assert ensemble.temperature == 1.0


def test_an_editor_may_add_a_byte_order_mark_and_its_line_ends(tmp_path):
    text = pets().to_json().replace("\n", "\r\n")
    (tmp_path / "a.json").write_bytes(text.encode("utf-8-sig"))
    assert PromptEnsemble.load(tmp_path / "a.json") == pets()


def test_every_cut_off_file_is_refused_as_such():
    text = pets().to_json()
    for end in range(1, len(text) - 1):
        with pytest.raises(FileFormatError, match="cut off"):
            PromptEnsemble.from_json(text[:end])
    with pytest.raises(FileFormatError, match="empty"):
        PromptEnsemble.from_json("")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "not a JSON object"),
        ("{'a': 1}", "not valid JSON .line 1, column 2"),
        ("[]", "not a promptboost ensemble"),
        ('{"a": 1}', "not a promptboost ensemble"),
        ('{"format": "other"}', "not a promptboost ensemble"),
        ('{"format": "promptboost-ensemble"}', "schema_version: must be a whole number"),
        ("[" * 100_000 + "]" * 100_000, "not JSON that can be read"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "'b' occurs twice"),
    ],
)
def test_refuses_what_is_not_an_ensemble(text, message):
    with pytest.raises(FileFormatError, match=message):
        PromptEnsemble.from_json(text)


@pytest.mark.parametrize("version", [0, -1, "1", True, 1.0, None])
def test_refuses_versions_that_cannot_be(version):
    with pytest.raises(FileFormatError, match="schema_version: must be a whole number"):
        PromptEnsemble.from_json(changed(lambda record: record.update(schema_version=version)))


def test_refuses_a_later_version_and_says_what_to_type():
    def later(record):
        record.update(schema_version=3, novelty={})

    with pytest.raises(FileFormatError, match=r"later promptboost.*pip install -U promptboost"):
        PromptEnsemble.from_json(changed(later))


def _set(*path, value):
    def change(record):
        for step in path[:-1]:
            record = record[step]
        record[path[-1]] = value

    return change


def _del(*path):
    def change(record):
        for step in path[:-1]:
            record = record[step]
        del record[path[-1]]

    return change


STRUCTURE = [
    (_del("class_names"), "class_names: is missing"),
    (_del("rounds"), "rounds: is missing"),
    (_del("rounds", 1, "banks"), r"rounds\[1\].banks: is missing"),
    (_del("rounds", 1, "error"), r"rounds\[1\].error: is missing"),
    (_set("surprise", value=1), "surprise: is not a field"),
    (_set("rounds", 2, "surprise", value=1), r"rounds\[2\].surprise: is not a field"),
    (_set("rounds", value=[]), "at least one round"),
    (_set("rounds", value={}), "rounds: must be a list"),
    (_set("rounds", 0, value=[]), r"rounds\[0\]: must be an object"),
    (_set("class_names", value="cat"), "class_names: must be a list"),
    (_set("class_names", value=["cat", "cat"]), "class_names: 'cat' occurs more than once"),
    (_set("class_names", 0, value=3), r"class_names\[0\]: must be a string"),
    (_set("algorithm", value="samme"), 'algorithm: is "samme".*cannot be read: fit again'),
    (_set("algorithm", value="samme.x"), "algorithm: must be"),
    (_set("algorithm", value=["samme"]), "algorithm: must be"),
    (_set("temperature", value=0), "temperature: must be positive"),
    (_set("temperature", value="1"), "temperature: must be a number, not text"),
    (_set("temperature", value=None), "temperature: must be a number, not null"),
    (_set("logit_scale", value=0), "logit_scale: must be positive"),
    (_set("logit_scale", value="1"), "logit_scale: must be a number, not text"),
    (_set("encoder_logit_scale", value=-1), "encoder_logit_scale: must be positive"),
    (_set("encoder_id", value=1), "encoder_id: must be a string"),
    (_set("settings", value=[]), "settings: must be an object"),
    (_set("settings", "a", value=[1]), r'settings\["a"\]'),
    (_set("versions", "a", value=1), r'versions\["a"\]'),
    (_set("history", value="x"), "history: must be a list"),
    (_set("history", value=[1]), r"history\[0\]: must be a string"),
    (_set("sample_weights", value=[]), "sample_weights: must be an object"),
    (_set("sample_weights", "a", value="1"), r'sample_weights\["a"\]: must be a number'),
    (_set("rounds", 1, "vote", value=-1), r"rounds\[1\].vote: must be 1, not -1"),
    (_set("rounds", 1, "vote", value=2.0), r"rounds\[1\].vote: must be 1, not 2.0"),
    (_set("rounds", 1, "vote", value=True), r"rounds\[1\].vote: must be 1, not True"),
    (_set("rounds", 1, "template", value=""), r"rounds\[1\].template: is blank"),
    (_set("rounds", 1, "composer", value=None), r"rounds\[1\].composer: must be a string"),
    (_set("rounds", 1, "error", value="0.1"), r"rounds\[1\].error: must be a number"),
    (_set("rounds", 1, "gap", value="0.1"), r"rounds\[1\].gap: must be a number"),
    (_set("rounds", 1, "objective", value=True), r"rounds\[1\].objective: must be a number"),
    (_set("rounds", 1, "banks", value=[]), r"rounds\[1\].banks: must be an object"),
    (_set("rounds", 1, "banks", "cat", value=["a"]), r'rounds\[1\].banks\["cat"\]'),
    (_set("rounds", 1, "banks", "cat", value={}), r'rounds\[1\].banks\["cat"\]: is empty'),
    (_set("rounds", 1, "banks", "cat", value={"": 1}), r'rounds\[1\].banks\["cat"\]: is blank'),
    (_set("rounds", 1, "banks", "cat", "x", value=0), r'banks\["cat"\]\["x"\].*whole number'),
    (_set("rounds", 1, "banks", "cat", "x", value=1.5), r'banks\["cat"\]\["x"\].*whole number'),
    (_set("rounds", 1, "banks", "cat", "x", value=True), r'banks\["cat"\]\["x"\].*whole number'),
    (_set("rounds", 1, "banks", "cat", "x", value="2"), r'banks\["cat"\]\["x"\].*whole number'),
    (_del("rounds", 1, "banks", "dog"), r"rounds\[1\].banks: has no bank for 'dog'"),
]

BEYOND_STRUCTURE = [
    (_set("rounds", 1, "banks", "cow", value={"a": 1}), "'cow', not in class_names"),
    (_set("class_names", value=["cat", "dog", "cow"]), "no bank for 'cow'"),
    (_set("rounds", 1, "banks", "cat", "x", value=2.0), "whole number"),
    (_set("rounds", 1, "banks", "cat", "\ud800", value=1), "not valid Unicode"),
]


@pytest.mark.parametrize(("change", "message"), STRUCTURE + BEYOND_STRUCTURE)
def test_refuses_contents_that_cannot_be(change, message):
    with pytest.raises(FileFormatError, match=message):
        PromptEnsemble.from_json(changed(change))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
@pytest.mark.parametrize("field", ["temperature", "sample"])
def test_refuses_numbers_that_are_not_finite(number, field):
    marks = {"temperature": '"temperature": 1.0', "sample": '"cat/1.png": 0.25'}
    text = pets().to_json(sample_weights=True)
    assert marks[field] in text
    key = marks[field].split(":")[0]
    with pytest.raises(FileFormatError, match="number"):
        PromptEnsemble.from_json(text.replace(marks[field], f"{key}: {number}"))


def test_errors_of_files_name_the_file(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(FileFormatError, match=r"broken\.json: cut off"):
        PromptEnsemble.load(path)
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(FileFormatError, match=r"broken\.json: not UTF-8"):
        PromptEnsemble.load(path)
    with pytest.raises(FileNotFoundError):
        PromptEnsemble.load(tmp_path / "missing.json")
