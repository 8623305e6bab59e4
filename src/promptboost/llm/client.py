"""A language model as it is asked: its settings, its replies and errors, one question at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address
from typing import Any, Literal, Protocol, get_args
from urllib.parse import urlsplit

from promptboost.errors import MissingExtraError, PromptBoostError, SettingError

Provider = Literal["openai", "anthropic"]

#: More tokens than any question and answer have: a server that counts more has miscounted.
MOST_TOKENS = 10**9


class AskError(PromptBoostError):
    """A question got no reply, and asking it again is of no use."""


class TemporaryError(AskError):
    """A question got no reply this time: too many requests, a fault of the server, a time-out.

    ``retry_after`` is what the server asks to wait, in seconds. ``crowded`` says that it was asked too
    much at once, so that nobody should ask for a while.
    """

    def __init__(
        self, message: str, retry_after: float | None = None, *, crowded: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.crowded = crowded


class UnreachableError(TemporaryError):
    """There is no server at the address, for now at least."""


class RefusedError(AskError):
    """The server will answer no question at all: a wrong key, or a model it does not have."""


@dataclass(frozen=True)
class Reply:
    """What a model said, and the tokens of question and answer."""

    text: str
    input_tokens: int
    output_tokens: int  # as the server counted, or about four characters each
    cut_off: bool = False  # at the limit of tokens, in the middle of a line

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class ModelSettings:
    """Which model is asked, and how.

    Without a ``base_url`` the server is that of OPENAI_BASE_URL or ANTHROPIC_BASE_URL, else the
    provider's own.

    Examples
    --------
    >>> ModelSettings("some-model").parameters
    {'provider': 'openai', 'reply_tokens': 2048}
    """

    model: str  # as the server knows it
    provider: Provider = "openai"  # the protocol the server speaks
    base_url: str | None = None
    temperature: float | None = None  # None leaves it to the server: some models take none
    reply_tokens: int = 2048  # most tokens of a reply
    timeout: float = 120.0  # seconds to wait for one

    def __post_init__(self) -> None:
        if self.provider not in get_args(Provider):
            raise SettingError(f"provider must be 'openai' or 'anthropic', not {self.provider!r}")
        if not self.model.strip():
            raise SettingError("model is empty; give the name the server knows it by")
        for name in ("reply_tokens", "timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SettingError(f"{name} is {getattr(self, name)}, but must be above 0")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise SettingError(f"temperature is {self.temperature}, but must be 0 or more")

    @property
    def parameters(self) -> dict[str, Any]:
        """What, beside model and question, decides a reply; kept with it."""
        asked = {"provider": self.provider, "reply_tokens": self.reply_tokens}
        return asked if self.temperature is None else {**asked, "temperature": self.temperature}

    @property
    def address(self) -> str | None:
        """The base URL in force."""
        given = self.base_url or os.environ.get(f"{self.provider.upper()}_BASE_URL") or None
        if given is not None and not _is_url(given):
            raise SettingError(
                f"{given!r} is no URL of a server: write it like http://localhost:8000/v1"
            )
        if given is not None and self.provider == "anthropic":
            # This client adds the version itself, the other does not; people write it for both.
            return given.rstrip("/").removesuffix("/v1")
        return given


class LanguageModel(Protocol):
    """Whatever answers a question; several threads may ask at once."""

    def ask(self, question: str) -> Reply:
        """Answer one question; raise TemporaryError, RefusedError or AskError if that cannot be."""


@contextmanager
def open_model(settings: ModelSettings) -> Iterator[LanguageModel]:
    """Open the client for a server, and close its connections in the end.

    The key comes from the environment; a server on this machine or in the local network needs none.
    """
    try:
        library = import_module(settings.provider)
    except ImportError as error:
        raise MissingExtraError(
            f"asking a language model needs {settings.provider}, which is not installed. "
            "Type: pip install 'promptboost[llm]'"
        ) from error
    from promptboost.llm.adapters import AnthropicModel, OpenAIModel

    adapter = AnthropicModel if settings.provider == "anthropic" else OpenAIModel
    key = _key(settings)
    try:
        model = adapter(settings, library, key)
    # Of any type: a proxy it does not understand, a part that is missing.
    except Exception as error:
        raise SettingError(
            f"the client for {settings.address or settings.provider} cannot be set up: {error}"
        ) from error
    try:
        yield model
    finally:
        model.close()


def _key(settings: ModelSettings) -> str:
    variable = f"{settings.provider.upper()}_API_KEY"
    if key := os.environ.get(variable, "").strip():
        # Else a library would say so, with the key in its message.
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise SettingError(
                f"{variable} holds characters that no key has; copy it again, without quotes and "
                "line breaks"
            )
        return key
    if settings.address is None or not _is_local(settings.address):
        raise SettingError(
            f"{variable} is not set: put your API key into that environment variable, or give the "
            "--base-url of a server on this machine"
        )
    return "none"  # the clients want a word; a server on this machine does not look at it


def _is_url(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    # A name without a dot is one of the local network, as that of a container.
    if host.endswith((".localhost", ".local", ".internal", ".lan")) or not set(".:") & set(host):
        return True
    try:
        host_address = ip_address(host)
    except ValueError:
        return False
    return host_address.is_loopback or host_address.is_private or host_address.is_unspecified


def about_tokens(text: str) -> int:
    """Estimate the tokens of a text: English has about four characters in one."""
    return -(-len(text) // 4)


def most_tokens(question: str) -> int:
    """Return a number of tokens that no question has more of: a token is a byte at least."""
    # The frame of a message counts too: who speaks, where it begins and ends.
    return len(question.encode("utf-8", "replace")) + 32
