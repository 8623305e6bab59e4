import json
import sys
from email.utils import formatdate
from time import time

import pytest

from promptboost.errors import MissingExtraError, SettingError
from promptboost.llm.client import AskError, ModelSettings, RefusedError, TemporaryError, open_model
from tests.llm.llm_server import Act, Server

pytest.importorskip("openai", reason="needs promptboost[llm]")
pytest.importorskip("anthropic", reason="needs promptboost[llm]")

both = pytest.mark.parametrize("provider", ["openai", "anthropic"])


def opened(server, provider, **options):
    address = server.url if provider == "openai" else server.root
    options = {"timeout": 5.0, **options}
    return open_model(ModelSettings("a-model", provider=provider, base_url=address, **options))


def ask(server, provider, question, **options):
    with opened(server, provider, **options) as model:
        return model.ask(question)


def entered(settings):
    with open_model(settings):
        pass


def asked(act, provider, **options):
    with Server(lambda *_: act) as server:
        return ask(server, provider, "What does an owl look like?", **options)


@both
def test_a_reply_with_its_tokens(provider):
    with Server(lambda *_: Act("Round eyes.")) as server:
        question = "What does an owl look like?"
        reply = ask(server, provider, question, temperature=0.5, reply_tokens=99)
    assert (reply.text, reply.input_tokens, reply.output_tokens) == ("Round eyes.", 11, 7)
    assert not reply.cut_off
    [(_, body)] = server.requests
    assert body["model"] == "a-model"
    assert body["messages"] == [{"role": "user", "content": "What does an owl look like?"}]
    assert (body["max_tokens"], body["temperature"]) == (99, 0.5)


@both
def test_no_temperature_is_sent_unless_asked_for(provider):
    with Server(lambda *_: Act()) as server:
        ask(server, provider, "?")
    assert "temperature" not in server.requests[0][1]


@both
def test_tokens_are_estimated_where_the_server_does_not_count(provider):
    reply = asked(Act("x" * 40, usage=None), provider)
    assert (reply.input_tokens, reply.output_tokens) == (7, 10)


@both
def test_a_reply_that_was_cut_off_says_so(provider):
    assert asked(Act("An ow", finish="length"), provider).cut_off


@both
def test_no_words_are_an_empty_reply(provider):
    assert asked(Act(None), provider).text == ""


@both
@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_what_may_work_later(provider, status):
    with pytest.raises(TemporaryError, match=f"answered {status}") as error:
        asked(Act(status=status), provider)
    assert error.value.retry_after is None


@both
@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_will_never_work(provider, status):
    with pytest.raises(RefusedError, match="the key, the model and the base URL"):
        asked(Act(status=status), provider)


@both
def test_a_question_that_is_refused_says_nothing_about_others(provider):
    with pytest.raises(AskError) as error:
        asked(Act(status=400), provider)
    assert not isinstance(error.value, (TemporaryError, RefusedError))


@both
def test_seconds_and_dates_of_retry_after(provider):
    with pytest.raises(TemporaryError) as error:
        asked(Act(status=429, headers={"retry-after": "7"}), provider)
    assert error.value.retry_after == 7
    date = formatdate(time() + 30, usegmt=True)
    with pytest.raises(TemporaryError) as error:
        asked(Act(status=503, headers={"retry-after": date}), provider)
    assert 25 < error.value.retry_after <= 30
    for odd, seconds in {"soon": None, "-5": 0, "nan": None, "inf": None}.items():
        with pytest.raises(TemporaryError) as error:
            asked(Act(status=429, headers={"retry-after": odd}), provider)
        assert error.value.retry_after == seconds


@both
def test_a_time_out(provider):
    with pytest.raises(TemporaryError, match="in time"):
        asked(Act(delay=0.6), provider, timeout=0.1)


@both
@pytest.mark.parametrize(
    "raw",
    [
        b"{not json",
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b"\xff\xfe",
        b'{"choices": [], "content": null}',
        b'{"choices": [{"message": null}], "content": [null]}',
        b'{"choices": [{"message": {"content": [{"kind": "text"}]}}], "content": 5}',
        b'{"choices": [{"message": {"content": 5}}], "content": [{"type": "text", "text": 5}]}',
    ],
)
def test_malformed_replies(provider, raw):
    with pytest.raises(TemporaryError):
        asked(Act(raw=raw), provider)


