"""Numbered findings about a source of sentences: what to look at before fitting with it.

Numbers never change their meaning: PP00x are about names, PP01x about sentences, PP02x about files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from promptboost.pool.sources import Meeting
from promptboost.pool.text import NameFinder, singular, text_key

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
    "RULES",
    "Finding",
    "Question",
    "Rule",
    "check_meeting",
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


Severity = Literal["issue", "tip"]


@dataclass(frozen=True)
class Question:
    """What the rules look at."""

    meeting: Meeting
    class_names: Sequence[str]
    encoder: "Encoder | None" = None


@dataclass(frozen=True)
class Rule:
    """One numbered check: an issue costs sentences or classes, a tip is worth a look."""

    code: str
    severity: Severity
    title: str
    meaning: str
    look: Callable[[Question], Iterable[str]]


@dataclass(frozen=True)
class Finding:
    """A rule that found something; one detail for each thing found."""

    rule: Rule
    details: tuple[str, ...]


def check_meeting(
    meeting: Meeting, class_names: Sequence[str], encoder: "Encoder | None" = None
) -> tuple[Finding, ...]:
    """Put every rule to a source and its classes, in the order of the numbers.

    Parameters
    ----------
    meeting : Meeting
        From :func:`promptboost.pool.sources.meet`.
    class_names : sequence of str
        All classes.
    encoder : Encoder, optional
        Whose context length sentences have to fit.

    Examples
    --------
    >>> from pathlib import Path
    >>> from promptboost.pool.sources import meet
    >>> from promptboost.pool.readers.source import Source
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("Big eyes.", "big  Eyes.")})
    >>> for finding in check_meeting(meet(source, ["owl", "bat"]), ["owl", "bat"]):
    ...     print(finding.rule.code, finding.rule.title, *finding.details)
    PP001 Missing classes bat
    PP012 Repeated sentences owl: “big  Eyes.”
    """
    question = Question(meeting, class_names, encoder)
    found = ((rule, tuple(rule.look(question))) for rule in RULES)
    return tuple(Finding(rule, details) for rule, details in found if details)


def _missing(question: Question) -> Iterator[str]:
    resolution = question.meeting.resolution
    unused = {name.casefold(): name for name in resolution.unused}
    for name in resolution.missing:
        near = get_close_matches(name.casefold(), unused, n=1, cutoff=0.6)
        yield f"{name} (is it {unused[near[0]]!r}?)" if near else name


def _ambiguous(question: Question) -> Iterator[str]:
    for item in question.meeting.resolution.ambiguous:
        yield f"{' or '.join(item.entries)} for {' or '.join(item.classes)} ({item.how})"


def _unused(question: Question) -> Iterator[str]:
    return iter(question.meeting.resolution.unused)


def _loose(question: Question) -> Iterator[str]:
    for match in question.meeting.resolution.matches:
        if match.how in ("joined", "plural", "known name"):
            yield f"{match.entry!r} is taken for {match.class_name!r} ({match.how})"


def _too_long(question: Question) -> Iterator[str]:
    return too_long(question.meeting.texts, question.encoder)


def _names_another(question: Question) -> Iterator[str]:
    own = {match.class_name: match.entry for match in question.meeting.resolution.matches}
    return names_another(question.meeting.texts, question.class_names, own)


RULES = (
    Rule(
        "PP001",
        "issue",
        "Missing classes",
        "No name in the source is theirs. Give other names they go by in a file "
        '{"class": ["other name", …]} as --synonyms; without sentences they have templates only.',
        _missing,
    ),
    Rule(
        "PP002",
        "issue",
        "Names that fit in more than one way",
        "Nothing was taken on a guess. Say which is meant with --synonyms, or rename one.",
        _ambiguous,
    ),
    Rule(
        "PP003",
        "tip",
        "Names of no class",
        "Their sentences are not used. If one is a class under another name, say so with --synonyms; "
        "in a folder they may be files of another dataset.",
        _unused,
    ),
    Rule(
        "PP004",
        "tip",
        "Names that met loosely",
        "They are the same only without spaces and marks, in the plural, or because papers are known "
        "to call the class of a benchmark so. Look whether that is right.",
        _loose,
    ),
    Rule(
        "PP010",
        "issue",
        "Empty lists",
        "The name is there and no sentence that can be used.",
        lambda question: empty(question.meeting),
    ),
    Rule(
        "PP011",
        "tip",
        "Names with blank sentences",
        "As many as said are left out.",
        lambda question: blank(question.meeting),
    ),
    Rule(
        "PP012",
        "tip",
        "Repeated sentences",
        "They differ from an earlier one of the class in case and space at most; one is kept.",
        lambda question: repeated(question.meeting.texts),
    ),
    Rule(
        "PP013",
        "issue",
        "Control characters",
        "Such sentences are a sign of a damaged or hostile file; they are left out.",
        lambda question: refused(question.meeting),
    ),
    Rule(
        "PP014",
        "tip",
        "Markup or invisible characters",
        "Tags, list marks, links, placeholders: the encoder reads them as words.",
        lambda question: marked_up(question.meeting.texts),
    ),
    Rule(
        "PP015",
        "tip",
        "Sentences that name another class and not their own",
        "They may be right, or in the wrong list.",
        _names_another,
    ),
    Rule(
        "PP016",
        "issue",
        "Sentences over the context length",
        "The encoder reads their beginning only. Shorten them.",
        _too_long,
    ),
    Rule(
        "PP017",
        "tip",
        "Fragments without a class",
        "Most are no sentences. Read as --kind dclip they become “owl, which has large eyes.”",
        lambda question: fragments(question.meeting),
    ),
    Rule(
        "PP018",
        "tip",
        "Texts without a word",
        "They are used like the others. Take them out of the file; they say nothing about the class.",
        lambda question: without_words(question.meeting.texts),
    ),
    Rule(
        "PP020",
        "tip",
        "Stray files",
        "They are not of the format of the folder and were not read.",
        lambda question: iter(question.meeting.source.stray),
    ),
)
