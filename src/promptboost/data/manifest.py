"""Images listed in a CSV or JSON Lines file, or in rows of any table: path, label, perhaps split."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from promptboost.data.dataset import Dataset, LabeledImage, is_missing, split_name
from promptboost.data.decode import BadImage
from promptboost.errors import DataError, without_content
from promptboost.io import check_values, parse_json, read_text

MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")

_Row = tuple[str, dict[str, Any]]
_Header = Callable[[Iterable[str], str], list[str]]


def read_manifest(path: Path, columns: Mapping[str, str] | None = None) -> Dataset:
    """List the images of a manifest; `columns` are other names of path and label.

    Paths are absolute or relative to the manifest's folder, with either kind of slash. The file is
    UTF-8, with or without a byte order mark; blank lines are passed over.
    """
    text = read_text(path, error=DataError)
    # newline="" keeps line ends as they are: csv itself must see those inside quotes.
    listing = images_of_rows(
        manifest_rows(io.StringIO(text, newline=""), path.name, columns=columns), path.parent
    )
    if not listing.images:
        raise DataError(f"{path} lists no images; add lines with a path and a label")
    return listing


def manifest_rows(
    lines: Iterable[str],
    name: str,
    needed: Sequence[str] = ("path", "label"),
    optional: Sequence[str] = ("split", "group"),
    columns: Mapping[str, str] | None = None,
) -> Iterator[_Row]:
    """Iterate over the rows of a table, each with its file and line for messages.

    The format depends on the ending of `name`. Lines must have their original line ends. Columns in
    `needed` and `optional` occur once at most. `columns` are new names of columns; ``file_name``, as in
    Hugging Face's ``imagefolder``, is called path.
    """

    def checked(names: Iterable[str], where: str) -> list[str]:
        renamed = _renamed(names, columns or {})
        check_columns(renamed, needed, where, optional)
        return renamed

    ending = Path(name).suffix.lower()
    if ending in (".jsonl", ".ndjson"):
        fields = ", ".join(f'"{column}": …' for column in (*needed, optional[0]))
        return _json_rows(lines, name, checked, f"write {{{fields}}}")
    return _csv_rows(lines, name, checked, "\t" if ending == ".tsv" else ",")


def _renamed(names: Iterable[str], columns: Mapping[str, str]) -> list[str]:
    """Return the names of columns in lower case, with those in `columns` replaced."""
    names = [name.strip().lower() for name in names]
    if "path" not in {*names, *columns.values()}:
        columns = {"file_name": "path", **columns}
    replaced = {columns[name] for name in names if name in columns}
    return [columns.get(name, f"other {name}" if name in replaced else name) for name in names]


def _csv_rows(lines: Iterable[str], name: str, checked: _Header, delimiter: str) -> Iterator[_Row]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{name}, line {reader.line_num}"
            if header is None:
                header = checked(cells, name)
            elif len(cells) != len(header):
                raise DataError(
                    f"{where}: {len(cells)} cells under {len(header)} columns; "
                    "put quotes around a cell that has a comma in it"
                )
            else:
                yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: {error}; check its quotes") from error


def _json_rows(lines: Iterable[str], name: str, checked: _Header, advice: str) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            row = parse_json(line)
            check_values(row)
        except ValueError as error:
            raise DataError(
                f"{where}: not JSON ({error}); write one object on each line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: not an object; {advice}")
        yield where, dict(zip(checked(row, where), row.values(), strict=True))


def images_of_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], root: Path) -> Dataset:
    """Turn rows into images; a path listed twice alike is kept once and reported."""
    images: dict[str, tuple[str, LabeledImage]] = {}
    bad: list[BadImage] = []
    for where, row in rows:
        text = cell_text(row, "path", where)
        name, path = _located(text, root)
        label = row.get("label")
        if is_missing(label):
            raise DataError(
                f"{where}: the label is missing ({label!r}); remove the row or label it"
            )
        split = split_of(row.get("split"), where)
        group = "" if is_missing(row.get("group")) else cell_text(row, "group", where)
        image = LabeledImage(name, cell_text(row, "label", where), path, split, group=group)
        if name not in images:
            images[name] = where, image
            continue
        first, earlier = images[name]
        if (earlier.label, earlier.split) != (image.label, image.split):
            raise DataError(
                f"{where}: {text!r} is listed before ({first}) with another label or split; "
                "remove one of the two"
            )
        bad.append(BadImage(where, f"{text} is listed before ({first}); it is used once"))
    return Dataset.unchecked((image for _, image in images.values()), bad)


def check_columns(
    columns: Iterable[Any], needed: Sequence[str], where: str, optional: Sequence[str] = ("split",)
) -> None:
    """Raise DataError if a table lacks a column, or has it twice."""
    names = [str(column) for column in columns]
    for name in (*needed, *optional):
        if names.count(name) > 1:
            raise DataError(
                f"{where} has the column {name!r} {names.count(name)} times; keep the one that is meant"
            )
    missing = [name for name in needed if name not in names]
    if missing:
        raise DataError(
            f"{where} has no column {' and no column '.join(map(repr, missing))}; it has: "
            f"{', '.join(names) or 'none'}. It needs {' and '.join(needed)}, and may have "
            f"{' or '.join(optional)}"
            f"{'; separate its columns by commas' if [';' in name for name in names] == [True] else ''}"
        )


def cell_text(row: Mapping[str, Any], column: str, where: str) -> str:
    """Read a cell that must hold a text, or a whole number."""
    value: Any = row.get(column)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    # Whole numbers are accepted because labels often are; numpy's have no common base with int.
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{where}: the {column} is {without_content(value)}; it must be a text that is not blank"
        )
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
    """Read the cell that names a split; None if it is blank."""
    # A blank cell of a data frame is a float that is not equal to itself.
    if value is None or value != value or not str(value).strip():
        return None
    split = split_name(str(value))
    if split is None:
        raise DataError(
            f"{where}: the split is {without_content(value)}; it must be train, val, test or blank"
        )
    return split
