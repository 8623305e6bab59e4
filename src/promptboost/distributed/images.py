"""Streaming lists of images, and readers: folders, manifests, Parquet files and tars, by path or URL.

Only one folder or one line of a manifest is in memory. Parquet files and tars are opened by the workers
that read them; a list holds parts of them.
"""

import io
import os
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath
from platform import node
from typing import Any, TypeVar

import msgspec

from promptboost.data.dataset import LabeledImage, split_name
from promptboost.data.decode import MAX_DECODED, MAX_GROWTH, BadImage, reason_for
from promptboost.data.manifest import MANIFEST_ENDINGS, cell_text, manifest_rows, split_of
from promptboost.data.memory import IMAGE_COLUMNS
from promptboost.data.source import COMPANIONS, NO_CLASS, DataSource
from promptboost.data.webdataset import ARCHIVE, archive_images
from promptboost.distributed.storage import (
    FileRefusedError,
    StorageError,
    find_entry,
    is_url,
    list_folder,
    open_url,
    reaching,
    read_file,
)
from promptboost.encoders.runtime import require_modules
from promptboost.errors import DataError, count, human_bytes
from promptboost.io import open_regular

TABLE = ".parquet"
#: Images and texts per shard: some seconds of work, which is what a killed worker loses.
SHARD_IMAGES, SHARD_TEXTS = 512, 4096
#: Rows of a Parquet file that make one item of a listing.
TABLE_ROWS = 512
_ROWS_AT_ONCE = 64
# Files that are downloaded while others are decoded.
_AHEAD = 32


class ImageItem(msgspec.Struct, frozen=True, array_like=True):
    """A listed image, or a part of a file with many images."""

    name: str  # in results
    path: str  # the path or URL of its file, or of the file that contains it
    state: str = ""  # changes with the content: size and modification time, or an ETag
    label: str = ""
    split: str = ""
    rows: tuple[int, int] | None = None  # start and end in a Parquet file
    problem: str = ""  # why it cannot be read

    @property
    def holds_many(self) -> bool:
        """Whether it is a part of a Parquet file, or a tar."""
        return self.rows is not None or self.path.lower().endswith(ARCHIVE)


Listed = TypeVar("Listed", bound=ImageItem | str)


def list_items(
    sources: str | Sequence[str], *, labeled: bool = False, table_rows: int = TABLE_ROWS
) -> Iterator[ImageItem]:
    """List images in an order that depends only on their names.

    Sources are folders, images, manifests (CSV or JSON Lines), Parquet files and tars, each a path or a
    URL; the files of a folder are sorted by name, folder by folder. With `labeled`, every image must
    have a label (its folder, a column, or the ``cls`` member of a tar), and names are relative to the
    folder, as in ``fit``. `table_rows` is the number of rows of a Parquet file per listed part.
    """
    for source in [sources] if isinstance(sources, str) else sources:
        for image in _items_of(os.fspath(source), labeled):
            if PurePosixPath(image.path).suffix.lower() != TABLE:
                yield image
                continue
            with _open(image.path) as file:
                total = int(_parquet(file, image.path).metadata.num_rows)
            for start in range(0, total, table_rows):
                rows = (start, min(total, start + table_rows))
                yield msgspec.structs.replace(image, rows=rows)


def _items_of(source: str, labeled: bool) -> Iterator[ImageItem]:
    if not is_url(source) and (parsed := DataSource.parse(source)).benchmark is not None:
        for image in parsed.load(check=False).images:
            path = str(image.source)
            entry = find_entry(path)
            state = "" if entry is None else entry.state
            yield ImageItem(image.id, path, state, image.label, image.split or "")
        return
    if source == "emoji":
        raise DataError("the emoji are for one process: leave out --on, --shard and --storage")
    # The prefix of names, as in predictions without shards.
    name = source.rstrip("/") if is_url(source) else Path(source).as_posix()
    # Absolute: other processes have other working directories.
    root = name if is_url(source) else os.path.abspath(source)
    entry = find_entry(root)
    suffix = PurePosixPath(root).suffix.lower()
    if entry is None:
        if labeled or is_url(source):
            raise DataError(f"{source} does not exist; give a folder, a manifest, Parquet or tars")
        yield ImageItem(source, root)  # its prediction records the error
    elif entry.is_folder:
        yield from _labeled_folder(root) if labeled else _walk(root, name)
    elif suffix in MANIFEST_ENDINGS:
        yield from _manifest(root, labeled)
    else:
        if labeled and suffix not in (TABLE, ARCHIVE):
            raise DataError(f"{source} is one file without a label; give a folder or a manifest")
        yield ImageItem(name, root, entry.state)


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[ImageItem]:
    """List the files below a folder; names begin with `prefix`."""
    try:
        entries = list_folder(folder)
    except OSError as error:
        problem = reason_for(error, Path(folder))
        yield ImageItem(prefix or folder, folder, problem=problem)
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path, name = f"{folder.rstrip('/')}/{entry.name}", f"{prefix}/{entry.name}"
        if not entry.is_folder:
            if PurePosixPath(entry.name).suffix.lower() not in COMPANIONS:
                yield ImageItem(name, path, entry.state)
        elif entry.identity is not None and entry.identity in above:
            problem = "a link back to a folder above it"
            yield ImageItem(name, path, problem=problem)
        else:
            here = () if entry.identity is None else (entry.identity,)
            yield from _walk(path, name, (*above, *here))


