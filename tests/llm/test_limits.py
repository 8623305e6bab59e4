"""Hostile or broken servers: replies are limited in size, and the key stays where it is."""

import json
import traceback
import zlib

import pytest

from promptboost.llm.client import MAX_REPLY_BYTES, AskError, BudgetError
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import Budget, RequestPolicy, ask_all
from tests.llm.llm_server import Act, Server
from tests.llm.test_client import NOW, ask, ask_once, both, settings_of
from tests.memory import run_measured

KEY = "sk-abcdefgh-0123456789"

# A process of its own, to measure its memory.
ASKING = """
import sys
from promptboost.llm.client import ModelSettings
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import ask_all
provider, url, cache, *bombs = sys.argv[1:]
settings = ModelSettings("m", provider=provider, base_url=url, timeout=60.0, max_retries=0)
for bomb in bombs:
    answers = ask_all(settings, [f"{bomb} {i}" for i in range(8)], ReplyCache(cache))
    assert not answers.replies
    print(next(iter(answers.failed.values())))
"""


def gzip_of(size):
    packer = zlib.compressobj(9, wbits=31)
    chunks = [packer.compress(bytes(2**20)) for _ in range(size // 2**20)]
    return b"".join([*chunks, packer.flush()])


BOMBS = {
    "bytes": (lambda: b'"' + b"x" * (100 * 2**20) + b'"', {}),
    "gzip": (lambda: gzip_of(500 * 2**20), {"content-encoding": "gzip"}),
    "error": (lambda: gzip_of(500 * 2**20), {"content-encoding": "gzip"}),
    "nested": (lambda: b"[" * 900_000, {}),
}


@both
def test_bombs_take_little_memory_and_are_not_cached(provider, tmp_path):
    acts = {
        bomb: Act(raw=make(), headers=headers, status=500 if bomb == "error" else 200)
        for bomb, (make, headers) in BOMBS.items()
    }
    cache = tmp_path / "replies.jsonl"
    with Server(lambda question, _: acts[question.split()[0]]) as server:
        address = settings_of(server, provider).base_url
        reasons, megabytes = run_measured(ASKING, provider, address, cache, *BOMBS)
    assert megabytes < 300
    assert len(reasons) == len(BOMBS)
    assert all("server" in reason for reason in reasons)
    assert not cache.exists()


@both
def test_an_oversize_reply_is_refused_and_not_requested_again(provider):
    act = Act("x" * MAX_REPLY_BYTES, headers=NOW)
    with Server(lambda *_: act) as server:
        with pytest.raises(AskError, match="more than 1,048,576 bytes"):
            ask(server, provider, "?", max_retries=3)
        assert len(server.requests) == 1


@both
def test_a_compressed_reply_is_refused(provider):
    with Server(lambda *_: Act("Round eyes.", headers={"content-encoding": "gzip"})) as server:
        with pytest.raises(AskError, match="compressed"):
            ask(server, provider, "?")
        assert server.headers[0]["accept-encoding"] == "identity"


@both
def test_invalid_token_counts_are_ignored(provider):
    reply = ask_once(Act("x" * 40, usage=(10**90, -1)), provider)
    assert (reply.input_tokens, reply.output_tokens) == (7, 10)


@both
def test_redirects_are_not_followed(provider, monkeypatch):
    # The libraries remove one header on redirects to other servers; the key may be in another.
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", KEY)
    with Server(lambda *_: Act()) as other:
        for location in (f"{other.url}/messages", f"https://{KEY}.example/"):
            act = Act(status=307, headers={"location": location})
            with pytest.raises(AskError, match=r"redirects to .* --base-url") as raised:
                ask_once(act, provider)
            assert KEY not in str(raised.value)
    assert not other.requests


@both
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
def test_a_key_sent_back_by_the_server_is_removed(provider, status, monkeypatch, tmp_path):
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", KEY)
    text = "a" * 120 + f" the key {KEY} is {KEY}"
    raw = None if status == 200 else json.dumps({"error": {"message": text}}).encode()
    act = Act(f"An owl. {text}", status=status, raw=raw, headers=NOW)
    cache = ReplyCache(tmp_path / "replies.jsonl")
    messages = []
    with Server(lambda *_: act) as server:
        settings = settings_of(server, provider, max_retries=1)
        answers = ask_all(settings, ["?"], cache, RequestPolicy(notify=messages.append))
        cached = cache.path.read_text() if cache.path.exists() else ""
        assert "[API key]" in f"{answers}"
        assert "sk-abc" not in f"{answers} {messages} {cached}"
        if status != 200:
            with pytest.raises(AskError) as error:
                ask(server, provider, "?")
            assert "sk-abc" not in "".join(traceback.format_exception(error.value))


def test_a_word_in_place_of_a_key_stays_in_the_text(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "ollama")
    assert ask_once(Act("An ollama."), "openai").text == "An ollama."


def test_a_used_up_budget_names_an_unreachable_server(tmp_path):
    with Server(lambda *_: Act()) as server:
        settings = settings_of(server, "openai", max_retries=2)
    policy = RequestPolicy(Budget(max_requests=2))
    answers = ask_all(settings, ["a", "b"], ReplyCache(tmp_path / "r.jsonl"), policy)
    assert answers.exhausted
    assert "2 requests is used up; the last request failed: " in answers.stopped


@both
def test_retries_count_as_requests(provider):
    budget = Budget(max_requests=3)
    with Server(lambda *_: Act(status=500, headers=NOW)) as server:
        with pytest.raises(BudgetError, match="3 requests"):
            ask(server, provider, "?", budget.count_request, max_retries=9)
        assert len(server.requests) == 3
