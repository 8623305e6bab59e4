import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import PoolError
from promptboost.pool.text import clean, control_character, name_key, singular, text_key


@given(st.text())
def test_clean_text_is_safe_and_cleaning_twice_changes_nothing(text):
    folded = " ".join(text.split())
    if not folded or control_character(folded):
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


@pytest.mark.parametrize("text", ["", "  \n", None, 3, b"owl", ["owl"]])
def test_what_is_not_a_sentence_is_refused(text):
    with pytest.raises(PoolError, match="sentence 1"):
        clean(text, where="sentence 1")


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