def _labeled_folder(root: str) -> Iterator[ImageItem]:
    """List images labeled by their folder, possibly below folders of splits."""
    tops = [entry for entry in list_folder(root) if not entry.name.startswith(".")]
    folders = [entry for entry in tops if entry.is_folder]
    layered = bool(folders) and all(
        split_name(entry.name) is not None
        and any(below.is_folder for below in list_folder(f"{root.rstrip('/')}/{entry.name}"))
        for entry in folders
    )
    depth = 2 if layered else 1
    for image in _walk(root, ""):
        name = image.name.removeprefix("/")
        folder_names = name.split("/")[:-1]
        if image.problem or PurePosixPath(name).suffix.lower() in (TABLE, ARCHIVE):
            yield msgspec.structs.replace(image, name=image.path)
        elif len(folder_names) < depth:
            yield msgspec.structs.replace(image, name=image.path, problem=NO_CLASS)
        else:
            split = split_name(folder_names[0]) or "" if layered else ""
            label = folder_names[depth - 1]
            yield msgspec.structs.replace(image, name=name, label=label, split=split)


def _manifest(path: str, labeled: bool) -> Iterator[ImageItem]:
    """List the images of a manifest, line by line; paths are relative to its folder."""
    # With the slashes after the protocol of a URL.
    protocol, slashes, location = path.rpartition("://")
    folder = location.rpartition("/")[0]
    needed = ("path", "label") if labeled else ("path",)
    with _open(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            for where, row in manifest_rows(lines, PurePosixPath(path).name, needed):
                text = cell_text(row, "path", where).replace("\\", "/")
                if is_url(text):
                    image_path = text
                elif text.startswith("/"):
                    rooted = protocol in ("", "file", "memory")
                    image_path = f"{protocol}{slashes}{text if rooted else text.lstrip('/')}"
                else:
                    image_path = protocol + slashes + os.path.normpath(os.path.join(folder, text))
                label = cell_text(row, "label", where) if labeled else ""
                split = split_of(row.get("split"), where) or ""
                # Requesting the state of every remote file would take as long as reading it.
                entry = None if is_url(image_path) else find_entry(image_path)
                state = "" if entry is None else entry.state
                name = text if labeled else image_path
                yield ImageItem(name, image_path, state, label, split)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text") from error


def cut(items: Iterable[Listed], size: int) -> Iterator[list[Listed]]:
    """Cut a listing into shards of about `size` items: at least a quarter and at most twice of it.

    A shard ends after an item whose name hashes to zero modulo `size`, so that shards before and after a
    change stay the same. A part of a Parquet file and a tar are a shard of their own.
    """
    least, most = max(1, size // 4), 2 * size
    shard: list[Listed] = []
    for entry in items:
        text = entry if isinstance(entry, str) else entry.name
        alone = isinstance(entry, ImageItem) and entry.holds_many
        if alone and shard:
            yield shard
            shard = []
        shard.append(entry)
        if alone or len(shard) >= most or (len(shard) >= least and _ends(text, size)):
            yield shard
            shard = []
    if shard:
        yield shard


def _ends(name: str, size: int) -> bool:
    """Return True for one name out of `size`."""
    # Only the file and its folder count, wherever they are.
    short = name[name.rfind("/", 0, max(0, name.rfind("/"))) + 1 :]
    checksum = zlib.crc32(short.encode("utf-8", "surrogatepass"))
    # Names that differ in a digit have checksums that differ in few bits: spread them.
    return (checksum * 0x9E3779B1 >> 16 & 0xFFFF) * size < 0x10000


@dataclass(frozen=True, slots=True)
class UnreadImage(BadImage):
    """A listed image that cannot be read, with its label, so that its class is not lost."""

    label: str = ""
    split: str = ""
    refused: bool = False  # by remote storage


Read = LabeledImage | UnreadImage


def open_images(items: Iterable[ImageItem]) -> Iterator[Read]:
    """Read listed images in order; remote files are downloaded ahead.

    Raise StorageError if storage refuses access to all of several images.
    """
    refused = total = 0
    for image in _opened(items):
        total += 1
        refused += isinstance(image, UnreadImage) and image.refused
        yield image
    if refused == total > 1:
        raise StorageError(
            f"none of {count(total, 'image')} can be read by {node()}, such as {image}"
        )


def _opened(items: Iterable[ImageItem]) -> Iterator[Read]:
    waiting: deque[Read | Future[Read]] = deque()

    def first() -> Read:
        image = waiting.popleft()
        return image.result() if isinstance(image, Future) else image

    with ThreadPoolExecutor(_AHEAD) as threads:
        for listed in items:
            if listed.holds_many:
                while waiting:
                    yield first()
                if listed.rows is not None:
                    yield from _table_images(listed.path, listed.rows, listed.name)
                else:
                    with _open(listed.path) as file:
                        yield from archive_images(file, listed.path, listed.name)
                continue
            image = LabeledImage(listed.name, listed.label, Path(listed.path), listed.split or None)
            if listed.problem:
                waiting.append(UnreadImage(listed.name, listed.problem))
            elif is_url(listed.path):
                waiting.append(threads.submit(_fetched, image, listed.path))
            else:
                waiting.append(image)
            if len(waiting) > _AHEAD:
                yield first()
        while waiting:
            yield first()


@contextmanager
def _open(path: str) -> Iterator[Any]:
    """Open a local or remote file to read bytes."""
    if not is_url(path):
        with open_regular(path) as file:
            yield file
        return
    system, remote_path = open_url(path)
    with reaching(path), system.open(remote_path, "rb") as file:
        yield file


def _table_images(path: str, rows: tuple[int, int], name: str) -> Iterator[Read]:
    """Read the images in some rows of a Parquet file: a column of bytes, or one of paths.

    The name of an image is its path if there is one, else `name` and its row number.
    """
    start, stop = rows
    with _open(path) as file:
        table = _parquet(file, path)
        names = table.schema_arrow.names
        pixels = next((column for column in IMAGE_COLUMNS if column in names), None)
        columns = [column for column in (pixels, "path", "label", "split") if column in names]
        if pixels is None and "path" not in columns:
            raise DataError(
                f"{path} has no column of images: it needs path, or one of {', '.join(IMAGE_COLUMNS)}"
            )
        _check_unpacked(table.metadata, path)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        ends = list(accumulate(sizes))
        # Only the row groups that contain some of the rows are read.
        first, last = bisect_right(ends, start), bisect_left(ends, stop)
        number, groups = sum(sizes[:first]), list(range(len(sizes))[first : last + 1])
        # A dictionary of one large image can stand for each of the rows.
        rows_at_once = _ROWS_AT_ONCE if pixels is None else 1
        for batch in table.iter_batches(rows_at_once, row_groups=groups, columns=columns):
            if number + len(batch) > start and number < stop:
                for row_number, row in enumerate(batch.to_pylist(), start=number):
                    if start <= row_number < stop:
                        yield _image_of_row(row, f"{name}#{row_number}", pixels, path)
            number += len(batch)


def _check_unpacked(metadata: Any, path: str) -> None:
    """Raise if a part of a Parquet file would take far more memory than the file, as images may not."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.total_uncompressed_size > max(
                MAX_DECODED, MAX_GROWTH * chunk.total_compressed_size
            ):
                size = human_bytes(chunk.total_uncompressed_size)
                raise DataError(f"{path} would unpack to {size}; write it with smaller row groups")


def _image_of_row(row: Mapping[str, Any], name: str, pixels: str | None, table: str) -> Read:
    value = None if pixels is None else row[pixels]
    path = row.get("path")
    if isinstance(value, dict):  # as in Hugging Face datasets
        path = path or value.get("path")
        value = value.get("bytes")
    label = cell_text(row, "label", name) if row.get("label") is not None else ""
    split = split_of(row.get("split"), name)
    image_name = path if isinstance(path, str) and path else name
    if isinstance(value, bytes):
        return LabeledImage(image_name, label, value, split)
    if not isinstance(path, str) or not path:
        return UnreadImage(name, "there are neither bytes nor a path in this row")
    if is_url(table) and not path.startswith("/") and not is_url(path):
        path = f"{table.rpartition('/')[0]}/{path}"
    elif not is_url(path):
        return LabeledImage(image_name, label, Path(table).parent / path, split)
    return _fetched(LabeledImage(image_name, label, b"", split), path)


def _fetched(image: LabeledImage, url: str) -> Read:
    """Download an image in one request; return an UnreadImage if that fails."""
    try:
        content = read_file(url)
    except FileRefusedError as error:
        return UnreadImage(image.id, error.reason, image.label, image.split or "", refused=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        reason = error.strerror or str(error) or type(error).__name__
        return UnreadImage(image.id, reason, image.label, image.split or "")
    return LabeledImage(image.id, image.label, content, image.split)


def _parquet(file: Any, path: str) -> Any:
    arrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(file)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def import_parquet() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module."""
    require_modules(["pyarrow"], "ray", "Parquet files")
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet
