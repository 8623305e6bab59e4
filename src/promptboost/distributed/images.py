"""Listings of images, and reading them: folders, manifests, Parquet files and tars, by path or URL.

A listing is never in memory as a whole: only one folder of it, or one line of a manifest. Parquet files and
tars are opened by the worker that reads them; a listing holds parts of them.
"""

import io
import json
import os
import posixpath
import stat
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from platform import node
from typing import Any

import msgspec

from promptboost.data.dataset import LabeledImage, split_name
from promptboost.data.decode import BadImage, reason_for
from promptboost.data.manifest import MANIFEST_ENDINGS, cell_text, manifest_rows, split_of
from promptboost.data.source import COMPANIONS, NO_CLASS, DataSource
from promptboost.distributed.storage import (
    FileRefusedError,
    StorageError,
    is_url,
    open_url,
    reaching,
)
from promptboost.errors import DataError, MissingExtraError, count
from promptboost.io import open_regular

TABLE = ".parquet"
ARCHIVE = ".tar"
#: Rows of a Parquet file that make one item of a listing.
TABLE_ROWS = 512
#: Columns with the content of an image, by priority: bytes, or records of bytes and path.
IMAGE_COLUMNS = ("image", "jpg", "jpeg", "png", "webp", "bytes", "content")
# Endings of the members of a tar.
_LABEL_ENDINGS = ("cls", "txt")
_IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
_ROWS_AT_ONCE = 64
# Files that are downloaded while others are decoded.
_AHEAD = 32


class ImageItem(msgspec.Struct, frozen=True, array_like=True):
    """One image of a listing, or a part of a file that holds many.

    Examples
    --------
    >>> msgspec.json.encode(ImageItem("cat/1.png", "photos/cat/1.png", "310-17", label="cat"))
    b'["cat/1.png","photos/cat/1.png","310-17","cat","",null,""]'
    """

    name: str  # in results
    place: str  # the path or URL of its file, or of the file that holds it
    state: str = ""  # changes with the content: size and time of change, or an ETag
    label: str = ""
    split: str = ""
    rows: tuple[int, int] | None = None  # of a Parquet file: from … to …
    problem: str = ""  # why there is no image

    @property
    def holds_many(self) -> bool:
        """Whether it is a part of a Parquet file, or a tar."""
        return self.rows is not None or self.place.lower().endswith(ARCHIVE)


def list_items(
    sources: str | Sequence[str], *, labeled: bool = False, table_rows: int = TABLE_ROWS
) -> Iterator[ImageItem]:
    """List images in an order that depends on nothing but their names.

    Parameters
    ----------
    sources : str or sequence of str
        Folders, images, manifests (CSV or JSON Lines), Parquet files and tars, each a path or a URL.
        The files of a folder come in the order of their names, folder by folder.
    labeled : bool, default=False
        Whether every image needs a label: its folder, a column, or the ``cls`` member of a tar. Names are
        then relative to the folder, as in ``fit``.
    table_rows : int
        Rows of a Parquet file that make one item.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("b.png", "a.png", "notes.txt"):
    ...         _ = (Path(root) / name).write_bytes(b"")
    ...     [Path(item.name).name for item in list_items(root)]
    ['a.png', 'b.png']
    """
    for source in [sources] if isinstance(sources, str) else sources:
        for item in _items_of(os.fspath(source), labeled):
            if PurePosixPath(item.place).suffix.lower() != TABLE:
                yield item
                continue
            total = table_length(item.place)
            for start in range(0, total, table_rows):
                rows = (start, min(total, start + table_rows))
                yield msgspec.structs.replace(item, rows=rows)


