"""The shape most of the field uses: ``{"class": ["sentence", …], …}`` in one JSON file.

The files of CuPL, GPT4Vis and AWT have it and differ in their names. CuPL's are
``*_prompts_base.json`` and ``*_prompts_full.json``: whole sentences, some with line breaks, many
of them twice; cars have the year last, scenes a word in brackets. GPT4Vis has twenty sentences a
class in ``*_20_prompts*.json``; actions are written in CamelCase, cars with the year first. AWT's
files, fifty sentences a class and more, are named after their dataset, so that only a folder whose
name begins with AWT tells them from a user's own; class names have underscores, and blank
sentences occur.

CLIP_benchmark has one level more, ``{"dataset": {"class": ["sentence", …]}}``; or templates,
``{"dataset": ["a photo of a {c}.", …]}``, or the list of them alone, with ``{}``.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, SettingError, a_type
from promptboost.io import Stamp, file_stamp, read_json
from promptboost.pool.readers.source import Gathering, Phrase, Reader, Source
from promptboost.pool.templates import check_templates

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
    return _from_mapping(json_of(path), path, name, kind, phrase)


def _from_mapping(
    loaded: Any, path: Path, name: str, kind: str, phrase: Phrase | None = None
) -> Source:
    """Make a source of such a JSON object; `path` is where it was read."""
    if not isinstance(loaded, dict):
        raise FileFormatError(
            f'{path} holds {a_type(loaded)}; it should be {{"class": ["sentence", …]}}'
        )
    gathering = Gathering(str(path))
    for entry, sentences in loaded.items():
        if isinstance(entry, str) and " ".join(entry.split()) in gathering.sentences:
            raise FileFormatError(
                f"{path}: {' '.join(entry.split())!r} occurs twice; join the two lists"
            )
        gathering.add(entry, sentences)
    return gathering.source(name, kind, path, phrase=phrase)


def _has_templates(listed: object) -> bool:
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
    "gpt4vis",
    lambda path: _is_json(path) and _GPT4VIS.search(path.stem) is not None,
    lambda path, _: (read_mapping(path, "gpt4vis", "gpt4vis"),),
)
AWT = Reader("awt", _is_awt, _read_awt)


_KIND = "clip_benchmark"


def _is_clip_benchmark(path: Path) -> bool:
    """Look for templates, or a level of datasets above the classes."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    loaded = json_of(path)
    # A list without templates is no source either: reading it says so.
    return isinstance(loaded, list) or _has_shape(loaded)


def _has_shape(loaded: Any) -> bool:
    if isinstance(loaded, dict) and loaded:
        return all(isinstance(value, dict) or _has_templates(value) for value in loaded.values())
    return _has_templates(loaded)


def _read_clip_benchmark(path: Path, dataset: str | None) -> tuple[Source, ...]:
    loaded = json_of(path)
    if isinstance(loaded, list):
        return (_templates(loaded, path, _KIND),)
    if not isinstance(loaded, dict) or not _has_shape(loaded):
        raise FileFormatError(
            f'{path} should be {{"dataset": ["a photo of a {{c}}.", …]}} or '
            '{"dataset": {"class": ["sentence", …]}}'
        )
    chosen = _choose(loaded, dataset, path)
    name, inside = f"{_KIND}:{chosen}", loaded[chosen]
    if isinstance(inside, list):
        return (_templates(inside, path, name),)
    return (_from_mapping(inside, path, name, _KIND),)


def _choose(loaded: dict[str, Any], dataset: str | None, path: Path) -> str:
    if dataset is None and len(loaded) == 1:
        return next(iter(loaded))
    if dataset not in loaded or dataset is None:
        holds = "several datasets" if dataset is None else f"no dataset {dataset!r}"
        raise SettingError(
            f"{path} holds {holds}; choose one with --dataset of promptboost pool: {', '.join(loaded)}"
        )
    return dataset


def _templates(listed: list[Any], path: Path, name: str) -> Source:
    if not _has_templates(listed):
        raise FileFormatError(
            f"{path} is a list without {{}} in every text. Class names? They go to --classes. "
            "Sentences? They need to say of which class they are"
        )
    templates = check_templates(text.replace("{c}", "{}") for text in listed)
    return Source(name, _KIND, path, {}, templates=templates)


CLIP_BENCHMARK = Reader(_KIND, _is_clip_benchmark, _read_clip_benchmark)
