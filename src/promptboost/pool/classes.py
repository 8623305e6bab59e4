"""The names of the classes, wherever they are written down."""

from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.pool.loading import load_json, read_text
from promptboost.pool.text import clean, name_key

__all__ = ["read_class_names"]

_LABELS = "label_to_category_name.json"


def read_class_names(source: str | Path) -> tuple[str, ...] | None:
    r"""Read class names from a file of names; None if it is no such file but perhaps pictures.

    Parameters
    ----------
    source : path-like
        A text file with a name a line; a JSON list of names, or ``{"0": "name", …}``; a JSON file
        of sentences by class, whose names are taken; or a ProAPO folder.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "classes.txt")
    ...     _ = path.write_text("owl\nbat\n")
    ...     read_class_names(path)
    ('owl', 'bat')
    """
    path = Path(source)
    if path.is_dir() and (path / _LABELS).is_file():
        path = path / _LABELS
    if not path.is_file():  # a benchmark's name may end in .json too: dtd:DIR@split.json
        return None
    if path.suffix.lower() == ".txt":
        return _checked([line for line in read_text(path).splitlines() if line.strip()], path)
    if path.suffix.lower() == ".json":
        return _checked(_names(load_json(read_text(path), str(path)), path), path)
    return None


def _names(loaded: Any, path: Path) -> list[Any]:
    if isinstance(loaded, list):
        return loaded
    if isinstance(loaded, dict) and all(isinstance(value, str) for value in loaded.values()):
        if not all(key.isdecimal() for key in loaded):
            raise FileFormatError(f'{path} should be {{"0": "name", "1": "name", …}}')
        return [loaded[key] for key in sorted(loaded, key=int)]
    if isinstance(loaded, dict) and all(isinstance(value, list) for value in loaded.values()):
        return list(loaded)
    raise FileFormatError(f'{path} should be ["name", …] or {{"0": "name", …}}')


def _checked(names: list[Any], path: Path) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for number, given in enumerate(names, start=1):
        try:
            name = clean(given, where=f"class name {number}")
        except PoolError as error:
            raise FileFormatError(f"{path}: {error}") from error
        if (key := name_key(name)) in seen:
            raise PoolError(
                f"{path}: two classes have the same name, {seen[key]!r} and {name!r} (case, "
                "underscores and hyphens do not count): rename one"
            )
        seen[key] = name
    if not seen:
        raise FileFormatError(f"{path} holds no class names")
    return tuple(seen.values())
