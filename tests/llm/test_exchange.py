"""A server that means harm, or is broken: what it sends is bounded in bytes, time and shape."""

import gzip
import json
import socket
import threading
import time
import zlib
from contextlib import contextmanager

import pytest

from promptboost.llm.client import AskError, ModelSettings, TemporaryError
from promptboost.llm.exchange import MAX_DEPTH, MAX_REPLY_BYTES, _problem
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import Budget, Manner, Retries, ask_all
from tests.llm.llm_server import Act, Server
from tests.llm.test_client import ask, asked, both
from tests.memory import run_measured

KEY = "sk-abcdefgh-0123456789"

# A process of its own, so that its memory is that of the replies and of nothing before.
ASKING = """
import sys
from promptboost.llm.client import ModelSettings
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import Manner, Retries, ask_all
provider, url, cache, *bombs = sys.argv[1:]
settings = ModelSettings("m", provider=provider, base_url=url, timeout=60.0)
for bomb in bombs:
    questions = [f"{bomb} {i}" for i in range(8)]
    answers = ask_all(settings, questions, ReplyCache(cache), Manner(retries=Retries(1)))
    assert not answers.replies
    print(next(iter(answers.failed.values())))
"""


def gzip_of(size):
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(bytes(2**20)) for _ in range(size // 2**20)]
    return b"".join([*parts, packer.flush()])


def choice_of(content):
    message = b'{"role": "assistant", "content": ' + content + b"}"
    return b'{"choices": [{"message": ' + message + b"}], " + b'"content": [' + content + b"]}"


BOMBS = {
    "bytes": (lambda: b'"' + b"x" * (100 * 2**20) + b'"', {}),
    "gzip": (lambda: gzip_of(500 * 2**20), {"content-encoding": "gzip"}),
    "error": (lambda: gzip_of(500 * 2**20), {"content-encoding": "gzip"}),
    "lists": (lambda: choice_of(b"[" + b"[]," * 300_000 + b"0]"), {}),
    "objects": (lambda: choice_of(b"[" + b'{"a":{}},' * 100_000 + b"0]"), {}),
    "names": (lambda: b"{%s}" % b",".join(b'"%x":1.5' % i for i in range(100_000)), {}),
}


@both
def test_bombs_take_little_memory_and_stay_out_of_the_cache(provider, tmp_path):
    acts = {
        bomb: Act(raw=make(), headers=headers, status=500 if bomb == "error" else 200)
        for bomb, (make, headers) in BOMBS.items()
    }
    cache = tmp_path / "replies.jsonl"
    with Server(lambda question, _: acts[question.split()[0]]) as server:
        address = server.url if provider == "openai" else server.root
        reasons, megabytes = run_measured(ASKING, provider, address, cache, *BOMBS)
    assert megabytes < 300
    assert len(reasons) == len(BOMBS)
    assert all("server" in reason for reason in reasons)
    assert not cache.exists()


@contextmanager
def trickle(head, piece):
    """A server that sends its head at once and then a piece every tenth of a second, for ever."""
    listening = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def serve():
        while not done.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    def drip(connection):
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(head)
                while not done.wait(0.1):
                    connection.sendall(piece)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        done.set()
        listening.close()


@both
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}", b" "),
        (b"HTTP/1.1 200 OK\r\nx-slow: ", b"a"),
        (b"", b""),
    ],
)
def test_a_reply_that_trickles_in_is_out_of_time(provider, head, piece):
    from promptboost.llm.client import open_model

    with trickle(head, piece) as root:
        address = f"{root}/v1" if provider == "openai" else root
        settings = ModelSettings("m", provider=provider, base_url=address, timeout=0.7)
        start = time.monotonic()
        with open_model(settings) as model, pytest.raises(TemporaryError, match="in time"):
            model.ask("?")
        assert time.monotonic() - start < 3


@both
@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_a_small_reply_may_be_packed_unasked(provider, packing):
    with Server(lambda *_: Act("Round eyes.")) as server:
        assert ask(server, provider, "?").text == "Round eyes."
        assert server.headers[0]["accept-encoding"] == "identity"
    body = json.dumps(
        {
            "choices": [{"message": {"content": "Round eyes."}}],
            "content": [{"type": "text", "text": "Round eyes."}],
        }
    ).encode()
    packed = gzip.compress(body) if packing == "gzip" else zlib.compress(body)
    act = Act(raw=packed, headers={"content-encoding": packing})
    if provider == "openai":
        assert asked(act, provider).text == "Round eyes."
    with pytest.raises(AskError, match="packed its reply with 'br'"):
        asked(Act(raw=body, headers={"content-encoding": "br"}), provider)
    with pytest.raises(AskError, match="cannot be unpacked"):
        asked(Act(raw=b"no such thing", headers={"content-encoding": packing}), provider)


