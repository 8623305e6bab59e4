"""Reply cache, and the cleaning of replies into sentences.

A reply is plain text: nothing in it is executed, followed as an instruction or shown as markup.
"""

import hashlib
import html
import json
import os
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.io import load_json, read_bytes
from promptboost.llm.client import ModelSettings, Reply
from promptboost.pool.text import control_character, distinct, without_zero_width

_FIRST_BYTES = b'{"cut_off": '  # keys are sorted


def reply_key(settings: ModelSettings, question: str, images: Sequence[str] = ()) -> str:
    """Return a digest of model, parameters, question and images, but not of the server's address."""
    identity = _to_json([settings.model, settings.parameters, question, *images])
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


class ReplyCache:
    r"""JSON Lines file of replies, each with its question, model, parameters and date.

    A reply is on disk before :meth:`add` returns. Lines that cannot be read, for example a truncated
    last one, are skipped, counted in ``damaged``, and never changed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damaged = 0
        self._replies: dict[str, Reply] = {}
        self._start = b""  # of the next line
        self._lock = threading.Lock()
        self._read()

    def __len__(self) -> int:
        return len(self._replies)

    def find(
        self, settings: ModelSettings, question: str, images: Sequence[str] = ()
    ) -> Reply | None:
        """Return the reply to a question, or None."""
        return self._replies.get(reply_key(settings, question, images))

    def add(
        self, settings: ModelSettings, question: str, reply: Reply, images: Sequence[str] = ()
    ) -> None:
        """Append a reply to the file, without the images; thread-safe."""
        key = reply_key(settings, question, images)
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
            with self.path.open("ab") as stream:
                stream.write(self._start + f"{_to_json(record)}\n".encode())
                stream.flush()
                os.fsync(stream.fileno())
            self._start = b""
            self._replies[key] = reply

    def _read(self) -> None:
        try:
            content = read_bytes(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PoolError(f"cannot read the replies {self.path}: {error.strerror}") from error
        # A truncated last line has no line break.
        self._start = b"" if not content or content.endswith(b"\n") else b"\n"
        lines = [line for line in content.split(b"\n") if line.strip()]
        for line in lines:
            if (record := _parse(line)) is None:
                self.damaged += 1
            else:
                # Two runs at once may store two replies to the same question; the last one counts.
                self._replies[record[0]] = record[1]
        # A reply cache may have been truncated within its first line.
        ours = content.startswith(_FIRST_BYTES[: len(content)])
        if self.damaged and self.damaged == len(lines) and not ours:
            raise FileFormatError(
                f"{self.path} is not a file of replies; give another name for the replies"
            )


def _parse(line: bytes) -> tuple[str, Reply] | None:
    try:
        record = load_json(line.decode("utf-8"), "a reply")
        key, text = record["key"], record["reply"]
        tokens = record["input_tokens"], record["output_tokens"]
        if not isinstance(key, str) or not isinstance(text, str):
            return None
        if any(type(count) is not int for count in tokens):
            return None
        return key, Reply(text, *tokens, cut_off=bool(record["cut_off"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _to_json(value: Any) -> str:
    # ASCII, because unpaired surrogates in a reply cannot be encoded otherwise.
    return json.dumps(value, sort_keys=True)


#: Reason for a reply without lines whose tokens were spent on reasoning.
NOTHING_YET = "reply cut off before its first line"

#: Encoders read about fifty words at most.
MAX_WORDS = 60

# The reasoning of a model, perhaps truncated; some servers send only its end tag.
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
# Allowed around a list, without spaces: {"sentences": [ … ]}, or a fence.
_AROUND_LIST = re.compile(r'(?:```\w*)?(?:\{"\w+":\})?(?:```)?')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass
class Cleaned:
    """Distinct sentences of a reply, and the number of omitted lines by reason."""

    sentences: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def clean_reply(text: str, *, cut_off: bool = False) -> Cleaned:
    """Extract the sentences of a reply.

    Removes bullets, numbers, quotes, markup, terminal codes, control characters, headings, and remarks of
    the model about its answer. A line with too many words is split into sentences; those that are still
    too long are omitted.
    """
    cleaned = Cleaned()
    lines = [line for line in _visible(text).split("\n") if line.strip()]
    if not lines:
        cleaned.dropped[NOTHING_YET if cut_off else "empty reply"] += 1
    if cut_off and lines:
        lines.pop()
        cleaned.dropped["cut off"] += 1
    sentences: list[str] = []
    for line in lines:
        if _HEADING.match(line):
            cleaned.dropped["heading"] += 1
            continue
        for sentence in _split(_unwrap(line)):
            if reason := _reason_against(sentence):
                cleaned.dropped[reason] += 1
            else:
                sentences.append(sentence)
    cleaned.sentences = distinct(sentences)
    if repeated := len(sentences) - len(cleaned.sentences):
        cleaned.dropped["repeated"] += repeated
    return cleaned


def _visible(text: str) -> str:
    """Remove reasoning, scripts, tags, terminal codes and control characters."""
    text = _END_OF_THOUGHT.split(_THOUGHTS.sub("\n", text))[-1]
    text = _lines_of_list(text)
    text = html.unescape(_TERMINAL_CODES.sub("", text))
    text = _INLINE_TAGS.sub("", _SCRIPTS.sub(" ", text))
    text = _OTHER_TAGS.sub("\n", text)  # paragraphs and list entries end lines
    lines = text.splitlines()
    allowed = ("".join(filter(_is_allowed, line.replace("\t", " "))) for line in lines)
    return "\n".join(map(without_zero_width, allowed))


def _lines_of_list(text: str) -> str:
    """Put the strings of a JSON list on separate lines; return other text unchanged."""
    start, end = text.find("["), text.rfind("]")
    around = "".join((text[:start] + text[end + 1 :]).split())
    if start < 0 or _AROUND_LIST.fullmatch(around) is None:
        return text
    try:
        lines = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return text
    return "\n".join(lines) if all(isinstance(line, str) for line in lines) else text


def _is_allowed(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    return control_character(character) is None


def _unwrap(line: str) -> str:
    """Remove bullet, quotes and emphasis from a line."""
    # Spaces first: the bullet pattern takes quadratic time on them.
    line = _BULLET.sub("", " ".join(line.split()), count=1)
    line = _EMPHASIS.sub("", _LINKS.sub(r"\1", line))
    line = " ".join(unicodedata.normalize("NFC", line).split())
    line = line.rstrip(",") if line[:1] in _QUOTES else line  # a line of a JSON list
    if line[:1] in _QUOTES and line[-1:] in _QUOTES:
        line = line[1:-1].strip()
    return line


def _split(line: str) -> Iterator[str]:
    if len(line.split()) <= MAX_WORDS:
        yield line
    else:
        yield from _SENTENCE_END.split(line)


def _reason_against(sentence: str) -> str | None:
    if not any(character.isalpha() for character in sentence):
        return "no words"
    if len(sentence.split()) > MAX_WORDS or len(sentence) > 12 * MAX_WORDS:
        return "too long"
    if _CHAT.match(sentence):
        return "chat"
    return "heading" if sentence.endswith((":", "：")) else None
