"""Description files as their authors released them, one reader for each format.

CuPL (``*_prompts_base.json``, ``*_prompts_full.json``), GPT4Vis (``*_20_prompts*.json``) and AWT (in a
folder whose name begins with AWT) have ``{"class": ["sentence", …], …}`` in one JSON file.

CLIP_benchmark has one level more, ``{"dataset": {"class": ["sentence", …]}}``; or templates,
``{"dataset": ["a photo of a {c}.", …]}``, or the list of them alone, with ``{}``.

DCLIP has fragments such as "a hooked beak", put behind the class name by
:func:`~promptboost.pool.templates.connect`.

AdaptCLIPZS is a folder with one text file for each class, one sentence per line, named after the class,
with SLASH for "/", or the WordNet number. In "a pet which has …", the authors replace "a pet" by the
class.

ProAPO is a folder with one of these sources in each ``category_description/*.json``, and the class names in
``label_to_category_name.json``.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError, SettingError
from promptboost.io import Stamp, file_stamp, read_json, read_text
from promptboost.pool.readers.source import Phrase, Reader, Source, is_named
from promptboost.pool.templates import check_templates, connect
from promptboost.pool.text import plain_name

_CUPL = re.compile(r"prompts_(base|full)$", re.IGNORECASE)
_GPT4VIS = re.compile(r"_\d+_prompts(_|$)", re.IGNORECASE)


def json_of(path: Path) -> Any:
    """Read a JSON file; recognizing its shape and reading its sentences share one parse."""
    return _json_of(path, file_stamp(path))


@lru_cache(maxsize=1)
def _json_of(path: Path, stamp: Stamp | None) -> Any:
    return read_json(path)


def _has_templates(listed: object) -> bool:
    """Return whether a JSON value is a list of sentences with a placeholder for the class name."""
    return (
        isinstance(listed, list)
        and bool(listed)
        and all(isinstance(text, str) and ("{}" in text or "{c}" in text) for text in listed)
    )


def _json_reader(
    kind: str,
    recognizes: Callable[[Path], bool],
    *,
    name: Callable[[Path], str] | None = None,
    phrase: Phrase | None = None,
) -> Reader:
    """Return a reader of JSON files with sentences by class; `name` gives that of the source."""
    return Reader(
        kind,
        lambda path: path.suffix.lower() == ".json" and recognizes(path),
        lambda path, _: (
            Source(name(path) if name else kind, kind, path, phrase=phrase).filled(json_of(path)),
        ),
    )


def _awt_name(path: Path) -> str:
    folders = {folder.lower() for folder in path.resolve().parts}
    shots = next((s for s in ("zero_shot", "few_shot") if f"awt_{s}" in folders), None)
    return f"awt_{shots}" if shots else "awt"


CUPL = _json_reader(
    "cupl",
    lambda path: _CUPL.search(path.stem) is not None,
    name=lambda path: "_".join(["cupl", *_CUPL.findall(path.stem)]).lower(),
)
GPT4VIS = _json_reader("gpt4vis", lambda path: _GPT4VIS.search(path.stem) is not None)
AWT = _json_reader(
    "awt",
    lambda path: any(re.match(r"AWT(_|$)", folder) for folder in path.resolve().parts[:-1]),
    name=_awt_name,
)
DCLIP = _json_reader(
    "dclip", lambda path: path.stem.lower().startswith("descriptors"), phrase=connect
)


_KIND = "clip_benchmark"


def _is_clip_benchmark(path: Path) -> bool:
    """Look for templates, or a level of datasets above the classes."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    loaded = json_of(path)
    # Reading a list without templates raises an error.
    return isinstance(loaded, list) or _has_shape(loaded)


def _has_shape(loaded: Any) -> bool:
    if isinstance(loaded, dict) and loaded:
        return all(
            (isinstance(value, dict) and not is_named(value)) or _has_templates(value)
            for value in loaded.values()
        )
    return _has_templates(loaded)


