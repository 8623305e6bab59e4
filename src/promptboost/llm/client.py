"""Client for one language model, on top of the `openai` and `anthropic` packages."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from promptboost.encoders.runtime import require_modules
from promptboost.errors import PromptBoostError, SettingError

Provider = Literal["openai", "anthropic"]

# Maximum size of a reply in bytes: several hundred thousand words.
_MAX_REPLY_BYTES = 2**20
# Servers without keys accept any word, such as "ollama"; shorter keys are not removed from replies.
_MIN_KEY_LENGTH = 12
# Estimate for an image of 512 × 512 pixels: 255 by OpenAI's rule, 350 by Anthropic's.
TOKENS_PER_IMAGE = 350
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
    sample: str = ""  # distinguishes replies to the same question in the cache

    def __post_init__(self) -> None:
        if self.provider not in get_args(Provider):
            raise SettingError(f"provider must be 'openai' or 'anthropic', not {self.provider!r}")
        if not self.model.strip():
            raise SettingError("model is empty; give the model's name on the server")

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

        def count(_: object) -> None:
            try:
                before_request()
            except BudgetError as error:
                raise _StopError(error) from None

        try:
            name = "Anthropic" if settings.provider == "anthropic" else "OpenAI"
            self._client = getattr(self._library, name)(
                api_key=self._key,
                base_url=settings.address,
                timeout=settings.timeout,
                max_retries=settings.max_retries,
                http_client=_http_client(self._library, count),
            )
        except Exception as error:  # of any type, for example an unsupported proxy
            raise SettingError(
                f"the client for {settings.address or settings.provider} cannot be set up: {error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def ask(self, question: str, images: Sequence[str] = ()) -> Reply:
        """Return the reply to a question about images; raise an AskError if there is none.

        Images are data URLs of JPEG files. If the server sends back the key, it is replaced in replies and
        errors.
        """
        library, anthropic = self._library, self.settings.provider == "anthropic"
        try:
            send = self._ask_anthropic if anthropic else self._ask_openai
            text, counts, cut_off = send(question, images)
        except _StopError as stop:
            raise stop.error from None
        # `from None`: the original errors quote whatever the server sent.
        except library.APIStatusError as error:
            raise self._status_error(error) from None
        except library.APIConnectionError as error:
            reason = self._quote(error.__cause__ or error)
            raise AskError(f"no answer from the server: {reason}") from None
        except (library.APIError, *_UNREADABLE) as error:
            raise AskError(f"the server's reply cannot be read: {self._quote(error)}") from None
        text = self._redact(text)
        sent = estimate_tokens(question) + TOKENS_PER_IMAGE * len(images)
        return Reply(
            text, _count(counts[0], sent), _count(counts[1], estimate_tokens(text)), cut_off
        )

    def _ask_openai(
        self, question: str, images: Sequence[str]
    ) -> tuple[str, tuple[Any, Any], bool]:
        # Servers of models without vision may accept no list.
        content: Any = question
        if images:
            content = [{"type": "image_url", "image_url": {"url": url}} for url in images]
            content.append({"type": "text", "text": question})
        # OpenAI's newer models reject `max_tokens`; most other servers accept no other.
        host = urlsplit(self.settings.address or "https://api.openai.com").hostname or ""
        limit = "max_completion_tokens" if host.endswith(".openai.com") else "max_tokens"
        answer = self._client.chat.completions.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": content}],
            **{limit: self.settings.reply_tokens},
            **self.settings.options,
        )
        choice, usage = answer.choices[0], answer.usage
        counts = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        return _text(choice.message.content), counts, choice.finish_reason == "length"

    def _ask_anthropic(
        self, question: str, images: Sequence[str]
    ) -> tuple[str, tuple[Any, Any], bool]:
        content: Any = question
        if images:
            jpeg = {"type": "base64", "media_type": "image/jpeg"}
            data = (url.partition(",")[2] for url in images)
            content = [{"type": "image", "source": {**jpeg, "data": text}} for text in data]
            content.append({"type": "text", "text": question})
        answer = self._client.messages.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": content}],
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


class _StopError(BaseException):
    """Carries an error through the libraries, which retry after any Exception."""

    def __init__(self, error: AskError) -> None:
        self.error = error


def _http_client(library: Any, before_request: Callable[[Any], None]) -> Any:
    """Return an HTTP client of the library's own type that limits the size of replies."""

    class LimitedClient(library.DefaultHttpxClient):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            request.headers["accept-encoding"] = "identity"
            response = super().send(request, **{**options, "stream": True})
            try:
                content = _read(response)
            except _StopError:
                if response.is_success:
                    raise
                content = b""  # the status is the error
            finally:
                response.close()
            status, headers = response.status_code, response.headers
            headers.pop("content-encoding", None)
            return type(response)(status, headers=headers, content=content, request=request)

    # Another server would receive the key.
    return LimitedClient(follow_redirects=False, event_hooks={"request": [before_request]})


def _read(response: Any) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        # A small compressed reply can decompress to gigabytes.
        raise _StopError(AskError("the server's reply is compressed, which is not accepted"))
    content = bytearray()
    for chunk in response.iter_raw(2**16):
        content += chunk
        if len(content) > _MAX_REPLY_BYTES:
            raise _StopError(
                AskError(f"the server's reply is larger than {_MAX_REPLY_BYTES:,} bytes")
            )
    return bytes(content)


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


def _count(tokens: Any, estimate: int) -> int:
    return tokens if type(tokens) is int and tokens >= 0 else estimate


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens; English text has about four characters per token."""
    return -(-len(text) // 4)
