"""Numbered findings about a source of sentences: what to look at before fitting with it.

Numbers never change their meaning: PP00x are about names, PP01x about sentences, PP02x about files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from promptboost.pool import sentence_rules as sentences
from promptboost.pool.meeting import Meeting

if TYPE_CHECKING:
    from promptboost.encoders.base import Encoder

__all__ = ["RULES", "Finding", "Question", "Rule", "check_meeting"]

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
        From :func:`promptboost.pool.meeting.meet`.
    class_names : sequence of str
        All classes.
    encoder : Encoder, optional
        Whose context length sentences have to fit.

    Examples
    --------
    >>> from pathlib import Path
    >>> from promptboost.pool.meeting import meet
    >>> from promptboost.pool.readers import Source
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
    return sentences.too_long(question.meeting.texts, question.encoder)


def _names_another(question: Question) -> Iterator[str]:
    own = {match.class_name: match.entry for match in question.meeting.resolution.matches}
    return sentences.names_another(question.meeting.texts, question.class_names, own)


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
        lambda question: sentences.empty(question.meeting),
    ),
    Rule(
        "PP011",
        "tip",
        "Names with blank sentences",
        "As many as said are left out.",
        lambda question: sentences.blank(question.meeting),
    ),
    Rule(
        "PP012",
        "tip",
        "Repeated sentences",
        "They differ from an earlier one of the class in case and space at most; one is kept.",
        lambda question: sentences.repeated(question.meeting.texts),
    ),
    Rule(
        "PP013",
        "issue",
        "Control characters",
        "Such sentences are a sign of a damaged or hostile file; they are left out.",
        lambda question: sentences.refused(question.meeting),
    ),
    Rule(
        "PP014",
        "tip",
        "Markup or invisible characters",
        "Tags, list marks, links, placeholders: the encoder reads them as words.",
        lambda question: sentences.marked_up(question.meeting.texts),
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
        lambda question: sentences.fragments(question.meeting),
    ),
    Rule(
        "PP018",
        "tip",
        "Texts without a word",
        "They are used like the others. Take them out of the file; they say nothing about the class.",
        lambda question: sentences.without_words(question.meeting.texts),
    ),
    Rule(
        "PP020",
        "tip",
        "Stray files",
        "They are not of the format of the folder and were not read.",
        lambda question: iter(question.meeting.source.stray),
    ),
)
