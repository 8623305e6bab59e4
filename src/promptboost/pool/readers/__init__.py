"""Released description files, read as their authors released them: one small reader a format.

Other packages add readers under the entry point group ``promptboost.readers``: each entry names a
:class:`~promptboost.pool.readers.source.Reader`.
"""

import warnings
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from shlex import quote

from promptboost.errors import FileFormatError, InputError, PoolError, SettingError
from promptboost.io import Stamp, file_stamp
from promptboost.plugins import PluginWarning, load_plugins
from promptboost.pool.readers.plain import PLAIN, SAVED
from promptboost.pool.readers.released import (
    ADAPTCLIP,
    AWT,
    CLIP_BENCHMARK,
    CUPL,
    DCLIP,
    GPT4VIS,
    PROAPO,
    json_of,
)
from promptboost.pool.readers.source import Reader, Skipped, Source

__all__ = [
    "KINDS",
    "Reader",
    "Skipped",
    "Source",
    "emoji_descriptions",
    "kinds",
    "read_descriptions",
    "read_source",
    "read_sources",
]

# The order is that of recognition: what a file's place or name says goes before its shape.
_BY_NAME = (PROAPO, ADAPTCLIP, CUPL, DCLIP, GPT4VIS, AWT)
_BY_SHAPE = (CLIP_BENCHMARK, SAVED, PLAIN)
KINDS = tuple(reader.kind for reader in (*_BY_NAME, CLIP_BENCHMARK, PLAIN, SAVED))
"""The formats that come with the package, by the name to type."""
_ENSEMBLE = "promptboost-ensemble"


def read_sources(
    path: str | Path, kind: str | None = None, *, dataset: str | None = None
) -> tuple[Source, ...]:
    """Read a file or folder of sentences; ProAPO's folders and saved pools hold several sources.

    A file that has not changed since it was last read is not read again.

    Parameters
    ----------
    path : path-like
    kind : str, optional
        One of :func:`kinds`; by default recognized from the name, then from the shape. JSON that
        nothing tells apart is ``"plain"``: its sentences are taken as they are.
    dataset : str, optional
        Which of the datasets of a CLIP_benchmark file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "descriptors_birds.json")
    ...     _ = path.write_text('{"Owl": ["large round eyes"]}')
    ...     (source,) = read_sources(path)
    >>> source.kind, source.texts(["Owl"], "owl")
    ('dclip', ['owl, which has large round eyes.'])
    """
    path = Path(path)
    if not path.exists():
        raise PoolError(
            f"cannot read the descriptions {path}: it does not exist; give a file or a folder"
        )
    if path.is_dir():
        return _read(path, kind, dataset)
    return _read_file(path, kind, dataset, file_stamp(path))


def read_source(path: str | Path, kind: str | None = None, *, dataset: str | None = None) -> Source:
    r"""Read a file or folder that holds one source; see :func:`read_sources`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "birds.csv")
    ...     _ = path.write_text("class,sentence\nowl,large round eyes\n")
    ...     read_source(path).sentences
    {'owl': ('large round eyes',)}
    """
    sources = read_sources(path, kind, dataset=dataset)
    if len(sources) > 1:
        files = dict.fromkeys(str(source.path) for source in sources if source.path != Path(path))
        what = f"give one of the files: {', '.join(files)}" if files else "read_sources reads them"
        raise PoolError(f"{path} holds {len(sources)} sources; {what}")
    return sources[0]


