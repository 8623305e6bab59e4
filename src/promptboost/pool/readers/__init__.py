"""Readers of description files, one for each format."""

from importlib import resources
from pathlib import Path

from promptboost.errors import FileFormatError, InputError, PoolError, SettingError
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
from promptboost.pool.readers.source import Reader, Source

__all__ = ["KINDS", "Reader", "Source", "emoji_descriptions", "read_sources"]

# In order of recognition: names of files go before their shape.
_READERS = {
    reader.kind: reader
    for reader in (PROAPO, ADAPTCLIP, CUPL, DCLIP, GPT4VIS, AWT, CLIP_BENCHMARK, SAVED, PLAIN)
}
KINDS = tuple(_READERS)
"""The formats, by the name to type."""
_ENSEMBLE = "promptboost-ensemble"


def read_sources(
    path: str | Path, kind: str | None = None, *, dataset: str | None = None
) -> tuple[Source, ...]:
    """Read a file or folder of sentences; ProAPO's folders and saved pools hold several sources.

    `kind` is one of :data:`KINDS`, by default recognized from the name, then from the shape, else
    ``"plain"``; `dataset` is one of those of a CLIP_benchmark file.
    """
    path = Path(path)
    if not path.exists():
        raise PoolError(
            f"cannot read the descriptions {path}: it does not exist; give a file or a folder"
        )
    if kind is not None and kind not in _READERS:
        raise SettingError(f"there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    reader = _recognized(path) if kind is None else _READERS[kind]
    actual = "folder" if path.is_dir() else "file"
    if reader.takes not in (actual, "both"):
        raise FileFormatError(
            f"{path} is a {actual}, and the kind {reader.kind} is read from a {reader.takes}"
        )
    return reader.read(path, dataset)


def emoji_descriptions() -> dict[str, list[str]]:
    """Return the bundled sentences about the 20 classes of the emoji dataset.

    Examples
    --------
    >>> sentences = emoji_descriptions()
    >>> len(sentences), min(map(len, sentences.values())) >= 40
    (20, True)
    """
    file = resources.files("promptboost.pool") / "data" / "emoji.json"
    with resources.as_file(file) as path:
        (source,) = read_sources(path, "plain")
    return source.sentences


def _recognized(path: Path) -> Reader:
    if path.suffix == ".json" and path.is_file() and _is_ensemble(path):
        raise FileFormatError(
            f"{path} is a fitted ensemble, not a file of sentences; to read it, type: "
            f"promptboost show {path.parent}"
        )
    reader = next((reader for reader in _READERS.values() if reader.recognizes(path)), None)
    if reader is None:
        raise FileFormatError(
            f"the format of {path} is not known; name it to promptboost pool build with --kind: "
            f"{', '.join(KINDS)}"
        )
    return reader


def _is_ensemble(path: Path) -> bool:
    """Return whether a JSON file is an ensemble."""
    try:
        content = json_of(path)
    except InputError:  # the reader raises it again
        return False
    return isinstance(content, dict) and content.get("format") == _ENSEMBLE
