"""Images wherever they are, one after the other: folders, manifests, Parquet files, tars, here or at URLs.

A listing is never held as a whole: what is in memory is one folder of it, or one line of a manifest.
Parquet files and tars stay what they are until a worker opens them: of those, only parts are listed.
"""

import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from promptboost.data.dataset import split_name
from promptboost.data.decode import reason_for
from promptboost.data.folder import COMPANIONS, NO_CLASS
from promptboost.data.manifest import MANIFEST_ENDINGS, cell_text, manifest_rows, split_of
from promptboost.data.source import DataSource
from promptboost.distributed.containers import table_length
from promptboost.distributed.storage import open_url, reaching
from promptboost.errors import DataError

TABLE = ".parquet"
ARCHIVE = ".tar"
#: Rows of a Parquet file that make one item of a listing.
TABLE_ROWS = 512


class ImageItem(msgspec.Struct, frozen=True, array_like=True):
    """One image of a listing, or a part of a file that holds many: what is sent in place of pixels.

    Examples
    --------
    >>> msgspec.json.encode(ImageItem("cat/1.png", "photos/cat/1.png", "310-17", label="cat"))
    b'["cat/1.png","photos/cat/1.png","310-17","cat","",null,""]'
    """

    name: str  # what it is called in results
    place: str  # its file, or the file that holds it: a path or a URL
    state: str = ""  # changes with the content: size and time of change, or what the storage says
    label: str = ""
    split: str = ""
    rows: tuple[int, int] | None = None  # of a Parquet file: from … to …
    problem: str = ""  # why there is no image

    @property
    def holds_many(self) -> bool:
        """Whether it is a part of a Parquet file, or a tar."""
        return self.rows is not None or self.place.lower().endswith(ARCHIVE)


def is_url(place: str) -> bool:
    """Tell what fsspec opens from a path of this machine.

    Examples
    --------
    >>> is_url("s3://bucket/photos"), is_url("photos/1.jpg")
    (True, False)
    """
    return "://" in place


