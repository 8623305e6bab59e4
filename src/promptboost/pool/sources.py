"""Sources of sentences that met the classes, and the pools made of them or of a saved pool."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from promptboost.config import FitConfig
from promptboost.errors import PoolError, SettingError, few
from promptboost.pool.build import Concatenate, build_pool, emoji_descriptions
from promptboost.pool.combination import goes_by
from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.names import Resolution, check_class_names, resolve
from promptboost.pool.pool import PromptPool
from promptboost.pool.readers import read_sources
from promptboost.pool.readers.source import Source
from promptboost.pool.templates import clip_templates
from promptboost.pool.text import distinct


@dataclass(frozen=True)
class Meeting:
    """A source, how its names met the classes, and the sentences each class gets, repeats and all."""

    source: Source
    resolution: Resolution
    texts: dict[str, list[str]]


def meet(
    source: Source, class_names: Sequence[str], synonyms: Mapping[str, Sequence[str]] | None = None
) -> Meeting:
    """Find for every class its sentences.

    Examples
    --------
    >>> from pathlib import Path
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("large round eyes",)})
    >>> meet(source, ["owl", "bat"]).texts
    {'owl': ['large round eyes']}
    """
    if source.templates:
        # Templates have no names to meet: every class gets them all.
        resolution = Resolution((), (), (), ())
    else:
        resolution = resolve(class_names, source.sentences, synonyms)
    entries: dict[str, list[str]] = {name: [] for name in class_names}
    for match in resolution.matches:
        entries[match.class_name].append(match.entry)
    texts = {name: source.texts(names, name) for name, names in entries.items()}
    return Meeting(
        source, resolution, {name: sentences for name, sentences in texts.items() if sentences}
    )


def join(meetings: Iterable[Meeting], class_names: Sequence[str]) -> dict[str, list[str]]:
    """Put the sentences of all sources together, in their order, each sentence once.

    Examples
    --------
    >>> from pathlib import Path
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("large  eyes", "Large eyes")})
    >>> join([meet(source, ["owl"])], ["owl"])
    {'owl': ['large  eyes']}
    """
    texts: dict[str, list[str]] = {name: [] for name in class_names}
    for meeting in meetings:
        meeting.resolution.check_clear(
            str(meeting.source.path),
            'say which in a file {"class": ["other name", …]} and give it as --synonyms, or rename one',
        )
        for name, sentences in meeting.texts.items():
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
    met = [(source.name, meet(source, [class_name])) for source in sources]
    if not any(item.texts or item.resolution.matches for _, item in met):
        entries = [entry for source in sources for entry in source.sentences]
        near = get_close_matches(class_name, entries, n=3) or entries[:3]
        raise PoolError(
            f"there is no class {class_name!r}; there is {', '.join(map(repr, dict.fromkeys(near)))}"
        )
    return {name: item.texts.get(class_name, []) for name, item in met}


def read_pool(
    path: str | Path,
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    concatenate: Concatenate = "none",
) -> PromptPool:
    """Make the pool of some classes from one file of any known format.

    It is what :func:`read_sources` reads, its names meeting the classes as in :func:`resolve`; or a
    pool that :func:`save_pool` wrote as JSON Lines, which is taken whole: `templates` and
    `concatenate`, as for :func:`build_pool`, are not for it.

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
    if is_saved_pool(path):
        if templates is not None or concatenate != "none":
            raise SettingError(f"{path} is a saved pool: it has templates and concatenations")
        return rename_classes(load_pool(path), class_names, where=str(path))
    meetings = [meet(source, class_names) for source in read_sources(path)]
    return join_pool(meetings, class_names, templates=templates, concatenate=concatenate)


def join_pool(
    meetings: Sequence[Meeting],
    class_names: Sequence[str],
    *,
    templates: Sequence[str] | None = None,
    concatenate: Concatenate = "none",
    sources: Sequence[str] | None = None,
) -> PromptPool:
    """Make a pool of sources that met the classes; every prompt keeps the name of its source.

    Examples
    --------
    >>> from promptboost.pool.readers.source import Source
    >>> source = Source("mine", "plain", Path("mine.json"), {"Owl": ("large round eyes",)})
    >>> join_pool([meet(source, ["owl"])], ["owl"], templates=["a {}."]).prompts_by_source
    {'template': 1, 'mine': 1}
    """
    chosen = meetings if sources is None else choose_sources(meetings, sources)
    for meeting in chosen:
        _check_clear(meeting.resolution, str(meeting.source.path))
    own_templates = [text for meeting in chosen for text in meeting.source.templates]
    if own_templates and templates is not None:
        raise SettingError("a source has templates of its own: leave templates out, or the source")
    by_source: dict[str, dict[str, list[str]]] = {}
    for meeting in chosen:
        if not meeting.source.templates:
            by_class = by_source.setdefault(meeting.source.name, {})
            for name, texts in meeting.texts.items():
                by_class.setdefault(name, []).extend(texts)
    if not own_templates and not any(by_source.values()):
        raise PoolError(_nothing_met(chosen, class_names))
    pool = build_pool(
        class_names,
        templates=own_templates or templates,
        descriptions=by_source or None,
        concatenate=concatenate,
    )
    unused = dict.fromkeys(name for meeting in chosen for name in meeting.resolution.unused)
    return replace(pool, unused=tuple(unused))


