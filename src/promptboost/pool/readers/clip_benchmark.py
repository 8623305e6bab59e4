"""CLIP_benchmark's JSON: templates, or sentences by class, of one or more datasets.

Templates are ``{"dataset": ["a photo of a {c}.", …]}``, or the list alone with ``{}``; sentences
are ``{"dataset": {"class": ["sentence", …]}}``.
"""

from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, SettingError
from promptboost.files import load_json, read_text
from promptboost.pool.readers.mapping import has_templates, source_from_mapping
from promptboost.pool.readers.source import Source
from promptboost.pool.templates import check_templates

__all__ = ["KIND", "has_shape", "read"]

KIND = "clip_benchmark"


def has_shape(loaded: Any) -> bool:
    """Say whether a JSON value is templates, or has a level of datasets above the classes.

    Examples
    --------
    >>> has_shape({"birds": {"owl": ["large eyes"]}}), has_shape({"owl": ["large eyes"]})
    (True, False)
    >>> has_shape(["a photo of a {}."]), has_shape({"birds": ["a photo of a {c}."]})
    (True, True)
    """
    if isinstance(loaded, dict) and loaded:
        return all(isinstance(value, dict) or has_templates(value) for value in loaded.values())
    return has_templates(loaded)


def read(path: Path, dataset: str | None = None) -> Source:
    """Read one file; `dataset` says which of several it should be.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "templates.json")
    ...     _ = path.write_text('{"birds": ["a photo of a {c}."]}')
    ...     read(path).texts([], "owl")
    ['a photo of an owl.']
    """
    loaded = load_json(read_text(path), str(path))
    if isinstance(loaded, list):
        return _templates(loaded, path, KIND)
    if not isinstance(loaded, dict) or not has_shape(loaded):
        raise FileFormatError(
            f'{path} should be {{"dataset": ["a photo of a {{c}}.", …]}} or '
            '{"dataset": {"class": ["sentence", …]}}'
        )
    chosen = _choose(loaded, dataset, path)
    name, inside = f"{KIND}:{chosen}", loaded[chosen]
    if isinstance(inside, list):
        return _templates(inside, path, name)
    return source_from_mapping(inside, path, name, KIND)


def _choose(loaded: dict[str, Any], dataset: str | None, path: Path) -> str:
    if dataset is None and len(loaded) == 1:
        return next(iter(loaded))
    if dataset not in loaded or dataset is None:
        said = "holds several datasets" if dataset is None else f"holds no dataset {dataset!r}"
        raise SettingError(
            f"{path} {said}; choose one with --dataset of promptboost pool: {', '.join(loaded)}"
        )
    return dataset


def _templates(listed: list[Any], path: Path, name: str) -> Source:
    if not has_templates(listed):
        raise FileFormatError(
            f"{path} is a list without {{}} in every text. Class names? They go to --classes. "
            "Sentences? They need to say of which class they are"
        )
    templates = check_templates(text.replace("{c}", "{}") for text in listed)
    return Source(name, KIND, path, {}, templates=templates)
