"""Pools made of files: their names are matched with the classes, and their sentences joined."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from promptboost.errors import PoolError, SettingError, few
from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.names import NameMatches, match_names
from promptboost.pool.pool import Concatenate, PromptPool, build_pool, source_matches
from promptboost.pool.readers import read_sources
from promptboost.pool.readers.source import Source
from promptboost.pool.text import check_class_names, distinct


@dataclass(frozen=True)
class ClassMatch:
    """A source, its names matched with classes, and the sentences of each class, with repeats."""

    source: Source
    names: NameMatches
    texts: dict[str, list[str]]


def match_classes(
    source: Source, class_names: Sequence[str], synonyms: Mapping[str, Sequence[str]] | None = None
) -> ClassMatch:
    """Match the names of a source with the classes."""
    # Templates have no names: every class gets them all.
    matched = NameMatches()
    if not source.templates:
        matched = match_names(class_names, source.sentences, synonyms)
    texts = {name: source.texts(matched.entries(name), name) for name in class_names}
    return ClassMatch(source, matched, {name: listed for name, listed in texts.items() if listed})


def join_sentences(
    matches: Iterable[ClassMatch], class_names: Sequence[str]
) -> dict[str, list[str]]:
    """Join the sentences of all sources, in their order, without repeats."""
    texts: dict[str, list[str]] = {name: [] for name in class_names}
    for match in matches:
        match.names.check_clear(
            str(match.source.path),
            'name them in a file {"class": ["other name", …]} and give it as --synonyms, or rename one',
        )
        for name, sentences in match.texts.items():
            texts[name] += sentences
    joined = {name: distinct(sentences) for name, sentences in texts.items() if sentences}
    if not joined:
        raise PoolError(
            "no class has a sentence: the names in the sources are not those of the classes; "
            "promptboost pool check shows both"
        )
    return joined


def sentences_about(sources: Sequence[Source], class_name: str) -> dict[str, list[str]]:
    """Return the sentences of one class by the name of the source."""
    matches = [match_classes(source, [class_name]) for source in sources]
    if not any(match.texts or match.names.matches for match in matches):
        entries = [entry for source in sources for entry in source.sentences]
        near = get_close_matches(class_name, entries, n=3) or entries[:3]
        raise PoolError(
            f"there is no class {class_name!r}; there is {', '.join(map(repr, dict.fromkeys(near)))}"
        )
    return {match.source.name: match.texts.get(class_name, []) for match in matches}


def read_pool(
    path: str | Path | Sequence[str | Path],
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    concatenate: Concatenate = "none",
    synonyms: Mapping[str, Sequence[str]] | None = None,
    sources: Sequence[str] | None = None,
    phrases: Mapping[str, str] | None = None,
) -> PromptPool:
    """Make the pool of some classes from files of any known format.

    Names are matched from the strictest spelling to the loosest: case, underscores and hyphens,
    `synonyms`, CamelCase, the plural, and more. A name that matches in more than one way is an error.

    Parameters
    ----------
    path : path-like, or sequence of path-like
        Files or folders that :func:`read_sources` reads. A single pool that :func:`save_pool` wrote
        as JSON Lines is used as it is, and none of the parameters below apply.
    class_names : sequence of str
    templates, concatenate
        As for :func:`build_pool`.
    synonyms : mapping of str to sequence of str, optional
        Other names of a class.
    sources : sequence of str, optional
        Which of the sources to use, in this order, by name (``"cupl_full"``,
        ``"proapo:CuPL_full"``), by the part of it after the colon, by the first word of that
        (``"cupl"``) or by format, in any case.
    phrases : mapping of str to str, optional
        As for :func:`build_pool`; they take precedence over those of the files.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "descriptors_birds.json")
    ...     _ = path.write_text('{"Barn Owl": ["large round eyes"]}')
    ...     pool = read_pool(path, ["barn_owl", "bat"], templates=["a {}."])
    >>> pool.prompts("barn_owl")[-1].text, pool.prompts("barn_owl")[-1].source, pool.missing
    ('barn owl, which has large round eyes.', 'dclip', ('bat',))
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if len(paths) == 1 and sources is None and is_saved_pool(paths[0]):
        if templates is not None or concatenate != "none" or phrases:
            raise SettingError(
                f"{paths[0]} is a saved pool: it has templates, concatenations and phrases"
            )
        pool = load_pool(paths[0])
        return rename_classes(pool, class_names, synonyms=synonyms, where=str(paths[0]))
    matches = [
        match_classes(source, class_names, synonyms)
        for each in paths
        for source in read_sources(each)
    ]
    if sources is not None:
        matches = choose_sources(matches, sources)
    return join_pool(
        matches, class_names, templates=templates, concatenate=concatenate, phrases=phrases
    )


