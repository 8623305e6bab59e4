"""ProAPO: the released sources of one dataset, each in its file, all with the same class names.

A dataset is a folder with ``category_description/*.json`` and ``label_to_category_name.json``. In
DCLIP's file there are fragments and in AdaptCLIP's lines that name no class: they get the same
words as the originals. Not every dataset has every file, and blank sentences occur.
"""

from pathlib import Path

from promptboost.errors import FileFormatError
from promptboost.pool.readers.adaptclip import name_class
from promptboost.pool.readers.dclip import connect
from promptboost.pool.readers.mapping import read_mapping
from promptboost.pool.readers.source import Phrase, Reader, Source

__all__ = ["PROAPO"]

_FOLDER = "category_description"
_PHRASES: dict[str, Phrase] = {"dclip": connect, "adaptclip": name_class}


def _recognises(path: Path) -> bool:
    if path.suffix.lower() == ".json":
        return path.resolve().parent.name == _FOLDER
    return path.resolve().name == _FOLDER or (path / _FOLDER).is_dir()


def _read(path: Path, dataset: str | None) -> tuple[Source, ...]:
    if not path.is_dir():
        return (_read_file(path),)
    folder = path if path.resolve().name == _FOLDER else path / _FOLDER
    files = sorted(folder.glob("*.json"), key=lambda file: file.name)
    if not files:
        raise FileFormatError(f"{path} holds no {_FOLDER}/*.json")
    return tuple(map(_read_file, files))


def _read_file(path: Path) -> Source:
    return read_mapping(path, f"proapo:{path.stem}", "proapo", _PHRASES.get(path.stem.lower()))


PROAPO = Reader("proapo", _recognises, _read, takes="both")