def _items_of(source: str, labeled: bool) -> Iterator[ImageItem]:
    if not is_url(source) and (parsed := DataSource.parse(source)).benchmark is not None:
        for image in parsed.load(check=False).images:
            path = str(image.source)
            entry = _LocalFiles().entry(path)
            state = "" if entry is None else entry.state
            yield ImageItem(image.id, path, state, image.label, image.split or "")
        return
    if source == "emoji":
        raise DataError("the emoji are for one process: leave out --on, --shard and --storage")
    files: _Files = _RemoteFiles.of(source) if is_url(source) else _LocalFiles()
    root = files.root(source)
    entry = files.entry(root)
    # What names begin with, as where images are predicted one by one.
    name = source.rstrip("/") if is_url(source) else Path(source).as_posix()
    suffix = PurePosixPath(root).suffix.lower()
    if entry is None:
        if labeled or is_url(source):
            raise DataError(f"{source} does not exist; give a folder, a manifest, Parquet or tars")
        yield ImageItem(source, root)  # as in `predict`, its record names the error
    elif entry.is_folder:
        yield from _labeled_folder(files, root) if labeled else _walk(files, root, name)
    elif suffix in MANIFEST_ENDINGS:
        yield from _manifest(files, root, labeled)
    else:
        if labeled and suffix not in (TABLE, ARCHIVE):
            raise DataError(f"{source} is one file without a label; give a folder or a manifest")
        yield ImageItem(name, files.url(root), entry.state)


@dataclass(frozen=True)
class _Entry:
    name: str
    is_folder: bool
    state: str = ""
    identity: tuple[int, int] | None = None  # of a local folder, which a link may lead back to


class _LocalFiles:
    """The files of this machine, and of its mounts."""

    def root(self, source: str) -> str:
        return os.path.abspath(source)  # other processes have other working directories

    def url(self, path: str) -> str:
        return path

    def open(self, path: str) -> Any:
        return open(path, "rb")

    def entry(self, path: str) -> _Entry | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return self._entry(Path(path).name, status)

    def entries(self, folder: str) -> list[_Entry]:
        listed = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    listed.append(self._entry(entry.name, entry.stat()))
                except OSError:  # a broken link: it is listed, and cannot be read
                    listed.append(_Entry(entry.name, False))
        return sorted(listed, key=lambda entry: entry.name)

    def _entry(self, name: str, status: os.stat_result) -> _Entry:
        if stat.S_ISDIR(status.st_mode):
            return _Entry(name, True, identity=(status.st_dev, status.st_ino))
        return _Entry(name, False, f"{status.st_size}-{status.st_mtime_ns}")


@dataclass(frozen=True)
class _RemoteFiles:
    """The files at a URL."""

    system: Any
    protocol: str

    @classmethod
    def of(cls, source: str) -> "_RemoteFiles":
        return cls(open_url(source)[0], source.partition("://")[0])

    def root(self, source: str) -> str:
        return open_url(source)[1]

    def url(self, path: str) -> str:
        return f"{self.protocol}://{path.lstrip('/') if self.protocol != 'memory' else path}"

    def open(self, path: str) -> Any:
        with reaching(self.url(path)):
            return self.system.open(path, "rb")

    def entry(self, path: str) -> _Entry | None:
        try:
            with reaching(self.url(path)):
                info = self.system.info(path)
        except FileNotFoundError:
            return None
        return self._entry(info)

    def entries(self, folder: str) -> list[_Entry]:
        with reaching(self.url(folder)):
            infos = self.system.ls(folder, detail=True)
        itself = folder.rstrip("/")
        listed = [self._entry(info) for info in infos if info["name"].rstrip("/") != itself]
        return sorted(listed, key=lambda entry: entry.name)

    def _entry(self, info: dict[str, Any]) -> _Entry:
        name = info["name"].rstrip("/").rpartition("/")[2]
        if info["type"] == "directory":
            return _Entry(name, True)
        tags = (info[key] for key in ("ETag", "etag", "mtime", "created") if info.get(key))
        return _Entry(name, False, f"{info.get('size')}-{str(next(tags, '')).strip(chr(34))}")


_Files = _LocalFiles | _RemoteFiles


