"""CLIP_benchmark's JSON: templates, or sentences by class, of one or more datasets.

Templates are ``{"dataset": ["a photo of a {c}.", …]}``, or the list alone with ``{}``; sentences
are ``{"dataset": {"class": ["sentence", …]}}``.
"""

from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, SettingError
from promptboost.pool.readers.mapping import has_templates, json_of, source_from_mapping
from promptboost.pool.readers.source import Reader, Source
from promptboost.pool.templates import check_templates

_KIND = "clip_benchmark"


def _recognises(path: Path) -> bool:
    """Look for templates, or a level of datasets above the classes."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    loaded = json_of(path)
    # A list without templates is no source either: reading it says so.
    return isinstance(loaded, list) or _has_shape(loaded)


def _has_shape(loaded: Any) -> bool:
    if isinstance(loaded, dict) and loaded:
        return all(isinstance(value, dict) or has_templates(value) for value in loaded.values())
    return has_templates(loaded)


def _read(path: Path, dataset: str | None) -> tuple[Source, ...]:
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
    return (source_from_mapping(inside, path, name, _KIND),)


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
    if not has_templates(listed):
        raise FileFormatError(
            f"{path} is a list without {{}} in every text. Class names? They go to --classes. "
            "Sentences? They need to say of which class they are"
        )
    templates = check_templates(text.replace("{c}", "{}") for text in listed)
    return Source(name, _KIND, path, {}, templates=templates)


CLIP_BENCHMARK = Reader(_KIND, _recognises, _read)
