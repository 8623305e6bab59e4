"""Two protocols: chat completions, and Anthropic's messages.

The clients of both are made by the same generator: they raise the same errors under two names.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from math import isfinite
from time import time
from typing import Any
from urllib.parse import urlsplit

from promptboost.llm.client import (
    MOST_TOKENS,
    AskError,
    ModelSettings,
    RefusedError,
    Reply,
    TemporaryError,
    UnreachableError,
    about_tokens,
)
from promptboost.llm.exchange import limited_client

_KEY_LENGTH = 12  # of the shortest that can be told from a word


class _Adapter(ABC):
    """What both clients share: they are made alike, and raise the same errors under two names."""

    def __init__(self, settings: ModelSettings, library: Any, key: str) -> None:
        self.settings = settings
        self._library = library
        # Retries are ours: the client's own would go past the budget.
        client = library.Anthropic if settings.provider == "anthropic" else library.OpenAI
        self._key = key
        self._client = client(
            api_key=key,
            base_url=settings.address,
            timeout=settings.timeout,
            max_retries=0,
            http_client=limited_client(library, settings.timeout),
        )

    def ask(self, question: str) -> Reply:
        """Answer one question; a key that the server sends back is in no reply and no error."""
        try:
            answer = self._guarded(lambda: self._send(question))
            reply = self._reply(answer, question)
        except (AttributeError, LookupError, TypeError) as error:
            raise TemporaryError("the server sent something that is no reply") from error
        except AskError as error:
            error.args = (self._without_key(str(error)),)
            # Not with its cause, in which a library quotes whatever the server sent.
            raise error from None
        return replace(reply, text=self._without_key(reply.text))

    def _without_key(self, text: str) -> str:
        # Servers without keys are given words such as "none" or "ollama", which may be in any text.
        if len(self._key) < _KEY_LENGTH:
            return text
        return re.sub(re.escape(self._key), "[API key]", text, flags=re.IGNORECASE)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @abstractmethod
    def _send(self, question: str) -> Any:
        """Send a question by the client."""

    @abstractmethod
    def _reply(self, answer: Any, question: str) -> Reply:
        """Read what the client gave."""

    def _guarded(self, send: Callable[[], Any]) -> Any:
        """Turn what the client raises into what is to be done about it."""
        library = self._library
        try:
            return send()
        except library.APIStatusError as error:
            code = error.status_code
            message = f"the server answered {code}: {self._quoted(error.message)}"
            if code in (408, 409, 425, 429) or code >= 500:
                wait = _retry_after(error.response.headers)
                raise TemporaryError(message, wait, crowded=code == 429) from error
            if code in (401, 403, 404):
                raise RefusedError(
                    f"{message}; look at the key, the model and the base URL"
                ) from error
            raise AskError(message) from error
        except library.APITimeoutError as error:
            raise TemporaryError("the server did not answer in time") from error
        except library.APIConnectionError as error:
            cause = error.__cause__ or error
            if isinstance(cause, AskError):  # ours, from within the library
                raise cause from error
            raise UnreachableError(
                f"the server cannot be reached: {self._quoted(str(cause))}"
            ) from error
        except (ValueError, RecursionError, library.APIError) as error:
            raise TemporaryError(
                f"the server's reply cannot be read: {self._quoted(str(error))}"
            ) from error

    def _quoted(self, text: str, limit: int = 200) -> str:
        """Return the beginning of what a server or a library said."""
        folded = " ".join(self._without_key(text).split())
        return folded if len(folded) <= limit else f"{folded[:limit]}…"

    def _options(self) -> dict[str, Any]:
        warmth = self.settings.temperature
        return {} if warmth is None else {"temperature": warmth}


class OpenAIModel(_Adapter):
    """Chat completions, which OpenAI and many other servers speak."""

    def _send(self, question: str) -> Any:
        # OpenAI's newer models know only the one name, most other servers only the other.
        limit = "max_completion_tokens" if _is_openai(self.settings.address) else "max_tokens"
        return self._client.chat.completions.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": question}],
            **{limit: self.settings.reply_tokens},
            **self._options(),
        )

    def _reply(self, answer: Any, question: str) -> Reply:
        choice = answer.choices[0]
        text = _text(choice.message.content)
        used = answer.usage
        return Reply(
            text,
            _count(getattr(used, "prompt_tokens", None), question),
            _count(getattr(used, "completion_tokens", None), text),
            choice.finish_reason == "length",
        )


class AnthropicModel(_Adapter):
    """Anthropic's messages."""

    def _send(self, question: str) -> Any:
        return self._client.messages.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": question}],
            max_tokens=self.settings.reply_tokens,
            # Newer versions of the client have no argument for the temperature.
            extra_body=self._options(),
        )

    def _reply(self, answer: Any, question: str) -> Reply:
        text = "\n".join(_text(part.text) for part in answer.content if part.type == "text")
        used = answer.usage
        return Reply(
            text,
            _count(getattr(used, "input_tokens", None), question),
            _count(getattr(used, "output_tokens", None), text),
            answer.stop_reason == "max_tokens",
        )


def _is_openai(address: str | None) -> bool:
    host = "api.openai.com" if address is None else urlsplit(address).hostname or ""
    return host == "openai.com" or host.endswith(".openai.com")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After, which is a number of seconds or a date."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except ValueError:
            return None
    return max(0.0, seconds) if isfinite(seconds) else None


def _text(content: Any) -> str:
    if content is None:  # a model may answer with nothing at all
        return ""
    if isinstance(content, list):  # some servers send parts, what was thought among them
        texts = [part["text"] for part in content if part["type"] == "text"]
        return "\n".join(map(_text, texts))
    if not isinstance(content, str):
        raise TypeError(f"the content is a {type(content).__name__}")
    return content


def _count(counted: Any, text: str) -> int:
    if isinstance(counted, int) and not isinstance(counted, bool) and 0 <= counted <= MOST_TOKENS:
        return counted
    return about_tokens(text)
