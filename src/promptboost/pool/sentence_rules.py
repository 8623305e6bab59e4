"""What can be odd about sentences: one function a rule, one line a thing found."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from promptboost.pool.meeting import Meeting
from promptboost.pool.naming import NameFinder
from promptboost.pool.spellings import singular
from promptboost.pool.text import text_key

if TYPE_CHECKING:
    from promptboost.encoders.base import Encoder

__all__ = [
    "blank",
    "empty",
    "fragments",
    "marked_up",
    "names_another",
    "refused",
    "repeated",
    "too_long",
    "without_words",
]

Texts = Mapping[str, Sequence[str]]

_MARKUP = re.compile(
    r"</?[a-z][^>]*>|&(?:[a-z]+|\#\d+);|https?://|\*\*|`|\{[a-z]*\}|^(?:[-*•]|\d{1,2}[.)])\s"
    "|[\u00ad\u200b-\u200d\u2060\ufeff]",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)]*$")
_WORD = re.compile(r"[^\W_]+")
_FEW = 0.1


def empty(meeting: Meeting) -> Iterator[str]:
    """Names that are there without a sentence."""
    used = {match.entry for match in meeting.resolution.matches}
    return (entry for entry, kept in meeting.source.sentences.items() if entry in used and not kept)


def blank(meeting: Meeting) -> Iterator[str]:
    """How many blank sentences each name had."""
    return (f"{entry}: {count}" for entry, count in meeting.source.blank.items())


def refused(meeting: Meeting) -> Iterator[str]:
    """Sentences that were left out for what they contain."""
    return (f"{item.entry}: {item.why}" for item in meeting.source.refused)


def repeated(texts: Texts) -> Iterator[str]:
    """Sentences that a class has already."""
    for name, own in texts.items():
        seen: set[str] = set()
        for text in own:
            if (key := text_key(text)) in seen:
                yield f"{name}: “{text}”"
            seen.add(key)


def marked_up(texts: Texts) -> Iterator[str]:
    """Sentences with something in them that is not language."""
    for name, own in texts.items():
        for text in own:
            if odd := _MARKUP.search(text):
                yield f"{name}: {odd[0].strip()!a} in “{text}”"


def without_words(texts: Texts) -> Iterator[str]:
    """Texts that say nothing: "." and "1.", left over where a reply was cut into sentences."""
    for name, own in texts.items():
        for text in own:
            if not any(map(str.isalpha, text)):
                yield f"{name}: “{text}”"


def names_another(
    texts: Texts, class_names: Sequence[str], entries: Mapping[str, str]
) -> Iterator[str]:
    """Sentences that name a class which is not theirs, and not their own.

    `entries` are the names the file has for the classes: those count as their own, too.
    """
    finder = NameFinder(class_names)
    for name, own in texts.items():
        keys = {_plain_words(name), _plain_words(entries.get(name, name))}
        for text in own:
            other = next((found for found in finder.named(text) if found != name), None)
            if other is not None and not any(key in _plain_words(text) for key in keys):
                yield f"{name}: “{text}” names {other}"


def too_long(texts: Texts, encoder: "Encoder | None") -> Iterator[str]:
    """Sentences with more tokens than the encoder reads."""
    if encoder is None:
        return
    for name, own in texts.items():
        for text, tokens in zip(own, encoder.count_tokens(own), strict=True):
            if tokens > encoder.context_length:
                yield f"{name}: {tokens} tokens, {encoder.context_length} are read, in “{text}”"


def fragments(meeting: Meeting) -> Iterator[str]:
    """Say that a source of sentences seems to hold none."""
    source = meeting.source
    if source.phrase is not None or source.kind != "plain":
        return
    texts = [text for own in meeting.texts.values() for text in own]
    ended = sum(_SENTENCE_END.search(text) is not None for text in texts)
    if texts and ended < _FEW * len(texts):
        yield f"{len(texts) - ended} of {len(texts)} texts do not end as a sentence: “{texts[0]}”"


def _plain_words(text: str) -> str:
    # Spaces around it all: a name is found as whole words, in the singular or the plural.
    return f" {' '.join(singular(word) for word in _WORD.findall(text.casefold()))} "
