"""Hostile or broken servers, and a protected key."""

import gzip
import json
import traceback
import tracemalloc

import pytest

from promptboost.llm.client import AskError, BudgetError
from promptboost.llm.generation import Budget, ask_all
from promptboost.llm.replies import ReplyCache
from tests.llm.llm_server import Act, Server
from tests.llm.test_client import NOW, ask, ask_once, both, settings_of

KEY = "sk-abcdefgh-0123456789"


@both
def test_invalid_token_counts_are_ignored(provider):
    reply = ask_once(Act("x" * 40, usage=(-1, 2.5)), provider)
    assert (reply.input_tokens, reply.output_tokens) == (7, 10)


@both
def test_a_stream_is_refused_while_it_is_read(provider):
    sent = []

    def stream():
        while len(sent) < 2000:
            sent.append(None)
            yield b" " * 2**16

    with Server(lambda *_: Act(raw=stream())) as server:
        with pytest.raises(AskError, match="reply is larger than 1,048,576 bytes"):
            ask(server, provider, "?")
        assert len(server.requests) == 1
    assert len(sent) < 2000


@both
def test_the_largest_reply(provider):
    assert ask_once(Act("x" * 1_048_000), provider).text == "x" * 1_048_000


@both
def test_a_compressed_reply_is_never_decompressed(provider):
    bomb = gzip.compress(bytes(2**26))
    act = Act(raw=bomb, headers={"content-encoding": "gzip"})
    with Server(lambda *_: act) as server:
        tracemalloc.start()
        try:
            with pytest.raises(AskError, match="reply is compressed"):
                ask(server, provider, "?")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert {"accept-encoding": "identity"}.items() <= server.headers[0].items()
    assert peak < 2**25


@both
def test_an_error_with_a_large_body_keeps_its_status(provider):
    bodies = Act(raw=b" " * 2**21), Act(raw=b"?", headers={"content-encoding": "gzip"})
    for act in bodies:
        act.status = 400
        with pytest.raises(AskError, match="answered 400"):
            ask_once(act, provider)


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
        answers = ask_all(settings, ["?"], cache, notify=messages.append)
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


@both
def test_retries_count_as_requests(provider):
    budget = Budget(max_requests=3)
    with Server(lambda *_: Act(status=500, headers=NOW)) as server:
        with pytest.raises(BudgetError, match="3 requests"):
            ask(server, provider, "?", budget.count_request, max_retries=9)
        assert len(server.requests) == 3
