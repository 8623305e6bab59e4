"""AdaptCLIPZS: a folder with one text file a class, one sentence a line.

The file is named after the class, with SLASH for "/" (file names cannot hold one), or, for
ImageNet, after the WordNet number; the alias resolver knows both. Lines speak of "a pet which has
…" and never name the class. Its authors put the class before them without those first words, and
so does :func:`name_class`. Lines occur twice, and a folder may hold files of another dataset.
"""

import re
from pathlib import Path

from promptboost.errors import FileFormatError, PoolError
from promptboost.files import read_text
from promptboost.pool.readers.source import Gathering, Reader, Source

__all__ = ["ADAPTCLIP", "name_class"]

_ENDING = ".txt"
# One or two words for the kind of thing: "a pet which", "a satellite image which", "a car with".
_KIND_OF_THING = re.compile(r"an? [\w-]+(?: [\w-]+)? (which|that|with|where)\b ", re.IGNORECASE)


def name_class(class_name: str, line: str) -> str:
    """Put the class in the place of "a pet" in "a pet which has a short tail".

    Examples
    --------
    >>> name_class("manx", "A pet which has a short tail.")
    'manx, which has a short tail.'
    >>> name_class("manx", "Its tail is short.")
    'Its tail is short.'
    """
    start = _KIND_OF_THING.match(line)
    if start is None:
        return line
    # After a comma "that" is no longer English.
    connector = "which" if start[1].lower() == "that" else start[1].lower()
    return f"{class_name.replace('_', ' ')}, {connector} {line[start.end() :]}"


def _unquoted(line: str) -> str:
    line = line.strip()
    return line[1:-1] if len(line) > 1 and line[0] == line[-1] == '"' else line


def _recognises(path: Path) -> bool:
    return path.is_dir() and any(file.suffix == _ENDING for file in path.iterdir())


def _read(path: Path, dataset: str | None) -> tuple[Source, ...]:
    try:
        files = sorted(path.iterdir(), key=lambda file: file.name)
    except OSError as error:
        raise PoolError(f"cannot read the folder {path}: {error.strerror}") from error
    texts = [file for file in files if file.suffix == _ENDING and not file.name.startswith(".")]
    if not texts:
        raise FileFormatError(f"{path} holds no file <class>{_ENDING}, one sentence a line")
    gathering = Gathering(str(path))
    for file in texts:
        # A line end after the last sentence is no blank sentence.
        gathering.add(file.stem, map(_unquoted, read_text(file).rstrip("\r\n").split("\n")))
    stray = [file.name for file in files if file not in texts]
    name = f"adaptclip:{path.name}"
    return (gathering.source(name, "adaptclip", path, phrase=name_class, stray=stray),)


ADAPTCLIP = Reader("adaptclip", _recognises, _read, takes="folder")