def list_items(
    sources: str | Sequence[str], *, labelled: bool = False, table_rows: int = TABLE_ROWS
) -> Iterator[ImageItem]:
    """List images in an order that depends on nothing but their names.

    Parameters
    ----------
    sources : str or sequence of str
        Folders, images, manifests (CSV or JSON Lines), Parquet files and tars, each a path or a URL.
        What lies in a folder comes in the order of names, folder by folder.
    labelled : bool, default=False
        Whether every image needs a label: the folder it is in, a column, or the ``cls`` beside it in a
        tar. Names are then relative to the folder, as ``fit`` has them.
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
        yield from _list_one(os.fspath(source), labelled, table_rows)


def _list_one(source: str, labelled: bool, table_rows: int) -> Iterator[ImageItem]:
    if not is_url(source) and (parsed := DataSource.parse(source)).benchmark is not None:
        for image in parsed.load(check=False).images:
            place = str(image.source)
            state = _Here().entry(place)
            known = "" if state is None else state.state
            yield ImageItem(image.id, place, known, image.label, image.split or "")
        return
    if source == "emoji":
        raise DataError("the emoji are for one process: leave out what is for many")
    tree: _Tree = _Remote.of(source) if is_url(source) else _Here()
    root = tree.root(source)
    entry = tree.entry(root)
    if entry is None:
        if labelled or is_url(source):
            raise DataError(f"{source} does not exist; give a folder, a manifest, Parquet or tars")
        yield ImageItem(source, root)  # as `predict` does: its line says what is wrong
    elif entry.is_folder:
        walked = _labelled_folder(tree, root) if labelled else _walk(tree, root, _called(source))
        yield from _parts_of(tree, walked, table_rows)
    elif PurePosixPath(root).suffix.lower() in MANIFEST_ENDINGS:
        yield from _manifest(tree, root, labelled)
    else:
        one = ImageItem(_called(source), tree.url(root), entry.state)
        if labelled and PurePosixPath(root).suffix.lower() not in (TABLE, ARCHIVE):
            raise DataError(f"{source} is one file without a label; give a folder or a manifest")
        yield from _parts_of(tree, [one], table_rows)


def _called(source: str) -> str:
    """Return what names of a source begin with, as they do where images are predicted one by one."""
    return source.rstrip("/") if is_url(source) else Path(source).as_posix()


@dataclass(frozen=True)
class _Entry:
    name: str
    is_folder: bool
    state: str = ""
    identity: tuple[int, int] | None = None  # of a folder here, which a link may lead back to


class _Here:
    """The files of this machine, and of what is mounted on it."""

    def root(self, source: str) -> str:
        return os.path.abspath(source)  # processes elsewhere are in other folders

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
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found.append(self._entry(entry.name, entry.stat()))
                except OSError:  # a link to nothing: it is listed, and cannot be read
                    found.append(_Entry(entry.name, False))
        return sorted(found, key=lambda entry: entry.name)

    def _entry(self, name: str, status: os.stat_result) -> _Entry:
        if stat.S_ISDIR(status.st_mode):
            return _Entry(name, True, identity=(status.st_dev, status.st_ino))
        return _Entry(name, False, f"{status.st_size}-{status.st_mtime_ns}")


@dataclass(frozen=True)
class _Remote:
    """The files at a URL."""

    system: Any
    protocol: str

    @classmethod
    def of(cls, source: str) -> "_Remote":
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
                about = self.system.info(path)
        except FileNotFoundError:
            return None
        return self._entry(about)

    def entries(self, folder: str) -> list[_Entry]:
        with reaching(self.url(folder)):
            listed = self.system.ls(folder, detail=True)
        own = folder.rstrip("/")
        found = [self._entry(about) for about in listed if about["name"].rstrip("/") != own]
        return sorted(found, key=lambda entry: entry.name)

    def _entry(self, about: dict[str, Any]) -> _Entry:
        name = about["name"].rstrip("/").rpartition("/")[2]
        if about["type"] == "directory":
            return _Entry(name, True)
        known = (about[key] for key in ("ETag", "etag", "mtime", "created") if about.get(key))
        return _Entry(name, False, f"{about.get('size')}-{str(next(known, '')).strip(chr(34))}")


_Tree = _Here | _Remote


def _walk(
    tree: _Tree, folder: str, within: str, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[ImageItem]:
    """List what is below a folder; `within` is what names are to begin with."""
    try:
        entries = tree.entries(folder)
    except OSError as error:
        yield ImageItem(within or folder, tree.url(folder), problem=reason_for(error, Path(folder)))
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{folder.rstrip('/')}/{entry.name}"
        name = f"{within}/{entry.name}"
        if not entry.is_folder:
            if PurePosixPath(entry.name).suffix.lower() not in COMPANIONS:
                yield ImageItem(name, tree.url(path), entry.state)
        elif entry.identity is not None and entry.identity in above:
            problem = "a link back to a folder above it"
            yield ImageItem(name, tree.url(path), problem=problem)
        else:
            here = () if entry.identity is None else (entry.identity,)
            yield from _walk(tree, path, name, (*above, *here))


def _labelled_folder(tree: _Tree, root: str) -> Iterator[ImageItem]:
    """List images with the folder they are in as their label, perhaps below folders of splits."""
    tops = [entry for entry in tree.entries(root) if not entry.name.startswith(".")]
    folders = [entry for entry in tops if entry.is_folder]
    layered = bool(folders) and all(
        split_name(entry.name) is not None
        and any(below.is_folder for below in tree.entries(f"{root.rstrip('/')}/{entry.name}"))
        for entry in folders
    )
    for item in _walk(tree, root, ""):
        name = item.name.removeprefix("/")
        parts = name.split("/")
        depth = 2 if layered else 1
        if item.problem or PurePosixPath(name).suffix.lower() in (TABLE, ARCHIVE):
            yield msgspec.structs.replace(item, name=item.place)
        elif len(parts) <= depth:
            problem = NO_CLASS
            yield msgspec.structs.replace(item, name=item.place, problem=problem)
        else:
            split = split_name(parts[0]) or "" if layered else ""
            yield msgspec.structs.replace(item, name=name, label=parts[depth - 1], split=split)


def _manifest(tree: _Tree, path: str, labelled: bool) -> Iterator[ImageItem]:
    """List the images of a manifest, line by line; paths are relative to its folder."""
    folder = path.rpartition("/")[0]
    needed = ("path", "label") if labelled else ("path",)
    with tree.open(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            for where, row in manifest_rows(lines, PurePosixPath(path).name, needed):
                text = cell_text(row, "path", where).replace("\\", "/")
                place = text if is_url(text) else tree.url(_joined(folder, text))
                label = cell_text(row, "label", where) if labelled else ""
                split = split_of(row.get("split"), where) or ""
                # To ask storage elsewhere for every file would take as long as to read it.
                entry = tree.entry(place) if isinstance(tree, _Here) and not is_url(place) else None
                state = "" if entry is None else entry.state
                yield ImageItem(text if labelled else place, place, state, label, split)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text") from error


def _joined(folder: str, text: str) -> str:
    return text if not folder or text.startswith("/") else os.path.normpath(f"{folder}/{text}")


def _parts_of(tree: _Tree, items: Iterable[ImageItem], table_rows: int) -> Iterator[ImageItem]:
    """Put parts of a Parquet file in its place."""
    for item in items:
        if PurePosixPath(item.place).suffix.lower() != TABLE:
            yield item
            continue
        total = table_length(item.place)
        for start in range(0, total, table_rows):
            rows = (start, min(total, start + table_rows))
            yield msgspec.structs.replace(item, rows=rows)
