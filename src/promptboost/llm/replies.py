"""Replies: kept in a file, and cleaned into sentences, whatever a model wraps around them.

A reply is text and nothing else: no part of it is obeyed, run or shown as markup.
"""

import hashlib
import html
import json
import os
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.io import load_json, open_regular, read_bytes
from promptboost.llm.client import MOST_TOKENS, ModelSettings, Reply
from promptboost.pool.text import control_character, distinct

_BEGIN = b'{"cut_off": '  # keys are sorted


def reply_key(settings: ModelSettings, question: str) -> str:
    """Return the key of a reply: the same model, parameters and question are the same key.

    Where the server is does not count: a reply can be used again from anywhere.
    """
    asked = [settings.model, settings.parameters, question]
    return hashlib.blake2b(_line(asked).encode(), digest_size=16).hexdigest()


class ReplyCache:
    r"""A JSON Lines file of replies, each with its question, model, parameters and date.

    A reply is on disk before :meth:`keep` returns. Lines that cannot be read, such as a last one
    that was cut off by a power cut, are skipped and counted, and never touched.

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
        """Return the reply to a question, or None."""
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
            content = read_bytes(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PoolError(f"cannot read the replies {self.path}: {error.strerror}") from error
        lines = [line for line in content.split(b"\n") if line.strip()]
        for line in lines:
            if (kept := _parsed(line)) is None:
                self.damaged += 1
            else:
                # A question asked twice, by two runs at once, has the reply that came last.
                self._replies[kept[0]] = kept[1]
        # A file that begins as ours may have been cut off in its first line.
        if (
            self.damaged
            and self.damaged == len(lines)
            and not content.startswith(_BEGIN[: len(content)])
        ):
            raise FileFormatError(
                f"{self.path} is no file of replies, so nothing is added to it: "
                "give another name for the replies"
            )


def _append(path: Path, line: str) -> None:
    if path.exists():
        open_regular(path).close()  # a pipe would wait for its reader
    with path.open("ab+") as stream:
        # After a torn line, the next one must not be glued to it.
        if stream.tell() > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(f"{line}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def _parsed(line: bytes) -> tuple[str, Reply] | None:
    try:
        record = load_json(line.decode("utf-8"), "a reply")
        known = {name: _whole(record[name]) for name in ("input_tokens", "output_tokens")}
        if not isinstance(record["key"], str) or not isinstance(record["reply"], str):
            return None
        return record["key"], Reply(record["reply"], **known, cut_off=bool(record["cut_off"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_TOKENS:
        raise TypeError("not a number of tokens")
    return value


def _line(value: Any) -> str:
    # ASCII, so that halves of surrogate pairs in a hostile reply can be written at all.
    return json.dumps(value, sort_keys=True)


#: Why a reply has no line, if the model used up its tokens before it came to one.
NOTHING_YET = "reply cut off before its first line"

#: Longer ones are no descriptions: encoders read some fifty words at most.
MAX_WORDS = 60

# What reasoning models think aloud, perhaps cut off before its end. Some servers send the end alone.
_THINK = r"(think|thinking|thoughts?|reasoning)"
_THOUGHTS = re.compile(rf"[<\[]{_THINK}[>\]].*?([<\[]/\1[>\]]|\Z)", re.DOTALL | re.IGNORECASE)
_END_OF_THOUGHT = re.compile(rf"[<\[]/{_THINK}[>\]]", re.IGNORECASE)
_TERMINAL_CODES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")
_SCRIPTS = re.compile(r"<(script|style)\b[^<>]*>.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_INLINE_TAGS = re.compile(
    r"</?(?:a|b|i|u|s|em|strong|span|code|mark|small|sub|sup)(?:\s[^<>\n]{0,300})?>", re.IGNORECASE
)
_OTHER_TAGS = re.compile(r"</?[a-zA-Z!][^<>\n]{0,300}>")
_LINKS = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\n]{0,300}\)")
_EMPHASIS = re.compile(r"\*+(?=\S)|(?<=\S)\*+|`+|~~|(?<!\w)_+(?=\S)|(?<=[^\s_])_++(?!\w)")
_HEADING = re.compile(r"\s*(#{1,6}\s|```|(-{3,}|={3,}|\*{3,})\s*$)")
_BULLET = re.compile(
    r"^\s*(?:[-*+•◦▪‣·–—>]+\s+|[•◦▪‣]+\s*|\(?\d{1,3}\s*[.):]\s+|\(?[a-z]\)\s+|[-*+]?\s*\[[ xX]?\]\s+)"
)
_QUOTES = "\"'“”„‟‘’«»‹›"
_CHAT = re.compile(
    r"(i['’]?m sorry|i am sorry|sorry,|as an ai\b|i can(?:not|['’]t)\b|sure[,!.]|certainly[,!.]|"
    r"of course[,!.]|okay?[,!.]|absolutely[,!.]|alright[,!.]|i hope\b|let me know\b|"
    r"here(?:['’]s| is| are)\b.*(?::$|\b(?:sentences|features|descriptions)\b))",
    re.IGNORECASE,
)
# What may be around a list, without its spaces: {"sentences": [ … ]}, or a fence.
_AROUND_LIST = re.compile(r'(?:```\w*)?(?:\{"\w+":\})?(?:```)?')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_INVISIBLE = frozenset("\u200b\u2060\ufeff\u00ad")


@dataclass
class Cleaned:
    """The sentences of a reply, without repeats, and how many lines were left out, by reason."""

    sentences: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def clean_reply(text: str, *, cut_off: bool = False) -> Cleaned:
    """Take the sentences out of a reply.

    Bullets, numbers, quotes, markup, terminal codes and control characters go; so do headings and
    what a model says about its answer. A line with too many words is split into its sentences, and
    those that still have too many are left out.
    """
    cleaned = Cleaned()
    lines = [line for line in _visible(text).split("\n") if line.strip()]
    if not lines:
        cleaned.dropped[NOTHING_YET if cut_off else "empty reply"] += 1
    if cut_off and lines:
        lines.pop()
        cleaned.dropped["cut off"] += 1
    kept: list[str] = []
    for line in lines:
        if _HEADING.match(line):
            cleaned.dropped["heading"] += 1
            continue
        for part in _parts(_unwrapped(line)):
            if reason := _reason_against(part):
                cleaned.dropped[reason] += 1
            else:
                kept.append(part)
    cleaned.sentences = distinct(kept)
    if repeated := len(kept) - len(cleaned.sentences):
        cleaned.dropped["repeated"] += repeated
    return cleaned


def _visible(text: str) -> str:
    """Take out what is not to be read: thoughts, scripts, tags, terminal codes, controls."""
    text = _END_OF_THOUGHT.split(_THOUGHTS.sub("\n", text))[-1]
    text = _listed(text)
    text = html.unescape(_TERMINAL_CODES.sub("", text))
    text = _INLINE_TAGS.sub("", _SCRIPTS.sub(" ", text))
    text = _OTHER_TAGS.sub("\n", text)  # paragraphs and items of lists end lines
    lines = text.splitlines()
    return "\n".join("".join(filter(_may_stay, line.replace("\t", " "))) for line in lines)


def _listed(text: str) -> str:
    """Put the texts of a JSON list on lines of their own; anything else stays as it is."""
    start, end = text.find("["), text.rfind("]")
    around = "".join((text[:start] + text[end + 1 :]).split())
    if start < 0 or _AROUND_LIST.fullmatch(around) is None:
        return text
    try:
        listed = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return text
    return "\n".join(listed) if all(isinstance(line, str) for line in listed) else text


def _may_stay(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    return character not in _INVISIBLE and control_character(character) is None


def _unwrapped(line: str) -> str:
    """Take bullet, quotes and emphasis off a line."""
    # Spaces first: on a million of them the search for a bullet would take hours.
    line = _BULLET.sub("", " ".join(line.split()), count=1)
    line = _EMPHASIS.sub("", _LINKS.sub(r"\1", line))
    line = " ".join(unicodedata.normalize("NFC", line).split())
    line = line.rstrip(",") if line[:1] in _QUOTES else line  # a line of a JSON list
    if line[:1] in _QUOTES and line[-1:] in _QUOTES:
        line = line[1:-1].strip()
    return line


def _parts(line: str) -> Iterator[str]:
    if len(line.split()) <= MAX_WORDS:
        yield line
    else:
        yield from _SENTENCE_END.split(line)


def _reason_against(part: str) -> str | None:
    if not any(character.isalpha() for character in part):
        return "no words"
    if len(part.split()) > MAX_WORDS or len(part) > 12 * MAX_WORDS:
        return "too long"
    if _CHAT.match(part):
        return "chat"
    return "heading" if part.endswith((":", "：")) else None
