"""Prompt pools: for every class the sentences that boosting chooses from."""

import hashlib
import json
import re
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice, product
from statistics import median
from typing import Any, Literal, TypeVar, get_args

from promptboost.errors import PoolError, SettingError, a_type, few
from promptboost.pool.templates import TEMPLATES, check_templates, fill, plain_template
from promptboost.pool.text import check_class_names, clean, is_listed, text_key

#: The source of filled templates.
TEMPLATE = "template"
#: The source of templates followed by a sentence.
CONCAT = "concat"

Concatenate = Literal["none", "one", "all"]

Sentences = Mapping[str, Sequence[str]]
"""Sentences by class."""

_BATCH = 4096  # texts hashed at once
_SHOWN = 10  # texts; longer lists have a short repr


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sentence of a pool, and where it comes from."""

    text: str  # what is embedded and shown
    source: str  # "template", "descriptions" or the name given to them, or "concat"
    template: str | None = None  # the template it was made with, {} and all
    sentence: str | None = None  # the description; of a concatenation, its second half
    origin: str | None = None  # of a concatenation, the source of its sentence


_Item = TypeVar("_Item", covariant=True)
# A template or sentence, and its share of the text: (None, None) where a prompt has none.
_Half = tuple[str | None, str | None]
_NO_HALF: _Half = (None, None)


class _LazySequence(Sequence[_Item]):
    """A sequence computed on access; equal to any list or tuple with the same items."""

    @abstractmethod
    def _at(self, index: int) -> _Item: ...

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self))[index]
        return self._at(numbers) if isinstance(numbers, int) else tuple(map(self._at, numbers))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _LazySequence | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))


class _Numbered(dict[Any, int]):
    """Numbers its keys in the order in which they are first looked up."""

    def __init__(self) -> None:
        self.keys_in_order: list[Any] = []

    def __missing__(self, key: Any) -> int:
        self.keys_in_order.append(key)
        return self.setdefault(key, len(self))


class ClassPrompts(_LazySequence[Prompt]):
    """The prompts of one class as three numbers each; each template and sentence is stored once.

    Templates are filled with the `phrase`: the name of the class, or a noun phrase for it.
    """

    def __init__(self, phrase: str, prompts: Iterable[Prompt] = ()) -> None:
        self.phrase = phrase
        # Pairs of source and origin, first halves and second halves; and for each prompt its numbers.
        self._tables = _Numbered(), _Numbered(), _Numbered()
        self._numbers = array("i"), array("i"), array("i")
        for prompt in prompts:
            self.append(prompt)

    def append(self, prompt: Prompt) -> None:
        """Add a prompt while the pool is made."""
        start = None if prompt.template is None else fill(prompt.template, self.phrase)
        halves = [half for half in (start, prompt.sentence) if half is not None]
        if halves and all(map(str.strip, halves)) and " ".join(halves) == prompt.text:
            first, second = (prompt.template, start), (prompt.sentence, prompt.sentence)
        else:  # the text is not the two joined
            first, second = (prompt.template, prompt.text), (prompt.sentence, None)
        self._extend((prompt.source, prompt.origin), [first], [second])

    def extend(self, other: "ClassPrompts") -> None:
        """Add the prompts of another list."""
        for table, numbers, theirs, added in zip(
            self._tables, self._numbers, other._tables, other._numbers, strict=True
        ):
            renumbered = [table[key] for key in theirs.keys_in_order]
            numbers.extend(renumbered[number] for number in added)

    def extend_product(
        self,
        source: str,
        templates: Sequence[str] | None,
        sentences: Sequence[str] | None,
        origin: str | None = None,
    ) -> None:
        """Add every template followed by every sentence; None leaves that half out."""
        starts = [_NO_HALF]
        if templates is not None:
            starts = [(template, fill(template, self.phrase)) for template in templates]
        ends = [_NO_HALF] if sentences is None else [(text, text) for text in sentences]
        self._extend((source, origin), starts, ends)

    def _extend(
        self, source: tuple[str, str | None], starts: Sequence[_Half], ends: Sequence[_Half]
    ) -> None:
        columns = zip(self._tables, ([source], starts, ends), strict=True)
        added = product(*([table[key] for key in keys] for table, keys in columns))
        for numbers, column in zip(self._numbers, zip(*added, strict=True), strict=False):
            numbers.extend(column)

    def __len__(self) -> int:
        return len(self._numbers[0])

    def _at(self, index: int) -> Prompt:
        (source, origin), (template, start), (sentence, end) = (
            table.keys_in_order[numbers[index]]
            for table, numbers in zip(self._tables, self._numbers, strict=True)
        )
        return Prompt(_joined(start or "", end or ""), source, template, sentence, origin)

    def texts(self, key: Callable[[str], str] = str) -> Iterator[str]:
        """Return all texts, in order, with `key` applied to the halves of each."""
        starts, ends = (
            [key(text or "") for _, text in table.keys_in_order] for table in self._tables[1:]
        )
        return (_joined(starts[a], ends[b]) for a, b in zip(*self._numbers[1:], strict=True))

    def counts(self) -> Counter[tuple[str, str | None]]:
        """Count the prompts by source and, for concatenations, source of the sentence."""
        keys = self._tables[0].keys_in_order
        return Counter({keys[s]: n for s, n in Counter(self._numbers[0]).items()})

    def distinct(self) -> "ClassPrompts":
        """Keep the first of the prompts that differ only in case and white space."""
        # The space between the halves keeps them apart under every step of text_key, so the key of
        # a pair is the pair of the keys: a few hundred to compute, not ten thousand.
        first: dict[str, int] = {}
        keys = enumerate(self.texts(text_key))
        return self._selected(first.setdefault(key, i) == i for i, key in keys)

    def of(self, sources: Collection[str]) -> "ClassPrompts":
        """Keep the prompts of some sources."""
        wanted = [not {*key}.isdisjoint(sources) for key in self._tables[0].keys_in_order]
        return self._selected(wanted[s] for s in self._numbers[0])

    def _selected(self, mask: Iterable[object]) -> "ClassPrompts":
        mask = bytearray(map(bool, mask))
        result = ClassPrompts(self.phrase)
        result._tables = self._tables
        for numbers, selected in zip(self._numbers, result._numbers, strict=True):
            selected.extend(compress(numbers, mask))
        return result

    def __repr__(self) -> str:
        return f"<{len(self)} prompts>"


def _joined(start: str, end: str) -> str:
    return f"{start} {end}" if start and end else start + end


class _Texts(_LazySequence[str]):
    """The texts of the prompts of a class."""

    def __init__(self, prompts: ClassPrompts) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def _at(self, index: int) -> str:
        return self._prompts[index].text  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return self._prompts.texts()

    def __repr__(self) -> str:
        if len(self) <= _SHOWN:
            return repr(tuple(self))
        return f"<{len(self)} texts, from {self[0]!r} to {self[-1]!r}>"


@dataclass(frozen=True, eq=False, repr=False)
class PromptPool:
    """For every class an ordered list of prompts; made by :func:`build_pool`.

    A pool never changes. Two pools are equal when their fingerprints are. Prompts are created on
    access: a pool stores each template and each sentence once, and three numbers for each prompt.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> pool = build_pool(["owl", "bat"], descriptions={"owl": ["large round eyes"]})
    >>> pool.prompts("owl")[-1].source
    'descriptions'
    >>> pool.missing, pool.statistics()["prompts_by_source"]
    (('bat',), {'template': 32, 'descriptions': 1})
    """

    prompts_by_class: Mapping[str, ClassPrompts]  # in the order of the labels; sizes may differ
    templates: tuple[str, ...]  # shared by all classes; boosting starts from them
    missing: tuple[str, ...] = ()  # classes without descriptions, where descriptions were given
    unused: tuple[str, ...] = ()  # names in the descriptions that are no class of this pool

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return tuple(self.prompts_by_class)

    @property
    def size(self) -> int:
        """The number of prompts of all classes."""
        return sum(map(len, self.prompts_by_class.values()))

    def texts(self, class_name: str) -> Sequence[str]:
        """Return the texts of the prompts of one class, in order, each created on access."""
        return _Texts(self.prompts(class_name))

    def prompts(self, class_name: str) -> ClassPrompts:
        """Return the prompts of one class, in order."""
        try:
            return self.prompts_by_class[class_name]
        except KeyError:
            raise PoolError(
                f"the pool has no class {class_name!r}; it has {', '.join(self.class_names[:10])}"
                f"{', …' if len(self.class_names) > 10 else ''}"
            ) from None

    def template_texts(self) -> list[list[str]]:
        """Return the filled templates of every class, in the same order."""
        return [[fill(template, phrase) for template in self.templates] for phrase in self.phrases]

    @property
    def phrases(self) -> tuple[str, ...]:
        """The name of each class, or a noun phrase for it, as templates use it."""
        return tuple(prompts.phrase for prompts in self.prompts_by_class.values())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of class names, templates, texts and their order."""
        texts = (self.texts(name) for name in self.class_names)
        return words_fingerprint(self.class_names, self.templates, texts)

    @cached_property
    def prompts_by_source(self) -> dict[str, int]:
        """The number of prompts of each source, in order of first appearance."""
        totals: Counter[str] = Counter()
        for prompts in self.prompts_by_class.values():
            for (source, _), n in prompts.counts().items():
                totals[source] += n
        return dict(totals)

    def statistics(self) -> dict[str, Any]:
        """Count classes, templates and prompts, by class and by source; ready for JSON."""
        sizes = [*map(len, self.prompts_by_class.values())]
        return {
            "classes": len(self.class_names),
            "templates": len(self.templates),
            "prompts": self.size,
            "prompts_per_class": {
                "min": min(sizes),
                "median": float(median(sizes)),
                "max": max(sizes),
            },
            "prompts_by_source": dict(self.prompts_by_source),
            "missing": list(self.missing),
            "unused": list(self.unused),
            "fingerprint": self.fingerprint,
        }

    def __contains__(self, class_name: object) -> bool:
        return class_name in self.prompts_by_class

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptPool):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<PromptPool: {len(self.class_names)} classes, {self.size} prompts>"


