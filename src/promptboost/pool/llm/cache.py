"""Replies kept in a file, so that nothing is asked twice and a pool can be made again offline."""

import hashlib
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.pool.llm.client import ModelSettings, Reply

__all__ = ["ReplyCache", "reply_key"]

_BEGIN = b'{"cut_off": '  # keys are sorted


def reply_key(settings: ModelSettings, question: str) -> str:
    """Give the key of a reply: the same model, parameters and question are the same key.

    Where the server is does not count: a reply can be used again from anywhere.

    Examples
    --------
    >>> here = ModelSettings("a-model", base_url="http://localhost:8000/v1")
    >>> reply_key(here, "?") == reply_key(ModelSettings("a-model"), "?")
    True
    >>> reply_key(here, "?") == reply_key(ModelSettings("a-model", temperature=1.0), "?")
    False
    """
    asked = [settings.model, settings.parameters, question]
    return hashlib.blake2b(_line(asked).encode(), digest_size=16).hexdigest()


class ReplyCache:
    r"""A JSON Lines file of replies, each with its question, model, parameters and date.

    A reply is on disk before :meth:`keep` returns. Lines that cannot be read, such as a last one
    that was cut off by a power cut, are skipped and counted, and never touched.

    Parameters
    ----------
    path : path-like
        The file; made with the first reply.

    Examples
    --------
    >>> import tempfile
    >>> settings = ModelSettings("a-model")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ReplyCache(Path(folder, "replies.jsonl"))
    ...     cache.keep(settings, "What does an owl look like?", Reply("Round eyes.", 7, 3))
    ...     ReplyCache(cache.path).find(settings, "What does an owl look like?").text
    'Round eyes.'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damaged = 0
        self._replies: dict[str, Reply] = {}
        self._lock = threading.Lock()
        self._read()

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, settings: ModelSettings, question: str) -> Reply | None:
        """Give the reply to a question, or None."""
        return self._replies.get(reply_key(settings, question))

    def keep(self, settings: ModelSettings, question: str, reply: Reply) -> None:
        """Write a reply down; threads may do so at the same time."""
        key = reply_key(settings, question)
        record = {
            "key": key,
            "question": question,
            "model": settings.model,
            "parameters": settings.parameters,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "reply": reply.text,
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "cut_off": reply.cut_off,
        }
        with self._lock:
            _append(self.path, _line(record))
            self._replies[key] = reply

    def _read(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise PoolError(f"cannot read the replies {self.path}: {error.strerror}") from error
        lines = [line for line in content.split(b"\n") if line.strip()]
        for line in lines:
            if (found := _parsed(line)) is None:
                self.damaged += 1
            else:
                # A question asked twice, by two runs at once, has the reply that came last.
                self._replies[found[0]] = found[1]
        # A file that begins as ours may have been cut off in its first line.
        if self.damaged and self.damaged == len(lines) and not _begins_as_ours(content):
            raise FileFormatError(
                f"{self.path} is no file of replies, so nothing is added to it: "
                "give another name for the replies"
            )


def _append(path: Path, line: str) -> None:
    with path.open("ab+") as stream:
        # After a torn line, the next one must not be glued to it.
        if stream.tell() > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(f"{line}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def _begins_as_ours(content: bytes) -> bool:
    return content.startswith(_BEGIN[: len(content)])


def _parsed(line: bytes) -> tuple[str, Reply] | None:
    try:
        record = json.loads(line)
        known = {name: _whole(record[name]) for name in ("input_tokens", "output_tokens")}
        if not isinstance(record["key"], str) or not isinstance(record["reply"], str):
            return None
        return record["key"], Reply(record["reply"], **known, cut_off=bool(record["cut_off"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value


def _line(value: Any) -> str:
    # ASCII, so that halves of surrogate pairs in a hostile reply can be written at all.
    return json.dumps(value, sort_keys=True)
