"""Pools made of other pools: put together, without repeats, or of some sources only."""

import re
from collections.abc import Collection
from dataclasses import replace

from promptboost.errors import PoolError, SettingError
from promptboost.pool.names import check_class_names
from promptboost.pool.pool import PromptPool
from promptboost.pool.products import ClassPrompts, Prompt
from promptboost.pool.templates import check_templates

#: What filled templates say they come from.
TEMPLATE = "template"
#: What a template and a sentence put together say they come from.
CONCAT = "concat"


def union(first: PromptPool, *others: PromptPool) -> PromptPool:
    """Put pools together: all prompts of the first, then what each further one adds.

    Classes meet by name, spelled the same, and keep the order in which they are first met; so do
    templates. A prompt that differs from an earlier one of its class only in case or white space
    is left out.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> seen = build_pool(["owl"], templates=["a {}"], descriptions={"owl": ["round eyes"]})
    >>> heard = build_pool(["owl", "bat"], templates=["a {}"])
    >>> both = union(seen, heard)
    >>> both.texts("owl"), both.texts("bat")
    (('an owl', 'round eyes'), ('a bat',))
    """
    pools = (first, *others)
    names = check_class_names(tuple(dict.fromkeys(n for pool in pools for n in pool.class_names)))
    prompts = tuple(
        ClassPrompts(
            part for pool in pools if name in pool for part in pool.prompts(name).parts
        ).distinct()
        for name in names
    )
    sources = (set(each.counts()) for each in prompts)
    described = {name for name, each in zip(names, sources, strict=True) if each - {TEMPLATE}}
    missing = {name for pool in pools for name in pool.missing} - described
    unused = dict.fromkeys(name for pool in pools for name in pool.unused)
    return PromptPool(
        class_names=names,
        templates=check_templates(template for pool in pools for template in pool.templates),
        prompts_by_class=prompts,
        missing=tuple(name for name in names if name in missing),
        unused=tuple(name for name in unused if name not in names),
    )


def from_sources(pool: PromptPool, sources: Collection[str]) -> PromptPool:
    """Keep the prompts that come from some sources, in the order they have.

    A concatenation comes from ``"concat"`` and from the source of its sentence: naming either
    keeps it. Filled templates come from ``"template"``; names are the keys of
    ``pool.prompts_by_source``. The templates of the pool itself stay: boosting starts from them.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> files = {"CuPL": {"owl": ["an owl has round eyes"]}, "DCLIP": {"owl": ["a hooked beak"]}}
    >>> pool = build_pool(["owl"], templates=["a {}."], descriptions=files, concatenate="all")
    >>> from_sources(pool, ("template", "DCLIP")).texts("owl")
    ('an owl.', 'a hooked beak', 'an owl. a hooked beak')
    """
    if isinstance(sources, str):
        raise SettingError(f"sources must be a list of names, not one string: [{sources!r}]")
    every = (source for prompts in pool.prompts_by_class for source in prompts.sources())
    known = dict.fromkeys(every)
    for source in sources:
        if source not in known:
            raise SettingError(f"the pool has no source {source!r}; it has {', '.join(known)}")
    kept = tuple(prompts.of(sources) for prompts in pool.prompts_by_class)
    for name, prompts in zip(pool.class_names, kept, strict=True):
        if not prompts:
            raise PoolError(
                f"the class {name!r} has no prompts from {', '.join(sources)}: add another source "
                f"({', '.join(known)})"
            )
    return replace(pool, prompts_by_class=kept)


def deduplicate(pool: PromptPool) -> tuple[PromptPool, int]:
    """Keep the first of the prompts of a class that differ only in case or white space.

    Pools of :func:`build_pool` and :func:`union` have no repeats; those read from a file may.

    Examples
    --------
    >>> from promptboost.pool import Prompt
    >>> prompts = (Prompt("round eyes", "mine"), Prompt("Round  eyes", "theirs"))
    >>> deduplicate(PromptPool(("owl",), (), (prompts,)))
    (<PromptPool: 1 classes, 1 prompts>, 1)
    """
    kept = tuple(prompts.distinct() for prompts in pool.prompts_by_class)
    dropped = sum(map(len, pool.prompts_by_class)) - sum(map(len, kept))
    return replace(pool, prompts_by_class=kept), dropped


def sentence_sources(pool: PromptPool, wanted: str = "") -> list[str]:
    """Name where the pool's sentences come from, without templates."""
    sources = [source for source in pool.prompts_by_source if source not in (TEMPLATE, CONCAT)]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        return sources
    chosen = {source for name in names for source in _matching(sources, name)}
    return [source for source in sources if source in chosen]


def of_sources(pool: PromptPool, wanted: str) -> PromptPool:
    """Keep the templates and the sentences of some sources, named as in :func:`sentence_sources`."""
    if not wanted:
        return pool
    kept = sentence_sources(pool, wanted)
    # A pool may be made of sentences alone.
    return from_sources(pool, [*(t for t in pool.prompts_by_source if t == TEMPLATE), *kept])


def sentences(pool: PromptPool, wanted: str) -> list[list[Prompt]]:
    """Return the sentences of some sources for each class, without templates and concatenations."""
    names = set(sentence_sources(pool, wanted))
    return [
        [p for p in prompts if p.source in names and p.template is None]
        for prompts in pool.prompts_by_class
    ]


def goes_by(source: str, word: str) -> bool:
    """Tell whether a word is enough to name a source, in any case.

    It may be the whole name, the part of it before or behind a colon, or the first word of the
    latter.
    """
    family, _, rest = source.partition(":")
    short = rest or source
    names = (source, family, short, re.split(r"[_.]", short)[0])
    return word.casefold() in {name.casefold() for name in names}


def _matching(sources: list[str], wanted: str) -> list[str]:
    fitting = [name for name in sources if goes_by(name, wanted)]
    if not fitting:
        has = f"it has {', '.join(sources)}" if sources else "it has templates only"
        raise PoolError(
            f"the pool has no sentences from {wanted!r}; {has}. Build one with the file that has them: "
            "promptboost pool build --help"
        )
    return fitting