def words_fingerprint(
    class_names: Sequence[str], templates: Sequence[str], texts_by_class: Iterable[Iterable[str]]
) -> str:
    """Hash class names, templates, texts and their order.

    Saved ensembles contain it: it must stay the same for equal pools.
    """
    digest = hashlib.blake2b(digest_size=16)
    # JSON marks where each string and list ends: ["ab", "c"] and ["a", "bc"] differ.
    digest.update(json.dumps([list(class_names), list(templates)]).encode())
    for texts in texts_by_class:
        digest.update(b"[")
        remaining, separator = iter(texts), b""
        # Batches give the bytes of one long list without creating it.
        while batch := list(islice(remaining, _BATCH)):
            digest.update(separator + json.dumps(batch)[1:-1].encode())
            separator = b", "
        digest.update(b"]")
    return digest.hexdigest()


def build_pool(
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    descriptions: Sentences | Mapping[str, Sentences] | None = None,
    concatenate: Concatenate = "none",
    source: str = "descriptions",
    phrases: Mapping[str, str] | None = None,
) -> PromptPool:
    """Build a pool from class names, templates and sentences about the classes.

    A class has its filled templates first, then its descriptions, then the concatenations of
    both. A prompt that differs from an earlier one of its class only in case or white space is
    left out.

    Parameters
    ----------
    class_names : sequence of str
        Distinct names, in the order of the labels.
    templates : sequence of str, optional
        Sentences with one ``{}``; the package's own by default, none if empty.
    descriptions : mapping of str to sequence of str, or mapping of such mappings, optional
        Sentences by class; or several such mappings by the name of their source. Names are matched
        as in :func:`read_pool`. Without templates every class needs some.
    concatenate : {"none", "one", "all"}, default="none"
        Also follow a filled template by each description: the plain photo, or every one.
    source : str, default="descriptions"
        The source of prompts from `descriptions` without a source.
    phrases : mapping of str to str, optional
        By class name, the noun phrase that templates are filled with in place of the name, such as
        ``{"pug": "a pug dog"}``.

    Examples
    --------
    >>> pool = build_pool(
    ...     ["owl", "flamingo"],
    ...     templates=["a photo of a {}."],
    ...     descriptions={"Owl": ["large round eyes"], "Flamingo": ["a long pink neck"]},
    ...     concatenate="one",
    ... )
    >>> pool
    <PromptPool: 2 classes, 6 prompts>
    >>> pool.texts("owl")
    ('a photo of an owl.', 'large round eyes', 'a photo of an owl. large round eyes')
    >>> pool.template_texts()
    [['a photo of an owl.'], ['a photo of a flamingo.']]
    """
    names = check_class_names(class_names)
    shared = TEMPLATES if templates is None else check_templates(templates)
    joining = _joining_templates(concatenate, shared)
    phrase_of = _phrases(names, phrases or {})
    by_source = _by_source(descriptions or {}, clean(source, where="source"))
    sentences: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    unused: dict[str, None] = {}
    for origin, by_class in by_source.items():
        matched, strange = sentences_by_class(names, by_class)
        for name, texts in matched.items():
            sentences[name][origin] = texts
        unused |= dict.fromkeys(strange)
    missing = tuple(name for name in names if not sentences[name])
    if joining and len(missing) == len(names):
        raise PoolError(
            f"concatenate={concatenate!r} needs descriptions, and no class has any: "
            "give descriptions, or concatenate='none'"
        )
    if not shared and missing:
        raise PoolError(
            f"no prompts for the class {few([repr(name) for name in missing], 1)}: add descriptions "
            "under that name, or use templates"
        )
    return PromptPool(
        prompts_by_class={
            name: _composed(phrase_of.get(name, name), shared, sentences[name], joining)
            for name in names
        },
        templates=shared,
        missing=missing if descriptions is not None else (),
        unused=tuple(unused),
    )


