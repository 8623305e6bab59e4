import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError, LookAlikeWarning, PoolError
from promptboost.pool import build_pool, read_pool, save_pool
from promptboost.pool.io import load_pool
from promptboost.pool.text import (
    MAX_CHARACTERS,
    check_class_names,
    clean,
    control_character,
    is_visible,
    look_alike_word,
    name_key,
    singular,
    text_key,
    without_zero_width,
)


@given(st.text())
def test_clean_text_is_safe_and_cleaning_twice_changes_nothing(text):
    folded = without_zero_width(" ".join(text.split()))
    if not is_visible(folded) or control_character(folded):
        with pytest.raises(PoolError, match="here"):
            clean(text, where="here")
    else:
        assert clean(text, where="here") == clean(folded, where="here") == folded


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\x00b", "U+0000"),
        ("\x1b]0;title\x07", "U+001B"),
        ("a\x7f", "U+007F"),
        ("a\x9bm", "U+009B"),
        ("owl \u202egnp.exe", "U+202E"),
        ("owl \u2066x\u2069", "U+2066"),
        ("half \ud800 pair", "U+D800"),
    ],
)
def test_control_characters_are_refused(text, code):
    with pytest.raises(PoolError, match=rf"sentence 3.*U\+{code[2:]}") as raised:
        clean(text, where="sentence 3")
    # The message itself goes to a terminal.
    assert control_character(str(raised.value)) is None


def test_white_space_is_folded_and_other_scripts_pass():
    assert clean("\ta\r\nred\u2028 owl\u00a0", where="x") == "a red owl"
    for text in ("chouette effraie à l'œil noir", "鳥の写真", "می\u200cخواهم", "🦉"):
        assert clean(text, where="x") == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\u200b red\ufeff owl\u00ad", "a red owl"),
        ("an\u200d owl \u2060 at night", "an owl at night"),
        ("owl\U000e0041\U000e0042", "owl"),  # tags: ASCII that nobody sees
        ("owl\ufe0f é\ufe00", "owl é"),  # variants that European letters do not have
        ("👩\u200d🌾 ❤\ufe0f", "👩\u200d🌾 ❤\ufe0f"),
    ],
)
def test_characters_without_width_are_removed(text, cleaned):
    assert clean(text, where="x") == cleaned
    assert text_key(text) == text_key(cleaned)


@pytest.mark.parametrize(
    "text", ["\u200b", "\u2060 \ufeff", "\u3164", "\u2800\u2800", "\u0301", "\ufe0f", "\u200d"]
)
def test_invisible_sentences_and_names_are_refused(text):
    with pytest.raises(PoolError, match="sentence 1 has only invisible characters"):
        clean(text, where="sentence 1")
    with pytest.raises(PoolError, match="class name 2"):
        check_class_names(["owl", text])
    with pytest.raises(PoolError, match="same name"):
        check_class_names(["owl", "o\u200bwl"])


@pytest.mark.parametrize(
    "pair", [("glacier", "gla\u0441ier"), ("cop", "\u0441\u043e\u0440"), ("a", "ａ")]
)
def test_names_that_look_alike_are_warned_of(pair):
    with pytest.warns(LookAlikeWarning, match="letters that look alike"):
        assert check_class_names([*pair, "fog"]) == (*pair, "fog")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a gla\u0441ier at dawn", "gla\u0441ier"),
        ("\u0430 red owl", "\u0430"),
        ("a café", None),
        ("красная сова", None),
        ("α-helix in a dish", "α-helix"),
        ("鳥の写真", None),
    ],
)
def test_words_with_letters_of_other_scripts_are_found(text, word):
    assert look_alike_word(text) == word


@pytest.mark.parametrize("text", ["", "  \n", None, 3, b"owl", ["owl"]])
def test_what_is_not_a_sentence_is_refused(text):
    with pytest.raises(PoolError, match="sentence 1"):
        clean(text, where="sentence 1")


def test_long_sentences_are_refused_wherever_they_come_from(tmp_path):
    long, names = "red " * 25_000, ["owl", "bat"]
    assert clean("a" * MAX_CHARACTERS, where="sentence 1")
    with pytest.raises(PoolError, match=r"sentence 1 .*has 99,999 characters; shorten") as raised:
        build_pool(names, descriptions={"owl": [long]})
    assert len(str(raised.value)) < 300
    with pytest.raises(PoolError, match="class name 2 has 99,999 characters"):
        build_pool(["owl", long])
    (tmp_path / "mine.json").write_text(json.dumps({"owl": [long, "round eyes"], "bat": ["ears"]}))
    pool = read_pool(tmp_path / "mine.json", names)
    assert max(len(text) for name in names for text in pool.texts(name)) < 200
    save_pool(pool, tmp_path / "pool.jsonl")
    saved = (tmp_path / "pool.jsonl").read_text()
    (tmp_path / "pool.jsonl").write_text(saved.replace("round eyes", long))
    with pytest.raises(FileFormatError, match=r"has 100,000 characters in .text.; shorten"):
        load_pool(tmp_path / "pool.jsonl")


def test_messages_stay_short():
    with pytest.raises(PoolError) as raised:
        clean("a" * 100_000 + "\x00", where="sentence 1")
    assert len(str(raised.value)) < 200


@given(st.text())
def test_keys_ignore_case_and_space(text):
    assert text_key(f"  {text.upper().lower()}\t") == text_key(text.upper().lower())
    assert name_key(text.replace(" ", "_")) == name_key(text.replace(" ", "-")) == name_key(text)


def test_keys_join_the_two_ways_to_write_an_accent():
    assert text_key("caf\u00e9") == text_key("cafe\u0301")
    assert text_key("an owl") != text_key("a nowl")


@pytest.mark.parametrize("part", ["k", "k ", "k (", "(k"])
def test_the_key_of_a_very_long_name_takes_no_time(part):
    start = time.process_time()
    singular(part * 100_000)
    assert time.process_time() - start < 5