def choose_sources(meetings: Sequence[Meeting], wanted: Iterable[str]) -> list[Meeting]:
    """Take some of the sources, in the order wanted; raise SettingError if there is none of a name.

    A source goes by its name (``"cupl_full"``, ``"proapo:CuPL_full"``), by the part of it after
    the colon, by the first word of that (``"cupl"``) and by its format, all
    without regard to case. A word that several go by takes all of them. Templates always stay.

    Examples
    --------
    >>> from promptboost.pool.readers.source import Source
    >>> def source(name):
    ...     return meet(Source(name, "proapo", Path(name), {"owl": ("eyes",)}), ["owl"])
    >>> met = [source("proapo:CuPL_base"), source("proapo:DCLIP"), source("proapo:AWT")]
    >>> [meeting.source.name for meeting in choose_sources(met, ["dclip", "cupl"])]
    ['proapo:DCLIP', 'proapo:CuPL_base']
    """
    if isinstance(wanted, str):
        raise SettingError(f"sources must be a list of names, not one string: [{wanted!r}]")
    taken = [meeting for meeting in meetings if meeting.source.templates]
    for word in wanted:
        fitting = [
            meeting
            for meeting in meetings
            if goes_by(meeting.source.name, word) or meeting.source.kind == word.casefold()
        ]
        if not fitting:
            names = dict.fromkeys(meeting.source.name for meeting in meetings)
            raise SettingError(f"there is no source {word!r}; there is {', '.join(names)}")
        taken += [one for one in fitting if not any(one is other for other in taken)]
    return taken


def rename_classes(
    pool: PromptPool,
    class_names: Sequence[str],
    *,
    synonyms: Mapping[str, Sequence[str]] | None = None,
    where: str = "the pool",
) -> PromptPool:
    """Put the names and the order of these classes on a pool; its texts stay as they are.

    Examples
    --------
    >>> pool = build_pool(["Bat", "Barn Owl", "Eel"], templates=["a {}."])
    >>> mine = rename_classes(pool, ["barn_owl", "bat"])
    >>> mine.texts("barn_owl"), mine.unused
    (('a Barn Owl.',), ('Eel',))
    """
    names = check_class_names(class_names)
    met = resolve(names, pool.class_names, synonyms)
    _check_clear(met, where)
    if met.missing:
        raise PoolError(
            f"{where} has no prompts for the class {_quoted(met.missing, 1)}; it has "
            f"{_quoted(pool.class_names)}. Make it again for these classes: promptboost pool build "
            f"SOURCES … --classes DATA -o {Path(where).name}"
        )
    for name in names:
        if len(both := met.entries(name)) > 1:
            raise PoolError(f"{where}: {_quoted(both)} are one class, {name!r}; join them first")
    described = {name for name in names if met.entries(name)[0] not in pool.missing}
    return PromptPool(
        class_names=names,
        templates=pool.templates,
        prompts_by_class=tuple(pool.prompts(met.entries(name)[0]) for name in names),
        missing=tuple(name for name in names if name not in described),
        unused=tuple(dict.fromkeys((*met.unused, *pool.unused))),
    )


def _check_clear(resolution: Resolution, where: str) -> None:
    resolution.check_clear(
        where,
        'rename one, or say which in a file {"class": ["other name", …]} and type: promptboost '
        f"pool build {where} --classes DATA --synonyms THAT_FILE -o pool.jsonl",
    )


def _nothing_met(meetings: Sequence[Meeting], class_names: Sequence[str]) -> str:
    names = [entry for meeting in meetings for entry in meeting.source.sentences]
    paths = few(list(dict.fromkeys(str(meeting.source.path) for meeting in meetings)), 3)
    if any(meeting.resolution.matches for meeting in meetings):
        why = f"{paths} has the names of classes, but only blank or damaged sentences"
    else:
        why = f"{paths} is about {_quoted(names)}, and the classes are {_quoted(class_names)}"
    return f"no class has a sentence: {why}; promptboost pool check says more"


def _quoted(names: Sequence[str], most: int = 3) -> str:
    return few([repr(name) for name in names], most)


def pool_for(settings: FitConfig, source: object, class_names: Sequence[str]) -> PromptPool:
    """Make the pool that settings ask for; the emoji come with sentences of their own.

    A saved pool is taken as it is, templates and concatenations included.
    """
    if settings.prompts is not None and is_saved_pool(settings.prompts):
        _check_left_open(settings)
        return read_pool(settings.prompts, class_names)
    templates = clip_templates() if settings.templates == "clip" else None
    if settings.prompts is not None:
        return read_pool(
            settings.prompts, class_names, templates=templates, concatenate=settings.concatenate
        )
    return build_pool(
        class_names,
        templates=templates,
        descriptions=emoji_descriptions() if str(source) == "emoji" else None,
        concatenate=settings.concatenate,
        source="descriptions:emoji",
    )


def _check_left_open(settings: FitConfig) -> None:
    """Raise for settings that a saved pool has settled already."""
    for name, usual in (("templates", "own"), ("concatenate", "none")):
        if (asked := getattr(settings, name)) != usual:
            raise SettingError(
                f"{name} is {asked!r}, but {settings.prompts} is a saved pool and has been made with "
                f"its own; leave {name} out, or make the pool again with: promptboost pool build … "
                f"--{name} {asked} -o {Path(settings.prompts or '').name}"
            )
