"""Rows of a table (path, label, perhaps split), from a manifest or a data frame, as pictures."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from promptboost.data.dataset import Picture
from promptboost.data.listing import Listing
from promptboost.data.names import split_name
from promptboost.data.reading import BadPicture
from promptboost.errors import DataError

__all__ = ["check_columns", "pictures_of_rows", "split_of"]


def pictures_of_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], root: Path) -> Listing:
    r"""Turn rows into pictures; a path listed twice alike is kept once and reported.

    Parameters
    ----------
    rows : iterable of (str, mapping)
        Where a row is, for messages (``"pets.csv, line 3"``), and its cells.
    root : Path
        The folder that relative paths start from.

    Examples
    --------
    >>> rows = [("line 2", {"path": "a\\1.jpg", "label": "cat", "split": "training"})]
    >>> picture = pictures_of_rows(rows, Path("pets")).pictures[0]
    >>> picture.id, picture.label, picture.split
    ('a/1.jpg', 'cat', 'train')
    """
    found: dict[str, tuple[str, Picture]] = {}
    bad: list[BadPicture] = []
    for where, row in rows:
        text = _text(row, "path", where)
        name, path = _located(text, root)
        picture = Picture(name, _text(row, "label", where), path, split_of(row.get("split"), where))
        if name not in found:
            found[name] = where, picture
            continue
        first, earlier = found[name]
        if (earlier.label, earlier.split) != (picture.label, picture.split):
            raise DataError(
                f"{where}: {text!r} is listed before ({first}) with another label or split; "
                "remove one of the two"
            )
        bad.append(BadPicture(where, f"{text} is listed before ({first}); it is used once"))
    return Listing.of((picture for _, picture in found.values()), bad)


def check_columns(columns: Iterable[Any], needed: Iterable[str], where: str) -> None:
    """Refuse a table that lacks a column.

    Examples
    --------
    >>> check_columns(["path", "label"], ["path", "label"], "pets.csv")
    """
    there = [str(column) for column in columns]
    missing = [name for name in needed if name not in there]
    if missing:
        raise DataError(
            f"{where} has no column {' and no column '.join(map(repr, missing))}; it has: "
            f"{', '.join(there) or 'none'}. It needs path and label, and may have split"
        )


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value: Any = row.get(column)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    # Whole numbers are accepted because labels often are; numpy's have no common base with int.
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: the {column} is {value!r}; it must be a text that is not blank")
    return value.strip()


def _located(text: str, root: Path) -> tuple[str, Path]:
    path = root / text
    if "\\" in text and os.sep == "/" and not path.exists():
        # Written on Windows. A backslash can be part of a name here, hence the look first.
        path = root / text.replace("\\", "/")
    path = Path(os.path.normpath(path))
    inside = path.is_relative_to(root)
    return (path.relative_to(root) if inside else path).as_posix(), path


def split_of(value: Any, where: str) -> str | None:
    """Read the cell that names a split; None if it is blank.

    Examples
    --------
    >>> split_of("Testing", "line 3"), split_of("", "line 4")
    ('test', None)
    """
    # A blank cell of a data frame is a float that is not equal to itself.
    if value is None or value != value or not str(value).strip():
        return None
    split = split_name(str(value))
    if split is None:
        raise DataError(f"{where}: the split is {value!r}; it must be train, val, test or blank")
    return split
