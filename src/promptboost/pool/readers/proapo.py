"""ProAPO: the released sources of one dataset, each in its file, all with the same class names.

A dataset is a folder with ``category_description/*.json`` and ``label_to_category_name.json``. In
DCLIP's file there are fragments and in AdaptCLIP's lines that name no class: they get the same
words as the originals. Not every dataset has every file, and blank sentences occur.
"""

from pathlib import Path

from promptboost.errors import FileFormatError
from promptboost.pool.readers import adaptclip, dclip
from promptboost.pool.readers.mapping import read_mapping
from promptboost.pool.readers.source import Phrase, Source

__all__ = ["KIND", "read", "read_folder", "recognises"]

KIND = "proapo"
_FOLDER = "category_description"
_PHRASES: dict[str, Phrase] = {"dclip": dclip.connect, "adaptclip": adaptclip.name_class}


def recognises(path: Path) -> bool:
    """Say whether a path is such a folder, or one of its files.

    Examples
    --------
    >>> recognises(Path("dtd/category_description/CuPL_base.json"))
    True
    """
    if path.suffix.lower() == ".json":
        return path.resolve().parent.name == _FOLDER
    return path.resolve().name == _FOLDER or (path / _FOLDER).is_dir()


def read(path: Path) -> Source:
    """Read one of the files."""
    return read_mapping(path, f"{KIND}:{path.stem}", KIND, _PHRASES.get(path.stem.lower()))


def read_folder(path: Path) -> tuple[Source, ...]:
    """Read the folder of a dataset: one source a file, in the order of their names."""
    folder = path if path.resolve().name == _FOLDER else path / _FOLDER
    files = sorted(folder.glob("*.json"), key=lambda file: file.name)
    if not files:
        raise FileFormatError(f"{path} holds no {_FOLDER}/*.json")
    return tuple(read(file) for file in files)
