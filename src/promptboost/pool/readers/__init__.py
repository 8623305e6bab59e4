"""Released description files, read as their authors released them: one small file a format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.files import load_json, read_text
from promptboost.pool.readers import (
    adaptclip,
    awt,
    clip_benchmark,
    cupl,
    dclip,
    gpt4vis,
    plain,
    proapo,
    saved,
)
from promptboost.pool.readers.source import Refused, Source

__all__ = ["KINDS", "Refused", "Source", "read_source", "read_sources"]

# The order is that of recognition: what a file's place or name says goes before its shape.
_NAMED: tuple[Any, ...] = (proapo, adaptclip, cupl, dclip, gpt4vis, awt)
KINDS = (*(reader.KIND for reader in _NAMED), clip_benchmark.KIND, plain.KIND, saved.KIND)
"""The formats there are, by the name to type."""
_FOLDERS = [proapo.KIND, adaptclip.KIND]


def read_sources(
    path: str | Path, kind: str | None = None, *, dataset: str | None = None
) -> tuple[Source, ...]:
    """Read a file or folder of sentences; ProAPO's folders and saved pools hold several sources.

    Parameters
    ----------
    path : path-like
        The file or folder.
    kind : str, optional
        One of :data:`KINDS`; by default recognised from the name, then from the shape. JSON that
        nothing tells apart is ``"plain"``: its sentences are taken as they are.
    dataset : str, optional
        Which of the datasets of a CLIP_benchmark file.

    Raises
    ------
    PoolError
        If it cannot be opened.
    FileFormatError
        If it is cut off, or of no known format.

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
    kind = _recognise(path) if kind is None else kind
    if kind not in KINDS:
        raise SettingError(f"there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    fits = _FOLDERS if path.is_dir() else [other for other in KINDS if other != adaptclip.KIND]
    if kind not in fits:
        is_a, takes_a = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise FileFormatError(f"{path} is a {is_a}, and the kind {kind} is read from a {takes_a}")
    if kind == proapo.KIND and path.is_dir():
        return proapo.read_folder(path)
    if kind == saved.KIND:
        return saved.read(path)
    if kind == clip_benchmark.KIND:
        return (clip_benchmark.read(path, dataset),)
    readers: dict[str, Callable[[Path], Source]] = {
        reader.KIND: reader.read for reader in (*_NAMED, plain)
    }
    return (readers[kind](path),)


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


def _recognise(path: Path) -> str:
    for reader in _NAMED:
        if reader.recognises(path):
            return str(reader.KIND)
    if path.suffix.lower() == ".json" and path.is_file():
        loaded = load_json(read_text(path), str(path))
        return (
            clip_benchmark.KIND
            if isinstance(loaded, list) or clip_benchmark.has_shape(loaded)
            else plain.KIND
        )
    if saved.recognises(path):
        return saved.KIND
    if path.is_file() and plain.recognises(path):
        return plain.KIND
    raise FileFormatError(
        f"the format of {path} is not known; name it to promptboost pool build with --kind: "
        f"{', '.join(KINDS)}"
    )