@both
def test_a_page_instead_of_a_reply(provider):
    act = Act(raw=b"<html>Welcome</html>", headers={"content-type": "text/html"})
    with pytest.raises(TemporaryError, match="no reply"):
        asked(act, provider)


@both
def test_nobody_there(provider):
    with Server(lambda *_: Act()) as server:
        pass
    with pytest.raises(TemporaryError, match="cannot be reached"):
        ask(server, provider, "?")


@pytest.mark.parametrize(
    ("provider", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")]
)
def test_the_key_comes_from_the_environment(provider, variable, monkeypatch):
    for address in (None, "https://models.example.com/v1"):
        with pytest.raises(SettingError, match=f"{variable} is not set"):
            entered(ModelSettings("m", provider=provider, base_url=address))
    monkeypatch.setenv(variable, "my-secret")
    entered(ModelSettings("m", provider=provider))
    with Server(lambda *_: Act()) as server:
        ask(server, provider, "?")
    assert "my-secret" in str(server.headers[0])


@both
@pytest.mark.parametrize("key", ["sk-sécret", "sk-secret\nsk-more", "sk secret", "sk-\x07secret"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(provider, key, monkeypatch):
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", key)
    with pytest.raises(SettingError, match="_API_KEY holds characters that no key has") as error:
        entered(ModelSettings("m", provider=provider))
    assert "cret" not in str(error.value)


@both
@pytest.mark.parametrize(
    "address", ["localhost:8000/v1", "127.0.0.1:8000", "http://", "http://[::1", "ftp://a/v1"]
)
def test_what_is_no_address_of_a_server(provider, address, monkeypatch):
    with pytest.raises(SettingError, match="write it like http://localhost:8000/v1"):
        entered(ModelSettings("m", provider=provider, base_url=address))
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", address)
    with pytest.raises(SettingError, match="write it like http://localhost:8000/v1"):
        entered(ModelSettings("m", provider=provider))


@both
def test_the_version_may_be_in_the_address_of_either(provider):
    with Server(lambda *_: Act("Hello.")) as server:
        for address in (server.url, f"{server.url}/"):
            with open_model(ModelSettings("m", provider=provider, base_url=address)) as model:
                assert model.ask("?").text == "Hello."


def test_a_client_that_cannot_be_set_up(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "gopher://localhost:1")
    with pytest.raises(SettingError, match=r"cannot be set up: .*gopher"):
        entered(ModelSettings("m", base_url="http://localhost:8/v1"))


def test_parts_of_a_reply_are_read_and_thoughts_are_not():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Owls?"}]},
        {"type": "text", "text": "Round eyes."},
        {"type": "text", "text": "A beak."},
    ]
    raw = json.dumps({"choices": [{"message": {"content": parts}}]}).encode()
    assert asked(Act(raw=raw), "openai").text == "Round eyes.\nA beak."


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:8/v1",
        "http://[::1]:8/v1",
        "http://192.168.0.7/v1",
        "http://ollama:11434/v1",
        "http://host.docker.internal:8/v1",
    ],
)
def test_a_local_server_needs_no_key(address):
    entered(ModelSettings("m", base_url=address))


def test_the_address_may_come_from_the_environment(monkeypatch):
    with Server(lambda *_: Act("Hello.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with open_model(ModelSettings("m")) as model:
            assert model.ask("?").text == "Hello."


@both
def test_a_missing_client_has_the_command_to_type(provider, monkeypatch):
    monkeypatch.setitem(sys.modules, provider, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'promptboost\[llm\]'"):
        entered(ModelSettings("m", provider=provider))


def test_openai_itself_gets_the_limit_under_its_newer_name():
    from promptboost.llm.adapters import _is_openai

    assert _is_openai(None)
    assert _is_openai("https://eu.api.openai.com/v1")
    assert not _is_openai("http://localhost:8000/v1")
    assert not _is_openai("https://openai.com.example.org/v1")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"provider": "other"}, {"model": " "}, {"reply_tokens": 0}, {"timeout": -1.0}),
        *({"timeout": float("nan")}, {"temperature": float("nan")}, {"temperature": -0.1}),
    ],
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(SettingError):
        ModelSettings(**{"model": "m", **wrong})
