import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import FileFormatError, PoolError
from promptboost.llm.client import ModelSettings, Reply
from promptboost.llm.replies import ReplyCache, reply_key

SETTINGS = ModelSettings("a-model", temperature=0.7)


def test_everything_about_a_reply_is_kept(tmp_path):
    cache = ReplyCache(tmp_path / "replies.jsonl")
    cache.add(SETTINGS, "What?", Reply("Sö.\n\x1b\ud800", 3, 2, cut_off=True))
    [line] = cache.path.read_text("ascii").splitlines()
    record = json.loads(line)
    assert record["question"] == "What?"
    assert record["model"] == "a-model"
    assert record["parameters"] == {"provider": "openai", "reply_tokens": 2048, "temperature": 0.7}
    assert record["date"].endswith("+00:00")
    assert record["key"] == reply_key(SETTINGS, "What?")
    assert ReplyCache(cache.path).find(SETTINGS, "What?") == Reply("Sö.\n\x1b\ud800", 3, 2, True)


def test_another_model_parameter_or_question_is_another_reply(tmp_path):
    cache = ReplyCache(tmp_path / "replies.jsonl")
    cache.add(SETTINGS, "What?", Reply("So.", 1, 1))
    for other in (
        ModelSettings("b-model", temperature=0.7),
        ModelSettings("a-model", temperature=0.8),
        ModelSettings("a-model"),
        ModelSettings("a-model", temperature=0.7, provider="anthropic"),
        ModelSettings("a-model", temperature=0.7, reply_tokens=9),
    ):
        assert cache.find(other, "What?") is None
    assert cache.find(SETTINGS, "What? ") is None
    assert cache.find(SETTINGS, "What?", ["data:image/jpeg;base64,"]) is None
    elsewhere = ModelSettings("a-model", temperature=0.7, base_url="http://localhost", timeout=1.0)
    assert cache.find(elsewhere, "What?") is not None


@given(cut=st.integers(min_value=1, max_value=250))
def test_a_torn_last_line_costs_that_reply_only(tmp_path_factory, cut):
    cache = ReplyCache(tmp_path_factory.mktemp("torn") / "replies.jsonl")
    for question in ("one", "two"):
        cache.add(SETTINGS, question, Reply(question, 1, 1))
    whole = cache.path.read_bytes()
    second = whole.index(b"\n") + 1
    cut = min(cut, len(whole) - second)
    cache.path.write_bytes(whole[:-cut])
    torn = ReplyCache(cache.path)
    assert torn.find(SETTINGS, "one") == Reply("one", 1, 1)
    # Without its line end, and with nothing left, the second line is sound.
    lost = cut > 1
    assert (torn.find(SETTINGS, "two") is None) == lost
    assert torn.damaged == (lost and cut < len(whole) - second)
    torn.add(SETTINGS, "three", Reply("three", 1, 1))
    again = ReplyCache(cache.path)
    assert again.find(SETTINGS, "three") == Reply("three", 1, 1)
    assert len(again) == 2 + (not lost)


def test_threads_do_not_mix_their_lines(tmp_path):
    cache = ReplyCache(tmp_path / "replies.jsonl")
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda i: cache.add(SETTINGS, f"{i}", Reply("word " * 2000 + f"{i}", 1, 1)),
                range(64),
            )
        )
    again = ReplyCache(cache.path)
    assert (len(again), again.damaged) == (64, 0)
    assert again.find(SETTINGS, "17").text.endswith(" 17")


def test_another_kind_of_file_is_not_written_to(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text('{"class": "owl", "text": "round eyes"}\n' * 2)
    with pytest.raises(FileFormatError, match="not a file of replies"):
        ReplyCache(path)
    with pytest.raises(PoolError, match="cannot read"):
        ReplyCache(tmp_path)


def test_nor_is_one_of_a_single_line(tmp_path):
    path = tmp_path / "sentences.json"
    path.write_text('{"owl": ["round eyes"]}')
    with pytest.raises(FileFormatError, match="not a file of replies"):
        ReplyCache(path)


@given(kept=st.integers(min_value=0, max_value=150))
def test_a_torn_first_line_is_ours_all_the_same(tmp_path_factory, kept):
    cache = ReplyCache(tmp_path_factory.mktemp("torn") / "replies.jsonl")
    cache.add(SETTINGS, "one", Reply("one", 1, 1))
    cache.path.write_bytes(cache.path.read_bytes()[:kept])
    torn = ReplyCache(cache.path)
    assert (len(torn), torn.damaged) == (0, kept > 0)
    torn.add(SETTINGS, "two", Reply("two", 1, 1))
    assert ReplyCache(cache.path).find(SETTINGS, "two") == Reply("two", 1, 1)


@pytest.mark.parametrize(
    "line",
    ["[]", "3", '{"key": 1}', "[" * 100_000, '{"key": "k", "reply": 5}', "\x00", '{"key": "k"'],
)
def test_odd_lines_are_skipped(tmp_path, line):
    cache = ReplyCache(tmp_path / "replies.jsonl")
    cache.add(SETTINGS, "What?", Reply("So.", 1, 1))
    with cache.path.open("a") as stream:
        stream.write(line + "\n")
    again = ReplyCache(cache.path)
    assert (len(again), again.damaged) == (1, 1)