def _read_clip_benchmark(path: Path, dataset: str | None) -> tuple[Source, ...]:
    content, name = json_of(path), _KIND
    if not isinstance(content, list):
        if not isinstance(content, dict) or not _has_shape(content):
            raise FileFormatError(
                f'{path} should be {{"dataset": ["a photo of a {{c}}.", …]}} or '
                '{"dataset": {"class": ["sentence", …]}}'
            )
        if dataset is None and len(content) == 1:
            dataset = next(iter(content))
        if dataset not in content:
            holds = "several datasets" if dataset is None else f"no dataset {dataset!r}"
            raise SettingError(
                f"{path} holds {holds}; choose one with --dataset of promptboost pool: "
                f"{', '.join(content)}"
            )
        content, name = content[dataset], f"{_KIND}:{dataset}"
        if isinstance(content, dict):
            return (Source(name, _KIND, path).filled(content),)
    if not _has_templates(content):
        raise FileFormatError(
            f"{path} is a list without {{}} in every text. Class names? They go to --classes. "
            "Sentences? They need the name of their class"
        )
    return (Source(name, _KIND, path, templates=check_templates(content)),)


CLIP_BENCHMARK = Reader(_KIND, _is_clip_benchmark, _read_clip_benchmark)


_TEXT_FILE = ".txt"
# One or two words for the kind of thing: "a pet which", "a satellite image which", "a car with".
_SUBJECT = re.compile(r"an? [\w-]+(?: [\w-]+)? (which|that|with|where)\b ", re.IGNORECASE)


def name_class(class_name: str, line: str) -> str:
    """Replace "a pet" by the class in "a pet which has a short tail"."""
    start = _SUBJECT.match(line)
    if start is None:
        return line
    # After a comma "that" is no longer English.
    connector = "which" if start[1].lower() == "that" else start[1].lower()
    return f"{plain_name(class_name)}, {connector} {line[start.end() :]}"


def _unquoted(line: str) -> str:
    line = line.strip()
    return line[1:-1] if len(line) > 1 and line[0] == line[-1] == '"' else line


def _is_adaptclip(path: Path) -> bool:
    return path.is_dir() and any(file.suffix == _TEXT_FILE for file in path.iterdir())


def _read_adaptclip(path: Path, dataset: str | None) -> tuple[Source, ...]:
    try:
        files = sorted(path.iterdir(), key=lambda file: file.name)
    except OSError as error:
        raise PoolError(f"cannot read the folder {path}: {error.strerror}") from error
    texts = [file for file in files if file.suffix == _TEXT_FILE and not file.name.startswith(".")]
    if not texts:
        raise FileFormatError(f"{path} holds no file <class>{_TEXT_FILE}, one sentence a line")
    stray = tuple(file.name for file in files if file not in texts)
    name = f"adaptclip:{path.name}"
    source = Source(name, "adaptclip", path, phrase=name_class, stray=stray)
    for file in texts:
        # A line end after the last sentence is no blank sentence.
        lines = read_text(file).rstrip("\r\n").split("\n")
        source.add(file.stem, map(_unquoted, lines), path)
    return (source,)


ADAPTCLIP = Reader("adaptclip", _is_adaptclip, _read_adaptclip, takes="folder")


_PROAPO_FOLDER = "category_description"
_PHRASES: dict[str, Phrase] = {"dclip": connect, "adaptclip": name_class}


def _is_proapo(path: Path) -> bool:
    if path.suffix.lower() == ".json":
        return path.resolve().parent.name == _PROAPO_FOLDER
    return path.resolve().name == _PROAPO_FOLDER or (path / _PROAPO_FOLDER).is_dir()


def _read_proapo(path: Path, dataset: str | None) -> tuple[Source, ...]:
    if not path.is_dir():
        return (_read_proapo_file(path),)
    folder = path if path.resolve().name == _PROAPO_FOLDER else path / _PROAPO_FOLDER
    files = sorted(folder.glob("*.json"), key=lambda file: file.name)
    if not files:
        raise FileFormatError(f"{path} holds no {_PROAPO_FOLDER}/*.json")
    return tuple(map(_read_proapo_file, files))


def _read_proapo_file(path: Path) -> Source:
    phrase = _PHRASES.get(path.stem.lower())
    return Source(f"proapo:{path.stem}", "proapo", path, phrase=phrase).filled(json_of(path))


PROAPO = Reader("proapo", _is_proapo, _read_proapo, takes="both")