def read_descriptions(path: str | Path) -> dict[str, list[str]]:
    r"""Read sentences about classes from a file of one's own, all of which must be good.

    :func:`read_sources` reads the same files, and those that others released, and leaves out what
    nobody can use.

    The file is ``{"class": ["sentence", …], …}``; or, if its name ends in ``.jsonl``, one
    ``{"class": "…", "text": "…"}`` a line; or a table in ``.csv``, ``.tsv`` or ``.txt``.

    Examples
    --------
    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.json")
    ...     _ = path.write_text(json.dumps({"owl": ["large round eyes", "a hooked beak"]}))
    ...     read_descriptions(path)
    {'owl': ['large round eyes', 'a hooked beak']}
    """
    path = Path(path)
    if not path.is_file():
        raise PoolError(f"cannot read the descriptions {path}: No such file")
    source = read_source(path, "plain")
    problems = [skipped.reason for skipped in source.skipped]
    problems += [f"the class {name!r} has a blank sentence" for name in source.blank]
    if problems:
        raise FileFormatError(
            f"{path}: {problems[0]}; to have blank and damaged sentences left out, type: "
            f"promptboost pool build {quote(str(path))} --classes DATA -o clean.json"
        )
    return {name: list(sentences) for name, sentences in source.sentences.items()}


def emoji_descriptions() -> dict[str, list[str]]:
    """Return the sentences promptboost comes with, for the 20 classes of the emoji dataset.

    Examples
    --------
    >>> sentences = emoji_descriptions()
    >>> len(sentences), min(map(len, sentences.values())) >= 40
    (20, True)
    """
    file = resources.files("promptboost.pool") / "data" / "emoji.json"
    with resources.as_file(file) as path:
        return read_descriptions(path)


def kinds() -> tuple[str, ...]:
    """Return the formats there are, those of installed plugins last.

    Examples
    --------
    >>> kinds()[:3]
    ('proapo', 'adaptclip', 'cupl')
    """
    return (*KINDS, *(reader.kind for reader in _plugins()))


@lru_cache(maxsize=4)
def _read_file(
    path: Path, kind: str | None, dataset: str | None, stamp: Stamp | None
) -> tuple[Source, ...]:
    return _read(path, kind, dataset)


def _read(path: Path, kind: str | None, dataset: str | None) -> tuple[Source, ...]:
    reader = _recognized(path) if kind is None else _named(kind)
    place = "folder" if path.is_dir() else "file"
    if reader.takes not in (place, "both"):
        raise FileFormatError(
            f"{path} is a {place}, and the kind {reader.kind} is read from a {reader.takes}"
        )
    return reader.read(path, dataset)


def _named(kind: str) -> Reader:
    readers = {reader.kind: reader for reader in (*_BY_NAME, *_BY_SHAPE)}
    if kind not in readers:
        readers |= {reader.kind: reader for reader in _plugins()}
    if kind not in readers:
        raise SettingError(f"there is no kind {kind!r}; the kinds are {', '.join(kinds())}")
    return readers[kind]


def _recognized(path: Path) -> Reader:
    if path.suffix == ".json" and path.is_file() and _is_ensemble(path):
        raise FileFormatError(
            f"{path} is what a fit learned, not a file of sentences to learn from; to read it, type: "
            f"promptboost show {path.parent}"
        )
    reader = next((reader for reader in _BY_NAME if reader.recognizes(path)), None)
    if reader is None:
        others = (*_plugins(), *_BY_SHAPE)
        reader = next((reader for reader in others if reader.recognizes(path)), None)
    if reader is None:
        raise FileFormatError(
            f"the format of {path} is not known; name it to promptboost pool build with --kind: "
            f"{', '.join(kinds())}"
        )
    return reader


def _is_ensemble(path: Path) -> bool:
    """Tell an ensemble by its format; the parse serves the readers too."""
    try:
        content = json_of(path)
    except InputError:  # the reader says why
        return False
    return isinstance(content, dict) and content.get("format") == _ENSEMBLE


@cache
def _plugins() -> tuple[Reader, ...]:
    """Return the readers of other packages; what is none is named and left out."""
    readers = []
    for name, plugin in load_plugins("promptboost.readers").items():
        if isinstance(plugin, Reader) and plugin.kind not in KINDS:
            readers.append(plugin)
        else:
            warnings.warn(
                f"the plugin {name} of promptboost.readers is no Reader with a kind of its own, "
                "and is left out",
                PluginWarning,
                stacklevel=2,
            )
    return tuple(readers)
