"""Pictures listed in a CSV or JSON Lines file: path, label, and perhaps split."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promptboost.data.listing import Listing
from promptboost.data.rows import check_columns, pictures_of_rows
from promptboost.errors import DataError

__all__ = ["MANIFEST_ENDINGS", "read_manifest"]

MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")

_Row = tuple[str, dict[str, Any]]


def read_manifest(path: Path) -> Listing:
    r"""List the pictures of a manifest.

    Paths are absolute or relative to the manifest's folder, with either kind of slash. The file is
    UTF-8, with or without a byte order mark; blank lines are passed over.

    Parameters
    ----------
    path : Path
        A file that ends in .csv, .tsv (tabs), .jsonl or .ndjson.

    Returns
    -------
    Listing
        The pictures, and the lines that repeat one.

    Raises
    ------
    DataError
        If the file or a line of it is wrong; the message has the number of the line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = Path(folder) / "pets.csv"
    ...     _ = manifest.write_text("path,label\na.jpg,cat\nb.jpg,dog\n")
    ...     listing = read_manifest(manifest)
    >>> [(picture.id, picture.label) for picture in listing.pictures]
    [('a.jpg', 'cat'), ('b.jpg', 'dog')]
    """
    text = _text_of(path)
    ending = path.suffix.lower()
    if ending in (".jsonl", ".ndjson"):
        rows = _json_rows(text, path.name)
    else:
        rows = _csv_rows(text, path.name, "\t" if ending == ".tsv" else ",")
    listing = pictures_of_rows(rows, path.parent)
    if not listing.pictures:
        raise DataError(f"{path} lists no pictures; add lines with a path and a label")
    return listing


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _csv_rows(text: str, name: str, delimiter: str) -> Iterator[_Row]:
    # newline="" keeps line ends as they are: csv itself must see those inside quotes.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{name}, line {reader.line_num}"
            if header is None:
                header = [cell.strip().lower() for cell in cells]
                check_columns(header, ["path", "label"], name)
            elif len(cells) != len(header):
                raise DataError(
                    f"{where}: {len(cells)} cells under {len(header)} columns; "
                    "put quotes around a cell that has a comma in it"
                )
            else:
                yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: {error}; check its quotes") from error


def _json_rows(text: str, name: str) -> Iterator[_Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{where}: not JSON ({error}); write one object on each line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f'{where}: not an object; write {{"path": …, "label": …}}')
        row = {str(key).strip().lower(): value for key, value in row.items()}
        check_columns(row, ["path", "label"], where)
        yield where, row
