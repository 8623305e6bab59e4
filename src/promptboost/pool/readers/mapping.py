"""The shape most of the field uses: ``{"class": ["sentence", …], …}`` in one JSON file.

The files of CuPL, GPT4Vis and AWT have it and differ in their names. CuPL's are
``*_prompts_base.json`` and ``*_prompts_full.json``: whole sentences, some with line breaks, many
of them twice; cars have the year last, scenes a word in brackets. GPT4Vis has twenty sentences a
class in ``*_20_prompts*.json``; actions are written in CamelCase, cars with the year first. AWT's
files, fifty sentences a class and more, are named after their dataset, so that only a folder whose
name begins with AWT tells them from a user's own; class names have underscores, and blank
sentences occur.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError
from promptboost.files import Stamp, file_stamp, read_json
from promptboost.pool.readers.source import Gathering, Phrase, Reader, Source

_CUPL = re.compile(r"prompts_(base|full)$", re.IGNORECASE)
_GPT4VIS = re.compile(r"_\d+_prompts(_|$)", re.IGNORECASE)


def json_of(path: Path) -> Any:
    """Read a JSON file; to recognise its shape and to read its sentences takes one parse."""
    return _json_of(path, file_stamp(path))


@lru_cache(maxsize=1)
def _json_of(path: Path, stamp: Stamp | None) -> Any:
    return read_json(path)


def read_mapping(path: Path, name: str, kind: str, phrase: Phrase | None = None) -> Source:
    """Read a file of that shape."""
    return source_from_mapping(json_of(path), path, name, kind, phrase)


def source_from_mapping(
    loaded: Any, path: Path, name: str, kind: str, phrase: Phrase | None = None
) -> Source:
    """Make a source of such a JSON object; `path` is where it was read."""
    if not isinstance(loaded, dict):
        raise FileFormatError(
            f'{path} holds a {type(loaded).__name__}; it should be {{"class": ["sentence", …]}}'
        )
    gathering = Gathering(str(path))
    for entry, sentences in loaded.items():
        if isinstance(entry, str) and " ".join(entry.split()) in gathering.sentences:
            raise FileFormatError(
                f"{path}: {' '.join(entry.split())!r} occurs twice; join the two lists"
            )
        gathering.add(entry, sentences)
    return gathering.source(name, kind, path, phrase=phrase)


def has_templates(listed: object) -> bool:
    """Tell whether a JSON value is a list of sentences with a place for the class name."""
    return (
        isinstance(listed, list)
        and bool(listed)
        and all(isinstance(text, str) and ("{}" in text or "{c}" in text) for text in listed)
    )


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _read_cupl(path: Path, dataset: str | None) -> tuple[Source, ...]:
    named = _CUPL.search(path.stem)
    return (read_mapping(path, f"cupl_{named[1].lower()}" if named else "cupl", "cupl"),)


def _read_gpt4vis(path: Path, dataset: str | None) -> tuple[Source, ...]:
    return (read_mapping(path, "gpt4vis", "gpt4vis"),)


def _is_awt(path: Path) -> bool:
    folders = path.resolve().parts[:-1]
    return _is_json(path) and any(part == "AWT" or part.startswith("AWT_") for part in folders)


def _read_awt(path: Path, dataset: str | None) -> tuple[Source, ...]:
    folders = {part.lower() for part in path.resolve().parts}
    shots = next((s for s in ("zero_shot", "few_shot") if f"awt_{s}" in folders), None)
    return (read_mapping(path, f"awt_{shots}" if shots else "awt", "awt"),)


CUPL = Reader(
    "cupl", lambda path: _is_json(path) and _CUPL.search(path.stem) is not None, _read_cupl
)
GPT4VIS = Reader(
    "gpt4vis", lambda path: _is_json(path) and _GPT4VIS.search(path.stem) is not None, _read_gpt4vis
)
AWT = Reader("awt", _is_awt, _read_awt)
