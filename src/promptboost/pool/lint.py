"""Numbered checks of a source of sentences.

Numbers never change their meaning: PP00x are about names, PP01x about sentences, PP02x about files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from promptboost.pool.sources import ClassMatch
from promptboost.pool.text import NameFinder, singular, text_key

_MARKUP = re.compile(
    r"</?[a-z][^>]*>|&(?:[a-z]+|\#\d+);|https?://|\*\*|`|\{[a-z]*\}|^(?:[-*•]|\d{1,2}[.)])\s",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)]*$")
_WORD = re.compile(r"[^\W_]+")
_FEW = 0.1
# "large round eyes", "a bill that curves down": what describes a whole image has more words.
_FRAGMENT_WORDS = 5


@dataclass(frozen=True)
class LintContext:
    """The input of the rules."""

    match: ClassMatch
    class_names: Sequence[str]
    encoder: Any = None  # whose context sentences should fit into

    def texts(self) -> Iterator[tuple[str, str]]:
        """Return every sentence with its class."""
        for name, texts in self.match.texts.items():
            for text in texts:
                yield name, text


@dataclass(frozen=True)
class LintRule:
    """One numbered check: an issue loses sentences or classes, a tip may be fine as it is."""

    code: str
    severity: Literal["issue", "tip"]
    title: str
    check: Callable[[LintContext], Iterable[str]]
    meaning: str


@dataclass(frozen=True)
class LintFinding:
    """A rule that applies, with one detail for each problem."""

    rule: LintRule
    details: tuple[str, ...]


def lint(
    match: ClassMatch, class_names: Sequence[str], encoder: Any = None
) -> tuple[LintFinding, ...]:
    """Check a source and its classes with every rule, in the order of the numbers."""
    context = LintContext(match, class_names, encoder)
    results = ((rule, tuple(rule.check(context))) for rule in RULES)
    return tuple(LintFinding(rule, details) for rule, details in results if details)


def _missing(context: LintContext) -> Iterator[str]:
    resolution = context.match.names
    unused = {name.casefold(): name for name in resolution.unused}
    for name in resolution.missing:
        near = get_close_matches(name.casefold(), unused, n=1, cutoff=0.6)
        yield f"{name} (is it {unused[near[0]]!r}?)" if near else name


def _ambiguous(context: LintContext) -> Iterator[str]:
    for name in context.match.names.ambiguous:
        yield f"{' or '.join(name.entries)} for {' or '.join(name.classes)} ({name.how})"


def _loose(context: LintContext) -> Iterator[str]:
    for match in context.match.names.matches:
        if match.how in ("joined", "plural", "known name"):
            yield f"{match.entry!r} is matched with {match.class_name!r} ({match.how})"


def _empty(context: LintContext) -> Iterator[str]:
    used = {match.entry for match in context.match.names.matches}
    sentences = context.match.source.sentences
    return (entry for entry, texts in sentences.items() if entry in used and not texts)


def _repeated(context: LintContext) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for name, text in context.texts():
        if (key := (name, text_key(text))) in seen:
            yield f"{name}: “{text}”"
        seen.add(key)


def _marked_up(context: LintContext) -> Iterator[str]:
    for name, text in context.texts():
        if odd := _MARKUP.search(text):
            yield f"{name}: {odd[0].strip()!a} in “{text}”"


def _names_another(context: LintContext) -> Iterator[str]:
    finder = NameFinder(context.class_names)
    # The names that the file has for the classes count as their own, too.
    entries = {match.class_name: match.entry for match in context.match.names.matches}
    for name, text in context.texts():
        other = next((named for named in finder.named(text) if named != name), None)
        if other is None:
            continue
        words = _plain_words(text)
        if not any(_plain_words(key) in words for key in {name, entries.get(name, name)}):
            yield f"{name}: “{text}” names {other}"


def _too_long(context: LintContext) -> Iterator[str]:
    encoder = context.encoder
    if encoder is None:
        return
    for name, texts in context.match.texts.items():
        for text, tokens in zip(texts, encoder.count_tokens(texts), strict=True):
            if tokens > encoder.context_length:
                yield f"{name}: {tokens} tokens, {encoder.context_length} are read, in “{text}”"


def _fragments(context: LintContext) -> Iterator[str]:
    source = context.match.source
    if source.phrase is not None or source.kind != "plain":
        return
    texts = [text for _, text in context.texts()]
    ended = sum(_SENTENCE_END.search(text) is not None for text in texts)
    # "a brown hen on her eggs in a nest" has no full stop, but is a complete description.
    short = [text for text in texts if len(text.split()) <= _FRAGMENT_WORDS]
    if ended < _FEW * len(texts) and 2 * len(short) > len(texts):
        yield f"{len(texts) - ended} of {len(texts)} texts do not end as a sentence: “{short[0]}”"


def _without_words(context: LintContext) -> Iterator[str]:
    """Find "." and "1.", left over where a reply was cut into sentences."""
    for name, text in context.texts():
        if not any(map(str.isalpha, text)):
            yield f"{name}: “{text}”"


def _plain_words(text: str) -> str:
    # Spaces around it all: a name is found as whole words, in the singular or the plural.
    return f" {' '.join(singular(word) for word in _WORD.findall(text.casefold()))} "


def _blank(context: LintContext) -> Iterator[str]:
    return (f"{name}: {count}" for name, count in context.match.source.blank.items())


# fmt: off
RULES = (
    LintRule("PP001", "issue", "Missing classes", _missing,
     'No name in the source matches. List other names in a file {"class": ["other '
     'name", …]} as --synonyms; without sentences they have templates only.'),
    LintRule("PP002", "issue", "Names that fit in more than one way", _ambiguous,
     "They are not matched. Choose with --synonyms, or rename one."),
    LintRule("PP003", "tip", "Names of no class", lambda context: context.match.names.unused,
     "Their sentences are not used. If one is another name of a class, add it to --synonyms; in a "
     "folder they may be files of another dataset."),
    LintRule("PP004", "tip", "Names matched loosely", _loose,
     "They are equal only without spaces and marks, in the plural, or by a list of names in papers. "
     "Check that they are right."),
    LintRule("PP010", "issue", "Empty lists", _empty,
     "The class has no usable sentence."),
    LintRule("PP011", "tip", "Names with blank sentences", _blank,
     "The number of sentences that were left out."),
    LintRule("PP012", "tip", "Repeated sentences", _repeated,
     "They differ from an earlier one of the class in case and space at most; one is kept."),
    LintRule("PP013", "issue", "Control characters",
     lambda context: context.match.source.skipped,
     "They are left out. The file may be damaged or hostile."),
    LintRule("PP014", "tip", "Markup", _marked_up,
     "Tags, list marks, links, placeholders: the encoder reads them as words."),
    LintRule("PP015", "tip", "Sentences that name another class and not their own", _names_another,
     "They may be in the wrong list."),
    LintRule("PP016", "issue", "Sentences over the context length", _too_long,
     "The encoder reads their beginning only. Shorten them."),
    LintRule("PP017", "tip", "Fragments without a class", _fragments,
     "Most are no sentences. Read as --kind dclip they become “owl, which has large eyes.”"),
    LintRule("PP018", "tip", "Texts without a word", _without_words,
     "They are used like the others but contain no information about the class; remove them."),
    LintRule("PP020", "tip", "Stray files", lambda context: context.match.source.stray,
     "They are not of the format of the folder and were not read."),
)
# fmt: on