def join_pool(
    matches: Sequence[ClassMatch],
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    concatenate: Concatenate = "none",
    phrases: Mapping[str, str] | None = None,
) -> PromptPool:
    """Make a pool of matched sources; every prompt keeps the name of its source."""
    by_source: dict[str, dict[str, list[str]]] = {}
    for match in matches:
        _check_clear(match.names, str(match.source.path))
        if not match.source.templates:
            by_class = by_source.setdefault(match.source.name, {})
            for name, texts in match.texts.items():
                by_class.setdefault(name, []).extend(texts)
    from_files = [text for match in matches for text in match.source.templates]
    if from_files and templates is not None:
        raise SettingError("a source has templates of its own: leave templates out, or the source")
    if not from_files and not any(by_source.values()):
        raise PoolError(_no_match(matches, class_names))
    pool = build_pool(
        class_names,
        templates=from_files or templates,
        descriptions=by_source or None,
        concatenate=concatenate,
        phrases={
            name.class_name: match.source.phrases[name.entry]
            for match in matches
            for name in match.names.matches
            if name.entry in match.source.phrases
        }
        | dict(phrases or {}),
    )
    unused = dict.fromkeys(name for match in matches for name in match.names.unused)
    return replace(pool, unused=tuple(unused))


def choose_sources(matches: Sequence[ClassMatch], wanted: Iterable[str]) -> list[ClassMatch]:
    """Select sources by name or format, in the order wanted, and all templates."""
    if isinstance(wanted, str):
        raise SettingError(f"sources must be a list of names, not one string: [{wanted!r}]")
    chosen = {id(match): match for match in matches if match.source.templates}
    for word in wanted:
        named = [
            match
            for match in matches
            if source_matches(match.source.name, word) or match.source.kind == word.casefold()
        ]
        if not named:
            names = dict.fromkeys(match.source.name for match in matches)
            raise SettingError(f"there is no source {word!r}; there is {', '.join(names)}")
        chosen |= {id(match): match for match in named}
    return list(chosen.values())


def rename_classes(
    pool: PromptPool,
    class_names: Sequence[str],
    *,
    synonyms: Mapping[str, Sequence[str]] | None = None,
    where: str = "the pool",
) -> PromptPool:
    """Rename and reorder the classes of a pool; its texts stay the same."""
    names = check_class_names(class_names)
    matched = match_names(names, pool.class_names, synonyms)
    _check_clear(matched, where)
    if matched.missing:
        raise PoolError(
            f"{where} has no prompts for the class {_quoted(matched.missing, 1)}; it has "
            f"{_quoted(pool.class_names)}. Make it again for these classes: promptboost pool build "
            f"SOURCES … --classes DATA -o {Path(where).name}"
        )
    entry_of: dict[str, str] = {}
    for name in names:
        entry_of[name], *others = matched.entries(name)
        if others:
            both = _quoted([entry_of[name], *others])
            raise PoolError(f"{where}: {both} are one class, {name!r}; join them first")
    return PromptPool(
        prompts_by_class={name: pool.prompts(entry_of[name]) for name in names},
        templates=pool.templates,
        missing=tuple(name for name in names if entry_of[name] in pool.missing),
        unused=tuple(dict.fromkeys((*matched.unused, *pool.unused))),
    )


def _check_clear(names: NameMatches, where: str) -> None:
    names.check_clear(
        where,
        'rename one, or name them in a file {"class": ["other name", …]} and type: promptboost '
        f"pool build {where} --classes DATA --synonyms THAT_FILE -o pool.jsonl",
    )


def _no_match(matches: Sequence[ClassMatch], class_names: Sequence[str]) -> str:
    names = [entry for match in matches for entry in match.source.sentences]
    paths = few(list(dict.fromkeys(str(match.source.path) for match in matches)), 3)
    if any(match.names.matches for match in matches):
        why = f"{paths} has the names of classes, but only blank or damaged sentences"
    else:
        why = f"{paths} is about {_quoted(names)}, and the classes are {_quoted(class_names)}"
    return f"no class has a sentence: {why}; see promptboost pool check"


def _quoted(names: Sequence[str], most: int = 3) -> str:
    return few([repr(name) for name in names], most)
