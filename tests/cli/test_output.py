import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.cli.output import Output, csv_line, facts, plain, table, typed


@given(st.text(st.characters()))
def test_nothing_a_terminal_obeys_is_left(text):
    shown = plain(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert len(shown) == len(text)
    shown.encode()


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("-2+3", "'-2+3"),
        ("+cat", "'+cat"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("-0.5", "-0.5"),
        ("+1e3", "+1e3"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_cell_is_no_formula_and_a_number_stays_one(capsys, cell, written):
    csv_line([cell, "end"])
    assert capsys.readouterr().out == f"{written},end\n"


def test_wide_characters_keep_columns_in_line():
    lines = table(["class", "n"], [["犬", "1"], ["cat", "22"]]).splitlines()
    assert lines[1] == "犬      1"
    assert lines[2] == "cat    22"


def test_a_wide_table_wraps_its_last_column_on_a_terminal(monkeypatch):
    rows = [["main", "2", "methods made of text on eleven data sets"]]
    parts = ["name", "n", "title"], rows, (0, 2)
    whole = ["name  n  title", "main  2  methods made of text on eleven data sets"]
    assert table(*parts).splitlines() == whole  # in a file
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert table(*parts).splitlines() == [
        "name  n  title",
        "main  2  methods made of text on eleven",
        "         data sets",
    ]
    monkeypatch.setenv("COLUMNS", "32")  # too little beside the others
    assert table(*parts).splitlines() == [
        "name  n  title",
        "main  2",
        "    methods made of text on",
        "    eleven data sets",
    ]
    monkeypatch.setenv("COLUMNS", "20")  # too little to read in
    assert table(*parts).splitlines() == whole


def test_quiet_and_json(capsys):
    Output(quiet=True).note("by the way")
    Output(json=True).result({"a": 1}, "text")
    Output().result({"a": 1}, "text")
    caught = capsys.readouterr()
    assert (caught.out, caught.err) == ('{"a": 1}\ntext\n', "")


def test_facts_go_on_below_what_they_say_on_a_terminal(monkeypatch):
    rows = [("words", "34.3 % of what decides an answer"), ("prompts", "12 at most")]
    whole = ["words        34.3 % of what decides an answer", "prompts      12 at most"]
    assert facts(rows).splitlines() == whole
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    below = ["words        34.3 % of what decides an", "             answer", whole[1]]
    assert facts(rows).splitlines() == below


def test_a_command_that_is_told_can_be_pasted(monkeypatch):
    assert typed("predict", "my run") == "promptboost predict 'my run'"
    monkeypatch.setattr("sys.argv", ["/somewhere/promptboost/__main__.py"])
    monkeypatch.setattr("sys.executable", "/somewhere/python")
    assert typed("edit", "run") == "/somewhere/python -m promptboost edit run"
