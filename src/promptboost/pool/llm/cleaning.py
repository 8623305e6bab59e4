"""Replies become sentences, whatever a model wraps around them.

A reply is text and nothing else: no part of it is obeyed, run or shown as markup.
"""

import html
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from promptboost.pool.text import control_character, text_key

__all__ = ["MAX_WORDS", "NOTHING_YET", "Cleaned", "clean_reply", "distinct"]

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
    """What is left of a reply.

    Attributes
    ----------
    sentences : list of str
        In order, without repeats.
    dropped : Counter of str
        How many lines were left out, by reason: ``empty reply``, :data:`NOTHING_YET`, ``too long``,
        ``cut off``, ``heading``, ``chat``, ``no words``, ``repeated``.
    """

    sentences: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def clean_reply(text: str, *, max_words: int = MAX_WORDS, cut_off: bool = False) -> Cleaned:
    r"""Take the sentences out of a reply.

    Bullets, numbers, quotes, markup, terminal codes and control characters go; so do headings and
    what a model says about its answer. A line with too many words is split into its sentences, and
    those that still have too many are left out.

    Parameters
    ----------
    text : str
        What the model said.
    max_words : int, default=60
        Longest sentence kept.
    cut_off : bool, default=False
        The reply ended in the middle of its last line, which is left out.

    Examples
    --------
    >>> clean_reply("Sure! Here are two:\n1. **An owl** has round eyes.\n2. \"A hooked beak.\"").sentences
    ['An owl has round eyes.', 'A hooked beak.']
    >>> clean_reply("A beak.\nA bea", cut_off=True).dropped
    Counter({'cut off': 1})
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
        for part in _parts(_unwrapped(line), max_words):
            if reason := _reason_against(part, max_words):
                cleaned.dropped[reason] += 1
            else:
                kept.append(part)
    cleaned.sentences = distinct(kept)
    if repeated := len(kept) - len(cleaned.sentences):
        cleaned.dropped["repeated"] += repeated
    return cleaned


def distinct(sentences: Iterable[str]) -> list[str]:
    """Leave out sentences that differ from an earlier one in case and white space only.

    Examples
    --------
    >>> distinct(["A beak.", "a  beak.", "Wings."])
    ['A beak.', 'Wings.']
    """
    first: dict[str, str] = {}
    for sentence in sentences:
        first.setdefault(text_key(sentence), sentence)
    return list(first.values())


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
        found = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return text
    return "\n".join(found) if all(isinstance(line, str) for line in found) else text


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


def _parts(line: str, max_words: int) -> Iterator[str]:
    if len(line.split()) <= max_words:
        yield line
    else:
        yield from _SENTENCE_END.split(line)


def _reason_against(part: str, max_words: int) -> str | None:
    if not any(character.isalpha() for character in part):
        return "no words"
    if len(part.split()) > max_words or len(part) > 12 * max_words:
        return "too long"
    if _CHAT.match(part):
        return "chat"
    return "heading" if part.endswith((":", "：")) else None
