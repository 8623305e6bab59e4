"""Files whose lines do not name their class, and get it put before them: DCLIP, AdaptCLIPZS, ProAPO.

DCLIP has fragments such as "a hooked beak": "{class}, which has {fragment}." is the rule. As in the
authors' use, one that begins with "a" or "an" is said to be what the thing is, and one that begins
with a verb follows "which" alone. Unlike theirs the test is on whole words: "antlers" is no "a".

AdaptCLIPZS is a folder with one text file a class, one sentence a line. The file is named after the
class, with SLASH for "/", or, for ImageNet, after the WordNet number. Lines speak of "a pet which
has …"; its authors put the class in the place of those first words. Lines occur twice, and a folder
may hold files of another dataset.

ProAPO has the released sources of one dataset, each in its file, all with the same class names: a
folder with ``category_description/*.json`` and ``label_to_category_name.json``. Its DCLIP and
AdaptCLIP files get the same words as the originals; blank sentences occur.
"""

import re
from pathlib import Path

from promptboost.errors import FileFormatError, PoolError
from promptboost.io import read_text
from promptboost.pool.readers.sentences import read_mapping
from promptboost.pool.readers.source import Gathering, Phrase, Reader, Source

_IS = frozenset(
    ["a", "an", "covered", "found", "known", "located", "made", "served", "similar", "used"]
)
_VERB = frozenset(
    [
        *("are", "can", "has", "have", "is", "looks"),
        *("may", "often", "sometimes", "typically", "usually"),
    ]
)
_FIRST_WORD = re.compile(r"[^\W\d_]+(?![\w-])")


def connect(class_name: str, fragment: str) -> str:
    """Make a sentence of a class and a fragment."""
    first = _FIRST_WORD.match(fragment)
    word = first[0].lower() if first else ""
    connector = "which is" if word in _IS else "which" if word in _VERB else "which has"
    return f"{class_name.replace('_', ' ')}, {connector} {fragment.rstrip(' .')}."


DCLIP = Reader(
    "dclip",
    lambda path: path.suffix.lower() == ".json" and path.stem.lower().startswith("descriptors"),
    lambda path, _: (read_mapping(path, "dclip", "dclip", phrase=connect),),
)


_ENDING = ".txt"
# One or two words for the kind of thing: "a pet which", "a satellite image which", "a car with".
_KIND_OF_THING = re.compile(r"an? [\w-]+(?: [\w-]+)? (which|that|with|where)\b ", re.IGNORECASE)


def name_class(class_name: str, line: str) -> str:
    """Put the class in the place of "a pet" in "a pet which has a short tail"."""
    start = _KIND_OF_THING.match(line)
    if start is None:
        return line
    # After a comma "that" is no longer English.
    connector = "which" if start[1].lower() == "that" else start[1].lower()
    return f"{class_name.replace('_', ' ')}, {connector} {line[start.end() :]}"


def _unquoted(line: str) -> str:
    line = line.strip()
    return line[1:-1] if len(line) > 1 and line[0] == line[-1] == '"' else line


def _is_adaptclip(path: Path) -> bool:
    return path.is_dir() and any(file.suffix == _ENDING for file in path.iterdir())


def _read_adaptclip(path: Path, dataset: str | None) -> tuple[Source, ...]:
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


ADAPTCLIP = Reader("adaptclip", _is_adaptclip, _read_adaptclip, takes="folder")


_FOLDER = "category_description"
_PHRASES: dict[str, Phrase] = {"dclip": connect, "adaptclip": name_class}


def _is_proapo(path: Path) -> bool:
    if path.suffix.lower() == ".json":
        return path.resolve().parent.name == _FOLDER
    return path.resolve().name == _FOLDER or (path / _FOLDER).is_dir()


def _read_proapo(path: Path, dataset: str | None) -> tuple[Source, ...]:
    if not path.is_dir():
        return (_read_proapo_file(path),)
    folder = path if path.resolve().name == _FOLDER else path / _FOLDER
    files = sorted(folder.glob("*.json"), key=lambda file: file.name)
    if not files:
        raise FileFormatError(f"{path} holds no {_FOLDER}/*.json")
    return tuple(map(_read_proapo_file, files))


def _read_proapo_file(path: Path) -> Source:
    return read_mapping(path, f"proapo:{path.stem}", "proapo", _PHRASES.get(path.stem.lower()))


PROAPO = Reader("proapo", _is_proapo, _read_proapo, takes="both")