def _phrases(class_names: Sequence[str], phrases: Mapping[str, str]) -> dict[str, str]:
    """Return the noun phrases by class name, cleaned."""
    if strange := [name for name in phrases if name not in class_names]:
        raise PoolError(
            f"phrases has {strange[0]!r}, which is no class; spell it as in class_names"
        )
    return {name: clean(text, where=f"the phrase of {name!r}") for name, text in phrases.items()}


def _composed(
    phrase: str,
    templates: tuple[str, ...],
    sentences: Mapping[str, Sequence[str]],
    joining: tuple[str, ...],
) -> ClassPrompts:
    prompts = ClassPrompts(phrase)
    prompts.extend_product(TEMPLATE, templates, None)
    for source, texts in sentences.items():
        prompts.extend_product(source, None, texts)
    for source, texts in sentences.items():
        prompts.extend_product(CONCAT, joining, texts, origin=source)
    return prompts.distinct()


def _by_source(descriptions: Mapping[str, Any], source: str) -> dict[str, Sentences]:
    nested = [name for name, value in descriptions.items() if isinstance(value, Mapping)]
    if (flat := [name for name in descriptions if name not in nested]) and nested:
        raise PoolError(
            f"the descriptions mix sources and classes: {nested[0]!r} has sentences by "
            f"class, {flat[0]!r} is a list; give one or the other"
        )
    by_source: dict[str, Sentences] = {} if nested else {source: descriptions}
    for key in nested:
        name = clean(key, where="the name of a source")
        if name in by_source:
            raise PoolError(f"two sources are called {name!r}: rename one")
        by_source[name] = descriptions[key]
    if reserved := {TEMPLATE, CONCAT} & by_source.keys():
        raise PoolError(f"a source cannot be called {reserved.pop()!r}: the name is reserved")
    return by_source