def _walk(
    files: _Files, folder: str, prefix: str, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[ImageItem]:
    """List the files below a folder; names begin with `prefix`."""
    try:
        entries = files.entries(folder)
    except OSError as error:
        problem = reason_for(error, Path(folder))
        yield ImageItem(prefix or folder, files.url(folder), problem=problem)
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{folder.rstrip('/')}/{entry.name}"
        name = f"{prefix}/{entry.name}"
        if not entry.is_folder:
            if PurePosixPath(entry.name).suffix.lower() not in COMPANIONS:
                yield ImageItem(name, files.url(path), entry.state)
        elif entry.identity is not None and entry.identity in above:
            problem = "a link back to a folder above it"
            yield ImageItem(name, files.url(path), problem=problem)
        else:
            here = () if entry.identity is None else (entry.identity,)
            yield from _walk(files, path, name, (*above, *here))


def _labeled_folder(files: _Files, root: str) -> Iterator[ImageItem]:
    """List images with their folder as label, possibly below folders of splits."""
    tops = [entry for entry in files.entries(root) if not entry.name.startswith(".")]
    folders = [entry for entry in tops if entry.is_folder]
    layered = bool(folders) and all(
        split_name(entry.name) is not None
        and any(below.is_folder for below in files.entries(f"{root.rstrip('/')}/{entry.name}"))
        for entry in folders
    )
    depth = 2 if layered else 1
    for item in _walk(files, root, ""):
        name = item.name.removeprefix("/")
        folder_names = name.split("/")[:-1]
        if item.problem or PurePosixPath(name).suffix.lower() in (TABLE, ARCHIVE):
            yield msgspec.structs.replace(item, name=item.place)
        elif len(folder_names) < depth:
            yield msgspec.structs.replace(item, name=item.place, problem=NO_CLASS)
        else:
            split = split_name(folder_names[0]) or "" if layered else ""
            label = folder_names[depth - 1]
            yield msgspec.structs.replace(item, name=name, label=label, split=split)


def _manifest(files: _Files, path: str, labeled: bool) -> Iterator[ImageItem]:
    """List the images of a manifest, line by line; paths are relative to its folder."""
    folder = path.rpartition("/")[0]
    needed = ("path", "label") if labeled else ("path",)
    with files.open(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            for where, row in manifest_rows(lines, PurePosixPath(path).name, needed):
                text = cell_text(row, "path", where).replace("\\", "/")
                if is_url(text):
                    place = text
                elif not folder or text.startswith("/"):
                    place = files.url(text)
                else:
                    place = files.url(os.path.normpath(f"{folder}/{text}"))
                label = cell_text(row, "label", where) if labeled else ""
                split = split_of(row.get("split"), where) or ""
                # Requesting the state of every remote file would take as long as reading it.
                local = isinstance(files, _LocalFiles) and not is_url(place)
                entry = files.entry(place) if local else None
                state = "" if entry is None else entry.state
                yield ImageItem(text if labeled else place, place, state, label, split)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text") from error


Read = LabeledImage | BadImage


@dataclass(frozen=True, slots=True)
class UnreadImage(BadImage):
    """A listed image that cannot be read, with its label: a class of only such images must not vanish."""

    label: str = ""
    split: str = ""

    @classmethod
    def of(cls, image: LabeledImage, reason: str) -> "UnreadImage":
        """Replace an image."""
        return cls(image.id, reason, image.label, image.split or "")


class RefusedImage(UnreadImage):
    """An image that remote storage refuses; if it refuses all, the fault is not theirs."""


def open_images(items: Iterable[ImageItem], *, labeled: bool = False) -> Iterator[Read]:
    """Return the images of items in their order; remote files are downloaded ahead.

    Raise StorageError if there are several and storage refuses all: this machine may not read there.
    """
    refused = others = 0
    for image in _opened(items, labeled):
        if isinstance(image, RefusedImage):
            refused, last = refused + 1, image
        else:
            others += 1
        yield image
    if refused > 1 and not others:
        raise StorageError(
            f"none of {count(refused, 'image')} can be read by {node()}, such as {last}"
        )


def _opened(items: Iterable[ImageItem], labeled: bool) -> Iterator[Read]:
    waiting: deque[Read | Future[Read]] = deque()

    def first() -> Read:
        image = waiting.popleft()
        return image.result() if isinstance(image, Future) else image

    with ThreadPoolExecutor(_AHEAD) as threads:
        for item in items:
            if item.holds_many:
                while waiting:
                    yield first()
                if item.rows is not None:
                    yield from table_images(item.place, item.rows, name=item.name, labeled=labeled)
                else:
                    yield from archive_images(item.place, name=item.name)
                continue
            image = LabeledImage(item.name, item.label, Path(item.place), item.split or None)
            if item.problem:
                waiting.append(BadImage(item.name, item.problem))
            elif is_url(item.place):
                waiting.append(threads.submit(fetched, image, item.place))
            else:
                waiting.append(image)
            if len(waiting) > _AHEAD:
                yield first()
        while waiting:
            yield first()


@contextmanager
def opened(place: str) -> Iterator[Any]:
    """Open a local file, or one at a URL, to read bytes."""
    if not is_url(place):
        with open_regular(place) as file:
            yield file
        return
    system, path = open_url(place)
    with reaching(place), system.open(path, "rb") as file:
        yield file


def table_length(place: str) -> int:
    """Return the number of rows of a Parquet file, from its footer."""
    with opened(place) as file:
        return int(_parquet(file, place).metadata.num_rows)


def table_images(
    place: str, rows: tuple[int, int], *, name: str = "", labeled: bool = False
) -> Iterator[Read]:
    """Read the images in some rows of a Parquet file: a column of bytes, or one of paths.

    The name of an image is its path if there is one, else `name` and the number of its row.
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
        if labeled and "label" not in columns:
            raise DataError(f"{place} has no column 'label'")
        number, groups = _groups(table, start, stop)
        for batch in table.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns):
            if number + len(batch) > start and number < stop:
                for offset, row in enumerate(batch.to_pylist(), start=number):
                    if start <= offset < stop:
                        yield _image_of_row(row, f"{name or place}#{offset}", pixels, place)
            number += len(batch)


def archive_images(place: str, *, name: str = "") -> Iterator[Read]:
    """Read the images of a tar in WebDataset layout: files with one stem and several endings.

    The label is in the file that ends in ``.cls`` or ``.txt``, or under ``"label"`` in the one that ends
    in ``.json``.
    """
    with opened(place) as file:
        try:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                yield from _samples(archive, name or place)
        except tarfile.TarError as error:
            raise DataError(f"{place} is not a tar that can be read: {error}") from error


def _samples(archive: tarfile.TarFile, name: str) -> Iterator[Read]:
    sample: dict[str, tuple[str, bytes]] = {}
    previous = None
    for member in archive:
        if not member.isfile():
            continue
        folder, file_name = posixpath.split(member.name)
        stem, _, ending = file_name.partition(".")
        key = posixpath.join(folder, stem)
        if key != previous and sample:
            yield from _image_of_sample(sample, name)
            sample = {}
        previous = key
        content = archive.extractfile(member)
        sample[ending.lower()] = member.name, b"" if content is None else content.read()
    if sample:
        yield from _image_of_sample(sample, name)


def _image_of_sample(sample: Mapping[str, tuple[str, bytes]], name: str) -> Iterator[Read]:
    pixels = next((sample[e] for e in _IMAGE_ENDINGS if e in sample), None)
    if pixels is None:
        return
    content = next((sample[e][1] for e in _LABEL_ENDINGS if e in sample), b"")
    label = content.decode("utf-8", "replace").strip()
    if not label and "json" in sample:
        try:
            record = json.loads(sample["json"][1])
            label = str(record.get("label", "")) if isinstance(record, dict) else ""
        except ValueError:
            label = ""
    yield LabeledImage(f"{name}/{pixels[0]}", label, pixels[1])


def _image_of_row(row: Mapping[str, Any], name: str, pixels: str | None, place: str) -> Read:
    value = None if pixels is None else row[pixels]
    path = row.get("path")
    if isinstance(value, dict):  # as Hugging Face datasets store images
        path = path or value.get("path")
        value = value.get("bytes")
    label = cell_text(row, "label", name) if row.get("label") is not None else ""
    split = split_of(row.get("split"), name)
    image_name = path if isinstance(path, str) and path else name
    if isinstance(value, bytes):
        return LabeledImage(image_name, label, value, split)
    if not isinstance(path, str) or not path:
        return BadImage(name, "there are neither bytes nor a path in this row")
    if is_url(place) and not path.startswith("/") and not is_url(path):
        path = f"{place.rpartition('/')[0]}/{path}"
    elif not is_url(path):
        return LabeledImage(image_name, label, Path(place).parent / path, split)
    return fetched(LabeledImage(image_name, label, b"", split), path)


def fetched(image: LabeledImage, url: str) -> Read:
    """Return an image with the bytes of its remote file, in one request, or the reason of a failure."""
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
    arrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(file)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{place} is not a Parquet file that can be read: {error}") from error


def import_parquet() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet needs pyarrow, which is not installed; type: pip install 'promptboost[ray]'"
        ) from error
    return pyarrow, pyarrow.parquet