@both
@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "lists"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deep"),
        (b"9" * 5_000, "digits"),
        (b'"' + b"x" * MAX_REPLY_BYTES + b'"', "bytes"),
    ],
)
def test_what_would_grow_when_it_is_read(provider, inner, why):
    with pytest.raises(AskError, match=why):
        asked(Act(raw=choice_of(inner)), provider)


def test_brackets_and_digits_in_a_text_are_text():
    text = '[{\\"[' * 50_000 + "9" * 500
    assert _problem(json.dumps({"choices": [{"message": {"content": text}}]}).encode()) is None
    assert _problem(b'["' + b"\\" * 100_001) is None  # a text that does not end
    assert _problem(b"[" * 70) is not None


@both
def test_an_error_with_a_body_that_cannot_be_read_keeps_its_number(provider):
    for raw in (b"[" * 100_000, b'{"error": ' + b"[" * 90_000 + b"]" * 90_000 + b"}"):
        with pytest.raises(TemporaryError, match="answered 503"):
            asked(Act(raw=raw, status=503), provider)


@both
def test_a_server_that_miscounts_tokens_is_not_believed(provider):
    reply = asked(Act("x" * 40, usage=(10**90, 10**90)), provider)
    assert (reply.input_tokens, reply.output_tokens) == (7, 10)


@both
def test_a_question_that_is_sent_on_and_on(provider):
    on = Act(status=307, headers={"location": "/v1/messages"})
    with Server(lambda *_: on) as server, pytest.raises(AskError, match="sent the question on"):
        ask(server, provider, "?")
    assert len(server.requests) == 5


@both
def test_a_question_may_be_sent_on_once(provider):
    path = "/v1/messages" if provider == "anthropic" else "/v1/chat/completions"
    on = Act(status=307, headers={"location": path})
    with Server(lambda _, time: on if time == 1 else Act("Hello.")) as server:
        assert ask(server, provider, "?").text == "Hello."


@both
def test_a_question_is_sent_on_to_no_other_server(provider, monkeypatch):
    # The libraries take away one header on the way, and the key may be in another.
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", KEY)
    with Server(lambda *_: Act()) as other:
        for place in (f"{other.url}/messages", f"https://{KEY}.example/", "http://localhost:1/"):
            on = Act(status=307, headers={"location": place})
            with pytest.raises(AskError, match="gets no key unasked") as raised:
                asked(on, provider)
            assert KEY not in str(raised.value)
    assert not other.requests


@both
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
def test_a_key_that_a_server_sends_back_is_shown_and_kept_nowhere(
    provider, status, monkeypatch, tmp_path
):
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", KEY)
    said = "a" * 120 + f" the key {KEY} is {KEY}"
    raw = None if status == 200 else json.dumps({"error": {"message": said}}).encode()
    act = Act(f"An owl. {said}", status=status, raw=raw, headers={"retry-after": "0"})
    cache = ReplyCache(tmp_path / "replies.jsonl")
    lines = []
    with Server(lambda *_: act) as server:
        address = server.url if provider == "openai" else server.root
        settings = ModelSettings("m", provider=provider, base_url=address)
        manner = Manner(retries=Retries(2, 0.01), say=lines.append)
        answers = ask_all(settings, ["?"], cache, manner)
        everything = f"{answers} {lines} {cache.path.read_text() if cache.path.exists() else ''}"
        assert "[API key]" in everything
        assert "sk-abc" not in everything
        if status != 200:
            with pytest.raises(AskError) as error:
                ask(server, provider, "?")
            import traceback

            assert "sk-abc" not in "".join(traceback.format_exception(error.value))


def test_a_word_in_place_of_a_key_is_left_in_the_text(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "ollama")
    assert asked(Act("An ollama."), "openai").text == "An ollama."


def test_a_server_that_is_not_there_is_no_budget_used_up(tmp_path):
    with Server(lambda *_: Act()) as server:
        pass
    settings = ModelSettings("m", base_url=server.url, timeout=2.0)
    manner = Manner(Budget(requests=2), retries=Retries(6, 0.01))
    answers = ask_all(settings, ["a", "b"], ReplyCache(tmp_path / "r.jsonl"), manner)
    assert "cannot be reached" in answers.stopped
    assert not answers.exhausted
