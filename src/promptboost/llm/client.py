"""Client for one language model, on top of the `openai` and `anthropic` packages."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from promptboost.encoders.runtime import require_modules
from promptboost.errors import PromptBoostError, SettingError

Provider = Literal["openai", "anthropic"]

#: Largest reply in bytes: several hundred thousand words.
MAX_REPLY_BYTES = 2**20
#: Larger token counts are counting errors of the server.
MAX_TOKENS = 10**9
# Servers without keys accept any word, such as "ollama"; shorter keys are not removed from replies.
_MIN_KEY_LENGTH = 12
# Raised when a reply lacks a field or has one of another type.
_UNREADABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


class AskError(PromptBoostError):
    """A question got no reply."""


class RefusedError(AskError):
    """The server refuses every question, for example because of a wrong key or model name."""


class BudgetError(AskError):
    """The request was not sent because the budget is used up."""


@dataclass(frozen=True)
class Reply:
    """Text of a reply, and the number of tokens of question and reply."""

    text: str
    input_tokens: int
    output_tokens: int  # as counted by the server, otherwise estimated
    cut_off: bool = False  # whether the token limit was reached


@dataclass(frozen=True)
class ModelSettings:
    """Settings of a language model and its server.

    Without a ``base_url``, OPENAI_BASE_URL or ANTHROPIC_BASE_URL is used, otherwise the provider's server.

    Examples
    --------
    >>> ModelSettings("some-model").parameters
    {'provider': 'openai', 'reply_tokens': 2048}
    """

    model: str  # name of the model on the server
    provider: Provider = "openai"  # protocol of the server
    base_url: str | None = None
    temperature: float | None = None  # None for the server's default; some models accept no other
    reply_tokens: int = 2048  # maximum number of tokens per reply
    timeout: float = 120.0  # seconds without data from the server
    max_retries: int = 6  # per question, after server errors and rate limits
    sample: str = ""  # tells replies to the same question apart in the cache

    def __post_init__(self) -> None:
        if self.provider not in get_args(Provider):
            raise SettingError(f"provider must be 'openai' or 'anthropic', not {self.provider!r}")
        if not self.model.strip():
            raise SettingError("model is empty; give the model's name on the server")
        for name in ("reply_tokens", "timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SettingError(f"{name} is {getattr(self, name)}, but must be above 0")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise SettingError(f"temperature is {self.temperature}, but must be 0 or more")

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters that affect the reply; stored with it."""
        parameters = {"provider": self.provider, "reply_tokens": self.reply_tokens, **self.options}
        return parameters | ({"sample": self.sample} if self.sample else {})

    @property
    def options(self) -> dict[str, Any]:
        """The temperature, if it is set."""
        return {} if self.temperature is None else {"temperature": self.temperature}

    @property
    def address(self) -> str | None:
        """Base URL from the settings or the environment; None for the provider's own."""
        url = self.base_url or os.environ.get(f"{self.provider.upper()}_BASE_URL") or None
        if url is not None and not _is_url(url):
            raise SettingError(
                f"{url!r} is no URL of a server: write it like http://localhost:8000/v1"
            )
        if url is not None and self.provider == "anthropic":
            # Unlike openai, anthropic appends the version itself.
            return url.rstrip("/").removesuffix("/v1")
        return url


