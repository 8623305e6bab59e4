"""Files that hold many images: rows of Parquet files and members of tars, read one after the other."""

import json
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import BadImage
from promptboost.data.manifest import cell_text, split_of
from promptboost.distributed.storage import FileRefusedError, open_url, reaching
from promptboost.errors import DataError, MissingExtraError
from promptboost.io import open_regular

#: Where the pixels of a row are, the first there is; as bytes, or as a record of bytes and path.
IMAGE_COLUMNS = ("image", "jpg", "jpeg", "png", "webp", "bytes", "content")
# What a member of a tar is, by its ending; all others go with no image.
_LABEL_ENDINGS = ("cls", "txt")
_IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
_ROWS_AT_ONCE = 64

Read = LabeledImage | BadImage


@dataclass(frozen=True, slots=True)
class UnreadImage(BadImage):
    """An image of a listing that is not read, with what the listing says of it.

    A class all of whose images are like that must not vanish.
    """

    label: str = ""
    split: str = ""

    @classmethod
    def of(cls, image: LabeledImage, reason: str) -> "UnreadImage":
        """Put it in the place of an image."""
        return cls(image.id, reason, image.label, image.split or "")


class RefusedImage(UnreadImage):
    """An image that storage elsewhere does not give away; where all are, that is not their fault."""


@contextmanager
def opened(place: str) -> Iterator[Any]:
    """Open a file of this machine, or at a URL, to read bytes."""
    if "://" not in place:
        with open_regular(place) as file:
            yield file
        return
    system, path = open_url(place)
    with reaching(place), system.open(path, "rb") as file:
        yield file


def table_length(place: str) -> int:
    """Return the number of rows of a Parquet file; of all else in it, nothing is read."""
    with opened(place) as file:
        return int(_parquet(file, place).metadata.num_rows)


def table_images(
    place: str, rows: tuple[int, int], *, name: str = "", labelled: bool = False
) -> Iterator[Read]:
    """Read the images in some rows of a Parquet file: a column of bytes, or one of paths.

    An image is called by its path where there is one, else by `name` and the number of its row.
    """
    start, stop = rows
    with opened(place) as file:
        table = _parquet(file, place)
        pixels = next((c for c in IMAGE_COLUMNS if c in table.schema_arrow.names), None)
        columns = [c for c in (pixels, "path", "label", "split") if c in table.schema_arrow.names]
        if pixels is None and "path" not in columns:
            raise DataError(
                f"{place} has no column of images: it needs path, or one of {', '.join(IMAGE_COLUMNS)}"
            )
        if labelled and "label" not in columns:
            raise DataError(f"{place} has no column 'label'")
        number, groups = _groups(table, start, stop)
        for batch in table.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns):
            if number + len(batch) > start and number < stop:
                for offset, row in enumerate(batch.to_pylist(), start=number):
                    if start <= offset < stop:
                        yield _image_of_row(row, f"{name or place}#{offset}", pixels, place)
            number += len(batch)


def archive_images(place: str, *, name: str = "") -> Iterator[Read]:
    """Read the images of a tar as WebDataset has them: files of one name, each with another ending.

    A label is in the file that ends in ``.cls`` or ``.txt``, or under ``"label"`` in the one that ends in
    ``.json``.
    """
    with opened(place) as file:
        try:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                yield from _samples(archive, name or place)
        except tarfile.TarError as error:
            raise DataError(f"{place} is not a tar that can be read: {error}") from error


def _samples(archive: tarfile.TarFile, name: str) -> Iterator[Read]:
    sample: dict[str, tuple[str, bytes]] = {}
    before = None
    for member in archive:
        if not member.isfile():
            continue
        folder, own = posixpath.split(member.name)
        stem, _, ending = own.partition(".")
        key = posixpath.join(folder, stem)
        if key != before and sample:
            yield from _image_of_sample(sample, name)
            sample = {}
        before = key
        content = archive.extractfile(member)
        sample[ending.lower()] = member.name, b"" if content is None else content.read()
    if sample:
        yield from _image_of_sample(sample, name)


def _image_of_sample(sample: Mapping[str, tuple[str, bytes]], name: str) -> Iterator[Read]:
    pixels = next((sample[e] for e in _IMAGE_ENDINGS if e in sample), None)
    if pixels is None:
        return
    label = next((sample[e][1] for e in _LABEL_ENDINGS if e in sample), b"")
    word = label.decode("utf-8", "replace").strip()
    if not word and "json" in sample:
        try:
            about = json.loads(sample["json"][1])
            word = str(about.get("label", "")) if isinstance(about, dict) else ""
        except ValueError:
            word = ""
    yield LabeledImage(f"{name}/{pixels[0]}", word, pixels[1])


def _image_of_row(row: Mapping[str, Any], name: str, pixels: str | None, place: str) -> Read:
    value = None if pixels is None else row[pixels]
    path = row.get("path")
    if isinstance(value, dict):  # as libraries of datasets write images
        path = path or value.get("path")
        value = value.get("bytes")
    label = cell_text(row, "label", name) if row.get("label") is not None else ""
    split = split_of(row.get("split"), name)
    called = path if isinstance(path, str) and path else name
    if isinstance(value, bytes):
        return LabeledImage(called, label, value, split)
    if not isinstance(path, str) or not path:
        return BadImage(name, "there are neither bytes nor a path in this row")
    if "://" in place and not path.startswith("/") and "://" not in path:
        path = f"{place.rpartition('/')[0]}/{path}"
    elif "://" not in path:
        return LabeledImage(called, label, Path(place).parent / path, split)
    return fetched(LabeledImage(called, label, b"", split), path)


def fetched(image: LabeledImage, url: str) -> Read:
    """Return an image with the bytes of its file elsewhere, in one request, or what is wrong with it."""
    system, path = open_url(url)
    try:
        with reaching(url):
            content: bytes = system.cat_file(path)
    except FileRefusedError as error:
        return RefusedImage.of(image, error.reason)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        return UnreadImage.of(image, error.strerror or str(error) or type(error).__name__)
    return LabeledImage(image.id, image.label, content, image.split)


def _groups(table: Any, start: int, stop: int) -> tuple[int, list[int]]:
    """Return the row groups that hold some rows, and the number of the first row in them."""
    groups: list[int] = []
    first = begin = 0
    for group in range(table.num_row_groups):
        end = begin + table.metadata.row_group(group).num_rows
        if end > start and begin < stop:
            first = begin if not groups else first
            groups.append(group)
        begin = end
    return first, groups


def _parquet(file: Any, place: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet needs pyarrow, which is not installed; type: pip install 'promptboost[ray]'"
        ) from error
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{place} is not a Parquet file that can be read: {error}") from error