def _joining_templates(concatenate: str, templates: tuple[str, ...]) -> tuple[str, ...]:
    if concatenate not in get_args(Concatenate):
        raise SettingError(f"concatenate must be 'none', 'one' or 'all', not {concatenate!r}")
    if concatenate == "one":
        return (plain_template(templates),)
    if concatenate == "all" and not templates:
        raise PoolError("concatenate='all' needs templates: give some, or concatenate='one'")
    return templates if concatenate == "all" else ()


def sentences_by_class(
    class_names: Sequence[str], descriptions: Sentences
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the sentences of each class, and the names that match no class."""
    if not descriptions:
        return {}, ()
    from promptboost.pool.names import match_names

    matched = match_names(class_names, descriptions)
    matched.check_clear("the descriptions")
    by_class: dict[str, list[str]] = {}
    for match in matched.matches:
        label, sentences = f"the class {match.entry!r}", descriptions[match.entry]
        if not is_listed(sentences):
            raise PoolError(
                f'{label} needs a list of sentences, not {a_type(sentences)}: write ["sentence", …]'
            )
        cleaned = [
            clean(sentence, where=f"sentence {number} of {label}")
            for number, sentence in enumerate(sentences, start=1)
        ]
        if cleaned:
            by_class.setdefault(match.class_name, []).extend(cleaned)
    return by_class, matched.unused


def union(first: PromptPool, *others: PromptPool) -> PromptPool:
    """Join pools: all prompts of the first, then the new ones of each other.

    Classes are matched by name, spelled the same, and keep the order in which they first appear;
    so do templates. A prompt that differs from an earlier one of its class only in case or white
    space is left out.
    """
    pools = (first, *others)
    names = check_class_names(tuple(dict.fromkeys(n for pool in pools for n in pool.class_names)))
    phrases = {
        name: prompts.phrase
        for pool in reversed(pools)
        for name, prompts in pool.prompts_by_class.items()
    }
    joined = {name: ClassPrompts(phrases[name]) for name in names}
    for pool in pools:
        for name, prompts in pool.prompts_by_class.items():
            joined[name].extend(prompts)
    distinct = {name: prompts.distinct() for name, prompts in joined.items()}
    described = {
        name
        for name, prompts in distinct.items()
        if any(source != TEMPLATE for source, _ in prompts.counts())
    }
    missing = {name for pool in pools for name in pool.missing} - described
    unused = dict.fromkeys(name for pool in pools for name in pool.unused)
    return PromptPool(
        prompts_by_class=distinct,
        templates=check_templates(template for pool in pools for template in pool.templates),
        missing=tuple(name for name in names if name in missing),
        unused=tuple(name for name in unused if name not in names),
    )


def sentence_sources(pool: PromptPool, wanted: str = "") -> list[str]:
    """List the sources of the pool's sentences, or those of them that are `wanted`."""
    sources = [source for source in pool.prompts_by_source if source not in (TEMPLATE, CONCAT)]
    words = [word.strip() for word in wanted.split(",") if word.strip()]
    if not words:
        return sources
    for word in words:
        if not any(source_matches(source, word) for source in sources):
            has = f"it has {', '.join(sources)}" if sources else "it has templates only"
            raise PoolError(
                f"the pool has no sentences from {word!r}; {has}. Build one with the file that has "
                "them: promptboost pool build --help"
            )
    return [source for source in sources if any(source_matches(source, word) for word in words)]


def of_sources(pool: PromptPool, wanted: str) -> PromptPool:
    """Keep the templates and the sentences of some sources, as in :func:`sentence_sources`.

    A concatenation belongs to the source of its sentence.
    """
    if not wanted:
        return pool
    sources = [TEMPLATE, *sentence_sources(pool, wanted)]
    chosen = {name: prompts.of(sources) for name, prompts in pool.prompts_by_class.items()}
    for name, prompts in chosen.items():
        if not prompts:
            raise PoolError(
                f"the class {name!r} has no prompts from {', '.join(sources[1:])}: add another source "
                f"({', '.join(pool.prompts_by_source)})"
            )
    return replace(pool, prompts_by_class=chosen)


def sentences(pool: PromptPool, wanted: str) -> list[list[Prompt]]:
    """Return the sentences of some sources for each class, without templates and concatenations."""
    names = set(sentence_sources(pool, wanted))
    return [
        [prompt for prompt in prompts if prompt.source in names and prompt.template is None]
        for prompts in pool.prompts_by_class.values()
    ]


def source_matches(source: str, word: str) -> bool:
    """Return whether a word names a source, ignoring case.

    It may be the whole name, the part before or after a colon, or the first word of the latter.
    """
    family, _, last = source.partition(":")
    short = last or source
    names = (source, family, short, re.split(r"[_.]", short)[0])
    return word.casefold() in {name.casefold() for name in names}
