"""What LLMbo says to a language model, how replies are read, and where they are kept."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from promptboost.errors import PoolError, SettingError
from promptboost.llm import (
    Budget,
    LanguageModel,
    Manner,
    ModelSettings,
    Reply,
    ReplyCache,
    ask_all,
    open_model,
)
from promptboost.llm.client import AskError
from promptboost.llm.replies import clean_reply
from promptboost.pool.templates import check_templates

#: What every template in a message or a reply begins with.
BULLET = "- "

_MESSAGE = """\
A model looks at a picture and picks the sentence that fits it best. The sentences are all made from \
one template: the name of each kind of thing is put where the template has {{}}. Which template is \
used decides how often the model is right.

With these templates it is right most often:
{good}

With these templates it is wrong most often:
{bad}

Find out what the first ones have in common that the others lack. Then write {count} new \
{templates} with which the model is right more often than with any of them. Keep to the form of the \
first ones, use {{}} exactly once, and use fewer than 15 words. Answer with nothing but \
{templates}, each on a line of its own that begins with "{bullet}"."""


def message(good: Sequence[str], bad: Sequence[str], count: int) -> str:
    """Show the best and the worst templates so far and ask for better ones."""
    return _MESSAGE.format(
        good="\n".join(BULLET + one for one in good),
        bad="\n".join(BULLET + one for one in bad),
        count=count,
        templates="template" if count == 1 else "templates",
        bullet=BULLET,
    )


def read_templates(reply: str, most: int, *, cut_off: bool = False) -> list[str] | None:
    """Take at most `most` templates out of a reply; None if it is not as it should be.

    A reply is text from outside: what is not to be read in it goes, as it does from replies for a
    pool. Beyond that the rule is the authors': a template is a line with a dash before it, and one
    line that has not exactly one ``{}`` spoils the reply. Of one that is `cut_off` the last line is
    left out.
    """
    lines = reply.splitlines()[: -1 if cut_off else None]
    # What a model thinks aloud has lines with dashes too; cleaning the whole takes it out.
    sentences = set(clean_reply("\n".join(lines)).sentences)
    templates = [
        sentence
        for line in lines
        if line.startswith(BULLET)
        for sentence in clean_reply(line).sentences
        if sentence in sentences
    ]
    try:
        return [_checked(one) for one in templates][:most] or None
    except PoolError:
        return None


def _checked(template: str) -> str:
    (kept,) = check_templates([template])
    if set("{}") & set(kept.replace("{}", "")):
        raise PoolError(f"{kept!r} has braces of another kind")
    return kept


# Stands between a message and what tells one asking of it from another; never sent.
_MARK = "\n\x1f"
_PATIENCE = 5.0


def default_replies() -> Path:
    """Return the file of replies where none is named: beside the embedding store."""
    from promptboost.encoders.store import default_root

    return default_root().parent / "replies" / "llmbo.jsonl"


def check_server(settings: ModelSettings) -> None:
    """Raise a SettingError if the model cannot be asked, as far as can be known without asking."""
    try:
        with open_model(settings):
            pass
    except SettingError as error:
        raise SettingError(
            f"llmbo cannot ask {settings.model!r}: {error} "
            f"(llmbo?model={settings.model}&base_url=http://localhost:8000/v1)"
        ) from error
    address = urlsplit(settings.address or "")
    # Others may be behind a proxy: only their client knows the way.
    if not _is_here(address.hostname or ""):
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_PATIENCE).close()
    except OSError as error:
        raise SettingError(
            f"llmbo: nothing answers at {settings.address} ({error.strerror or error}); start the "
            "server, or give the base_url of another one"
        ) from error


class Conversation:
    """Asks one question after another; every reply is kept, and found when a run is repeated.

    The same message sent twice should get two replies: models draw their words. So a reply is filed
    under the message, the run it belongs to, and the number of the time it was sent. With
    ``max_requests=0`` only replies in the file are used, and no server is needed.
    """

    def __init__(self, settings: ModelSettings, replies: Path, max_requests: int | None) -> None:
        replies.absolute().parent.mkdir(parents=True, exist_ok=True)
        self.requests = 0
        self._settings, self._most = settings, max_requests
        self._cache = ReplyCache(replies)
        self._times: dict[str, int] = {}
        self._open = ExitStack()
        self._model: LanguageModel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def say(self, message: str, run: str) -> Reply:
        """Send a message, or find what was answered the same time it was sent before in the same `run`.

        Raises an AskError that says why there is no reply, and that what was answered is kept.
        """
        filed = f"{message}{_MARK}{run}"
        time = self._times[filed] = self._times.get(filed, 0) + 1
        filed = f"{filed}, time {time}"
        left = None if self._most is None else self._most - self.requests
        answers = ask_all(self._settings, [filed], self._cache, Manner(Budget(left)), self)
        self.requests += answers.requests
        if filed not in answers.replies:
            why = answers.failed.get(filed) or answers.stopped or "the server does not answer"
            if answers.exhausted:
                why = f"max_requests={self._most} allows no more"
            raise AskError(
                f"llmbo got no reply from {self._settings.model!r}: {why}. What was answered is in "
                f"{self._cache.path}; the same command goes on from there"
            )
        return answers.replies[filed]

    def ask(self, question: str) -> Reply:
        """Send what stands before the mark; the client is opened when it is first needed."""
        if self._model is None:
            self._model = self._open.enter_context(open_model(self._settings))
        return self._model.ask(question.partition(_MARK)[0])


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