class Client:
    """Ask one language model; thread-safe.

    The key comes from OPENAI_API_KEY or ANTHROPIC_API_KEY; with a ``base_url``, none is required.
    `before_request` is called before each HTTP request, retries included, and may raise a BudgetError.
    """

    def __init__(
        self, settings: ModelSettings, before_request: Callable[[], None] = lambda: None
    ) -> None:
        require_modules([settings.provider], "llm", "Language models")
        self._library: Any = import_module(settings.provider)
        self.settings = settings
        self._key = _key(settings)
        try:
            name = "Anthropic" if settings.provider == "anthropic" else "OpenAI"
            self._client = getattr(self._library, name)(
                api_key=self._key,
                base_url=settings.address,
                timeout=settings.timeout,
                max_retries=settings.max_retries,
                http_client=_http_client(self._library, before_request),
            )
        except Exception as error:  # of any type, for example an unsupported proxy
            raise SettingError(
                f"the client for {settings.address or settings.provider} cannot be set up: {error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def ask(self, question: str) -> Reply:
        """Return the reply to a question; raise an AskError if there is none.

        If the server sends back the key, it is replaced in replies and errors.
        """
        library, anthropic = self._library, self.settings.provider == "anthropic"
        try:
            send = self._ask_anthropic if anthropic else self._ask_openai
            text, counts, cut_off = send(question)
        except _Stop as stop:
            raise type(stop.error)(self._quote(stop.error)) from None
        # `from None`: the original errors quote whatever the server sent.
        except library.APIStatusError as error:
            raise self._status_error(error) from None
        except library.APIConnectionError as error:
            reason = self._quote(error.__cause__ or error)
            raise AskError(f"no answer from the server: {reason}") from None
        except (library.APIError, *_UNREADABLE) as error:
            raise AskError(f"the server's reply cannot be read: {self._quote(error)}") from None
        text = self._redact(text)
        return Reply(text, _count(counts[0], question), _count(counts[1], text), cut_off)

    def _ask_openai(self, question: str) -> tuple[str, tuple[Any, Any], bool]:
        # OpenAI's newer models reject `max_tokens`; most other servers know no other name.
        host = urlsplit(self.settings.address or "https://api.openai.com").hostname or ""
        limit = "max_completion_tokens" if host.endswith(".openai.com") else "max_tokens"
        answer = self._client.chat.completions.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": question}],
            **{limit: self.settings.reply_tokens},
            **self.settings.options,
        )
        choice, usage = answer.choices[0], answer.usage
        counts = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        return _text(choice.message.content), counts, choice.finish_reason == "length"

    def _ask_anthropic(self, question: str) -> tuple[str, tuple[Any, Any], bool]:
        answer = self._client.messages.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": question}],
            max_tokens=self.settings.reply_tokens,
            # Newer versions of the package have no argument for the temperature.
            extra_body=self.settings.options,
        )
        text = "\n".join(_text(block.text) for block in answer.content if block.type == "text")
        usage = answer.usage
        counts = getattr(usage, "input_tokens", None), getattr(usage, "output_tokens", None)
        return text, counts, answer.stop_reason == "max_tokens"

    def _status_error(self, error: Any) -> AskError:
        message = f"the server answered {error.status_code}: {self._quote(error.message)}"
        if error.status_code in (401, 403, 404):
            return RefusedError(f"{message}; check the key, the model and the base URL")
        if location := error.response.headers.get("location"):
            # Another server would receive the key.
            return RefusedError(
                f"the server redirects to {self._quote(location)}, and redirects are not followed; "
                "if you trust that server, give its address as --base-url"
            )
        return AskError(message)

    def _quote(self, message: object, limit: int = 200) -> str:
        text = " ".join(self._redact(str(message)).split())
        return text if len(text) <= limit else f"{text[:limit]}…"

    def _redact(self, text: str) -> str:
        if len(self._key) < _MIN_KEY_LENGTH:
            return text
        return re.sub(re.escape(self._key), "[API key]", text, flags=re.IGNORECASE)


class _Stop(BaseException):
    """Carry an error through the libraries, which may retry after any Exception."""

    def __init__(self, error: AskError) -> None:
        self.error = error


def _http_client(library: Any, before_request: Callable[[], None]) -> Any:
    """Return an HTTP client of the library's own type that limits the size of a reply.

    It uses only what all HTTP packages have that the versions of both libraries come with.
    """

    class LimitedClient(library.DefaultHttpxClient):  # type: ignore[misc]
        failure = ""

        def send(self, request: Any, **options: Any) -> Any:
            try:
                before_request()
            except BudgetError as error:
                raise _Stop(BudgetError(f"{error}{self.failure}")) from None
            request.headers["accept-encoding"] = "identity"
            try:
                response = super().send(request, **{**options, **_OPTIONS})
                self.failure = ""
            except Exception as error:
                self.failure = f"; the last request failed: {error}"
                raise
            try:
                body = _read(response)
            except _Stop:
                if response.is_success:
                    raise
                body = b""  # the status is enough
            finally:
                response.close()
            if response.is_success and not _is_json_object(body):
                # The libraries retry after this status, but not after a reply that is no JSON.
                message = b'{"error": {"message": "the reply is no JSON object"}}'
                return type(response)(502, content=message, request=request)
            status, headers = response.status_code, response.headers
            return type(response)(status, headers=headers, content=body, request=request)

    return LimitedClient()


_OPTIONS = {"stream": True, "follow_redirects": False}


def _read(response: Any) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise _Stop(AskError("the server's reply is compressed, so its size is unknown"))
    body = b""
    for chunk in response.iter_raw(2**16):
        body += chunk
        if len(body) > MAX_REPLY_BYTES:
            raise _Stop(AskError(f"the server's reply has more than {MAX_REPLY_BYTES:,} bytes"))
    return body


def _is_json_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _key(settings: ModelSettings) -> str:
    variable = f"{settings.provider.upper()}_API_KEY"
    key = os.environ.get(variable, "").strip()
    # The libraries would quote an invalid key in their own message.
    if key and not re.fullmatch("[!-~]+", key):
        raise SettingError(
            f"{variable} holds characters that no key has; copy it again, without quotes and line breaks"
        )
    if not key and settings.address is None:
        raise SettingError(
            f"{variable} is not set: put your API key into that environment variable, or give the "
            "--base-url of a server that needs none"
        )
    return key or "none"  # the libraries require one


def _is_url(address: str) -> bool:
    try:
        url = urlsplit(address)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _text(content: Any) -> str:
    if isinstance(content, list):  # some servers send blocks, reasoning among them
        return "\n".join(_text(block["text"]) for block in content if block["type"] == "text")
    if not isinstance(content, str | None):
        raise TypeError(f"the content is a {type(content).__name__}")
    return content or ""


def _count(tokens: Any, text: str) -> int:
    return tokens if type(tokens) is int and 0 <= tokens <= MAX_TOKENS else estimate_tokens(text)


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens; English text has about four characters per token."""
    return -(-len(text) // 4)
