import json
import sys

import pytest

from promptboost.errors import MissingExtraError, SettingError
from promptboost.llm.client import AskError, Client, ModelSettings, RefusedError
from tests.llm.llm_server import Act, Server

pytest.importorskip("openai", reason="needs promptboost[llm]")
pytest.importorskip("anthropic", reason="needs promptboost[llm]")

both = pytest.mark.parametrize("provider", ["openai", "anthropic"])
#: Makes the libraries retry at once.
NOW = {"retry-after-ms": "1"}


def settings_of(server, provider, **options):
    address = server.url if provider == "openai" else server.root
    options = {"timeout": 5.0, "max_retries": 0, **options}
    return ModelSettings("a-model", provider=provider, base_url=address, **options)


def ask(server, provider, question, before_request=lambda: None, **options):
    with Client(settings_of(server, provider, **options), before_request) as client:
        return client.ask(question)


def ask_once(act, provider, **options):
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
    reply = ask_once(Act("x" * 40, usage=None), provider)
    assert (reply.input_tokens, reply.output_tokens) == (7, 10)


@both
def test_a_reply_that_was_cut_off_says_so(provider):
    assert ask_once(Act("An ow", finish="length"), provider).cut_off


@both
def test_no_words_are_an_empty_reply(provider):
    assert ask_once(Act(None), provider).text == ""


@both
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_faults_are_retried_and_named(provider, status):
    fault = Act(status=status, headers=NOW)
    with Server(lambda _, time: fault if time < 3 else Act("At last.")) as server:
        assert ask(server, provider, "?", max_retries=2).text == "At last."
        with pytest.raises(AskError, match=f"answered {status}"):
            ask(server, provider, "??", max_retries=1)
        assert server.questions == ["?", "?", "?", "??", "??"]


@both
@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_will_never_work(provider, status):
    with pytest.raises(RefusedError, match="the key, the model and the base URL"):
        ask_once(Act(status=status), provider)


@both
def test_a_question_that_is_refused_is_not_retried(provider):
    with Server(lambda *_: Act(status=400)) as server:
        with pytest.raises(AskError, match="answered 400") as error:
            ask(server, provider, "?", max_retries=2)
        assert len(server.requests) == 1
    assert not isinstance(error.value, RefusedError)


@both
def test_a_time_out(provider):
    with pytest.raises(AskError, match="no answer from the server: timed out"):
        ask_once(Act(delay=0.6), provider, timeout=0.1)


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
    with pytest.raises(AskError, match="cannot be read"):
        ask_once(Act(raw=raw), provider)


@both
def test_no_server(provider):
    with Server(lambda *_: Act()) as server:
        pass
    with pytest.raises(AskError, match="no answer from the server"):
        ask(server, provider, "?")


@pytest.mark.parametrize(
    ("provider", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")]
)
def test_the_key_comes_from_the_environment(provider, variable, monkeypatch):
    with pytest.raises(SettingError, match=f"{variable} is not set"):
        Client(ModelSettings("m", provider=provider))
    monkeypatch.setenv(variable, "my-secret")
    Client(ModelSettings("m", provider=provider))
    with Server(lambda *_: Act()) as server:
        ask(server, provider, "?")
    assert "my-secret" in str(server.headers[0])


@both
@pytest.mark.parametrize("key", ["sk-sécret", "sk-secret\nsk-more", "sk secret", "sk-\x07secret"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(provider, key, monkeypatch):
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", key)
    with pytest.raises(SettingError, match="_API_KEY holds characters that no key has") as error:
        Client(ModelSettings("m", provider=provider))
    assert "cret" not in str(error.value)


@both
@pytest.mark.parametrize(
    "address", ["localhost:8000/v1", "127.0.0.1:8000", "http://", "http://[::1", "ftp://a/v1"]
)
def test_what_is_no_address_of_a_server(provider, address, monkeypatch):
    with pytest.raises(SettingError, match="write it like http://localhost:8000/v1"):
        Client(ModelSettings("m", provider=provider, base_url=address))
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", address)
    with pytest.raises(SettingError, match="write it like http://localhost:8000/v1"):
        Client(ModelSettings("m", provider=provider))


@both
def test_the_version_may_be_in_the_address_of_either(provider):
    with Server(lambda *_: Act("Hello.")) as server:
        for address in (server.url, f"{server.url}/"):
            with Client(ModelSettings("m", provider=provider, base_url=address)) as model:
                assert model.ask("?").text == "Hello."


def test_a_client_that_cannot_be_set_up(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "gopher://localhost:1")
    with pytest.raises(SettingError, match=r"cannot be set up: .*gopher"):
        Client(ModelSettings("m", base_url="http://localhost:8/v1"))


def test_parts_of_a_reply_are_read_and_thoughts_are_not():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Owls?"}]},
        {"type": "text", "text": "Round eyes."},
        {"type": "text", "text": "A beak."},
    ]
    raw = json.dumps({"choices": [{"message": {"content": parts}}]}).encode()
    assert ask_once(Act(raw=raw), "openai").text == "Round eyes.\nA beak."


@both
def test_a_server_given_by_its_url_needs_no_key(provider):
    Client(ModelSettings("m", provider=provider, base_url="https://models.example.com/v1"))


def test_the_address_may_come_from_the_environment(monkeypatch):
    with Server(lambda *_: Act("Hello.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with Client(ModelSettings("m")) as model:
            assert model.ask("?").text == "Hello."


@both
def test_a_missing_client_has_the_command_to_type(provider, monkeypatch):
    monkeypatch.setitem(sys.modules, provider, None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[llm\]'"):
        Client(ModelSettings("m", provider=provider))


@pytest.mark.parametrize(
    ("host", "limit"),
    [("eu.api.openai.com", "max_completion_tokens"), ("api.openai.com.test", "max_tokens")],
)
def test_openai_itself_gets_the_limit_under_its_newer_name(host, limit, monkeypatch):
    with Server(lambda *_: Act()) as server:
        monkeypatch.setenv("HTTP_PROXY", server.root)
        monkeypatch.setenv("http_proxy", server.root)
        settings = ModelSettings("m", base_url=f"http://{host}/v1", max_retries=0)
        with Client(settings) as client, pytest.raises(AskError):
            client.ask("?")
        assert limit in server.requests[0][1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": "other"},
        {"model": " "},
    ],
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(SettingError):
        ModelSettings(**{"model": "m", **wrong})
