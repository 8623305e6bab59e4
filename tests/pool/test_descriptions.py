import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError, PoolError
from promptboost.pool import build_pool, read_pool
from promptboost.pool.pool import sentences_by_class
from promptboost.pool.text import is_visible, without_zero_width
from tests.pool.reader_tools import read_sentences

words = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=8)
words = words.filter(lambda word: is_visible(word) and without_zero_width(word) == word)
sentences = st.lists(words, min_size=1, max_size=4).map(" ".join)
described = st.dictionaries(sentences, st.lists(sentences, min_size=1, max_size=4), min_size=1)


@given(described, st.booleans())
def test_json_and_json_lines_are_read_as_written(tmp_path_factory, descriptions, ascii_only):
    folder = tmp_path_factory.mktemp("read")
    whole, lines = folder / "mine.json", folder / "mine.jsonl"
    whole.write_text(json.dumps(descriptions, ensure_ascii=ascii_only), encoding="utf-8")
    lines.write_text(
        "\n".join(
            json.dumps({"class": name, "text": text, "note": 1}, ensure_ascii=ascii_only)
            for name, texts in descriptions.items()
            for text in texts
        ),
        encoding="utf-8",
    )
    for path in (whole, lines):
        found = read_sentences(str(path))
        assert found == descriptions
        assert list(found) == list(descriptions)


def test_byte_order_mark_windows_line_ends_and_blank_lines_are_fine(tmp_path):
    path = tmp_path / "mine.JSONL"
    line = b'{"class": "owl", "text": " round\\n eyes"}'
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line + b"\r\n")
    assert read_sentences(path) == {"owl": ["round eyes", "round eyes"]}


def test_a_line_ends_only_where_the_file_says_so(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"class": "owl", "text": "round\u2028eyes"}', encoding="utf-8")
    assert read_sentences(path) == {"owl": ["round eyes"]}


def test_an_empty_list_is_kept_for_the_caller_to_report(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"owl": [], "bat": ["leathery wings"]}')
    assert read_sentences(path) == {"owl": [], "bat": ["leathery wings"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"owl": ["round ey', "cut off or not JSON.*line 1"),
        ("a.json", b"", "cut off or not JSON"),
        ("a.json", b'{"owl": ["\xe9t\xe9"]}', "not UTF-8 .byte 10."),
        ("a.json", b"[1]", "holds a list"),
        ("a.json", b"{}", "holds no classes"),
        ("a.json", b'{"owl": "round eyes"}', "'owl' needs a list of sentences, not a str"),
        ("a.json", b'{"owl": 3}', "'owl' needs a list of sentences, not an int"),
        ("a.json", b'{"owl": ["fine", 3]}', "sentence 2 of the class 'owl' must be a string"),
        ("a.json", b'{"o\\u0000wl": ["x"]}', r"a class name.*U\+0000"),
        ("a.json", b'{"owl": ["x"], "owl": ["y"]}', "'owl' occurs twice"),
        ("a.json", b'{"an owl": ["x"], "an  owl": ["y"]}', "'an owl' occurs twice"),
        ("a.json", b"[" * 200_000, "cannot be read as JSON|cut off"),
        ("a.json", b'{"owl": [' + b"9" * 5000 + b"]}", "cannot be read as JSON"),
        ("a.jsonl", b'{"class": "owl", "text": "x"}\n{"class"', "line 2: not JSON"),
        ("a.jsonl", b'{"class": "owl"}', "line 1 has no sentence"),
        ("a.jsonl", b'["owl", "x"]', "line 1: not an object"),
        (
            "a.jsonl",
            b'{"class": "owl", "text": 1}',
            "line 1: sentence 1 of .* must be a string",
        ),
        ("a.jsonl", b'{"class": "", "text": "x"}', "line 1: a class name is empty"),
        ("a.jsonl", b"\n", "holds no classes"),
    ],
)
def test_bad_files_are_named_with_the_reason(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message) as raised:
        read_sentences(path)
    assert name in str(raised.value)
    assert len(str(raised.value)) < 500


def test_a_file_cut_anywhere_is_an_error_and_nothing_else(tmp_path):
    whole = json.dumps({"owl": ["round eyes"], "été": ["clear \U0001f989"]}, ensure_ascii=False)
    path = tmp_path / "cut.json"
    content = whole.encode()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(FileFormatError, match=r"cut\.json"):
            read_sentences(path)


def test_a_path_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(PoolError, match=r"cannot read the descriptions .*absent"):
        read_sentences(tmp_path / "absent.json")


def test_names_meet_whatever_their_case_underscores_and_hyphens():
    found, unused = sentences_by_class(
        ["Hot_Dog", "t-shirt", "owl", "bat", "cat"],
        {"hot dog": ["bun"], "T Shirt": ["sleeves"], "OWL": ["eyes"], "bat": [], "dogs": ["fur"]},
    )
    assert found == {"Hot_Dog": ["bun"], "t-shirt": ["sleeves"], "owl": ["eyes"]}
    assert unused == ("dogs",)


def test_the_same_spelling_wins_over_a_similar_one():
    found, unused = sentences_by_class(["owl"], {"Owl": ["wrong"], "owl": ["right"]})
    assert found == {"owl": ["right"]}
    assert unused == ("Owl",)


def test_nothing_is_guessed():
    with pytest.raises(PoolError, match=r"'Owl' or 'OWL' could be 'owl' .*ambiguous; rename one"):
        sentences_by_class(["owl"], {"Owl": ["a"], "OWL": ["b"]})
    with pytest.raises(PoolError, match="'owl' could be 'Owl' or 'OWL'"):
        sentences_by_class(["Owl", "OWL"], {"owl": ["a"]})


AWKWARD = {
    "2012 Audi R8": "Audi R8 2012",
    "hot_dog": "HotDog",
    "F-16A/B": "F-16ASLASHB",
    "indoor abbey": "abbey (indoor)",
    "yo-yo": "YoYo",
    "daisies": "daisy",
    "Straße": "STRASSE",
    "t-shirt": "T shirt",
    "owl": "Owl",
}


def test_python_and_a_file_of_the_same_sentences_make_the_same_pool(tmp_path):
    descriptions = {name: [f"It is {name}.", "It is seen."] for name in AWKWARD.values()}
    descriptions["an elk"] = ["It has horns."]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(descriptions, ensure_ascii=False), encoding="utf-8")
    names = [*AWKWARD, "unheard of"]
    from_python = build_pool(names, descriptions=descriptions, concatenate="one")
    from_file = read_pool(path, names, concatenate="one")
    assert from_python == from_file
    assert from_python.texts("hot_dog")[16:18] == ("It is HotDog.", "It is seen.")
    assert from_python.missing == from_file.missing == ("unheard of",)
    assert from_python.unused == from_file.unused == ("an elk",)


def test_names_that_fit_two_ways_are_refused_in_python_and_from_a_file(tmp_path):
    descriptions = {"Hot_Dog": ["a bun"], "HOT-DOG": ["a sausage"]}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(descriptions))
    for make in (
        lambda: build_pool(["hot dog"], descriptions=descriptions),
        lambda: read_pool(path, ["hot dog"]),
    ):
        with pytest.raises(PoolError, match="'Hot_Dog' or 'HOT-DOG' could be 'hot dog'"):
            make()
