"""Looking after the store's folder as a whole: what is in it, what it takes, what has to go.

Only files that the store names itself are ever counted or deleted, so that a root that points at
somebody's home folder by mistake costs nothing.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptboost.encoders.store.disk import TEMPORARY, remove, store_error, write_whole
from promptboost.encoders.store.segment import DamagedSegmentError, Layout
from promptboost.encoders.store.shelf import CORRUPT, SEGMENT, Shelf

__all__ = [
    "ShelfReport",
    "StoreReport",
    "Verification",
    "human_bytes",
    "clear_folder",
    "encoder_folder",
    "encoder_folders",
    "evict",
    "name_folder",
    "open_shelves",
    "survey",
]


def human_bytes(count: int) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> human_bytes(812), human_bytes(20_000_000_000)
    ('812 B', '20.0 GB')
    """
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


@dataclass(frozen=True)
class ShelfReport:
    """What the store holds for one encoder.

    Attributes
    ----------
    fingerprint : str
        The encoder's fingerprint.
    name : str
        The name the encoder goes by, empty if it was never given.
    rows, bytes, segments : int
        Vectors stored, room taken (all files), and segment files.
    corrupt : int
        Damaged segments, set aside or not yet; their vectors are computed again when needed.
    """

    fingerprint: str
    name: str
    rows: int
    bytes: int
    segments: int
    corrupt: int


@dataclass(frozen=True)
class StoreReport:
    """What the store holds, encoder by encoder; ``str()`` gives a table.

    Examples
    --------
    >>> shelf = ShelfReport("9f3c", "ViT-B-32/openai", 1200, 2_500_000, 2, 0)
    >>> print(StoreReport("cache/store", 20_000_000_000, (shelf,)))
    cache/store: 1,200 vectors, 2.5 MB of at most 20.0 GB
         vectors       size  files  damaged  encoder
           1,200     2.5 MB      2        0  ViT-B-32/openai (9f3c)
    """

    root: str
    limit: int
    shelves: tuple[ShelfReport, ...]

    @property
    def rows(self) -> int:
        """Vectors stored."""
        return sum(shelf.rows for shelf in self.shelves)

    @property
    def bytes(self) -> int:
        """Room taken on disk."""
        return sum(shelf.bytes for shelf in self.shelves)

    @property
    def corrupt(self) -> int:
        """Damaged segments."""
        return sum(shelf.corrupt for shelf in self.shelves)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        totals = {"rows": self.rows, "bytes": self.bytes, "corrupt": self.corrupt}
        return {**asdict(self), **totals, "shelves": [asdict(shelf) for shelf in self.shelves]}

    def __str__(self) -> str:
        taken = f"{human_bytes(self.bytes)} of at most {human_bytes(self.limit)}"
        lines = [f"{self.root}: {self.rows:,} vectors, {taken}"]
        if self.shelves:
            lines.append(f"{'vectors':>12} {'size':>10} {'files':>6} {'damaged':>8}  encoder")
        for shelf in self.shelves:
            name = f"{shelf.name} ({shelf.fingerprint})" if shelf.name else shelf.fingerprint
            lines.append(
                f"{shelf.rows:>12,} {human_bytes(shelf.bytes):>10} "
                f"{shelf.segments:>6} {shelf.corrupt:>8}  {name}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Verification:
    """What a check of every byte found; ``str()`` gives a sentence.

    Attributes
    ----------
    segments : int
        Files checked.
    damaged : tuple of str
        Paths of those that were not as written; they have been set aside, where the folder allows.
    rows_lost : int
        Vectors in blocks that failed their checksum; the rest of such a file is kept. Files whose
        index is damaged cannot be counted.

    Examples
    --------
    >>> print(Verification(segments=3, damaged=(), rows_lost=0))
    3 files checked, all sound
    """

    segments: int
    damaged: tuple[str, ...]
    rows_lost: int

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged."""
        return not self.damaged

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {**asdict(self), "damaged": list(self.damaged), "ok": self.ok}

    def __str__(self) -> str:
        if self.ok:
            return f"{self.segments} files checked, all sound"
        files = "\n  ".join(self.damaged)
        return (
            f"{self.segments} files checked, {len(self.damaged)} damaged and set aside "
            f"(their vectors are computed again when needed):\n  {files}"
        )


_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SHELF = re.compile(r"float(16|32)x[1-9]\d*")
_ABOUT = "about.json"
_SPARE = 0.9  # eviction goes a little below the limit, so as not to be needed at every write


@dataclass(frozen=True)
class StoredFile:
    """A file of the store: a segment, a damaged one, or one a killed process left half-written."""

    path: Path
    size: int
    used: float

    @property
    def is_segment(self) -> bool:
        return self.path.name.endswith(SEGMENT)


def encoder_folder(root: Path, fingerprint: str) -> Path:
    """Return the folder of an encoder; a fingerprint that is no safe file name is digested."""
    if _PLAIN.fullmatch(fingerprint):
        return root / fingerprint
    digest = hashlib.blake2b(fingerprint.encode("utf-8", "surrogatepass"), digest_size=16)
    return root / f"x-{digest.hexdigest()}"


def encoder_folders(root: Path) -> list[Path]:
    """List the folders of encoders: those with a shelf in them."""
    return [folder for folder in _folders(root) if any(True for _ in shelf_folders(folder))]


def shelf_folders(folder: Path) -> Iterator[Path]:
    """List the shelves of an encoder."""
    return (shelf for shelf in _folders(folder) if _SHELF.fullmatch(shelf.name))


def open_shelves(folder: Path) -> list[Shelf]:
    """Open every shelf of an encoder."""
    shelves = []
    for path in shelf_folders(folder):
        dtype, _, dim = path.name.partition("x")
        shelves.append(Shelf(folder, int(dim), "float16" if dtype == "float16" else "float32"))
    return shelves


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise store_error(parent, error) from error
    return [parent / name for name in names]


def stored_files(folder: Path) -> list[StoredFile]:
    """List the store's files for one encoder."""
    files = []
    for shelf in shelf_folders(folder):
        with suppress(OSError), os.scandir(shelf) as entries:
            for entry in entries:
                if entry.name.endswith((SEGMENT, CORRUPT, TEMPORARY)):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        path = Path(entry.path)
                        files.append(StoredFile(path, status.st_size, status.st_mtime))
    return files


def evict(root: Path, max_bytes: int) -> None:
    """Delete damaged files, then the least recently used segments, until the limit is kept."""
    files = [file for folder in encoder_folders(root) for file in stored_files(folder)]
    total = sum(file.size for file in files)
    if total <= max_bytes:
        return
    for file in sorted(files, key=lambda file: (file.is_segment, file.used)):
        total -= remove(file.path)
        if total <= _SPARE * max_bytes:
            break


def clear_folder(folder: Path) -> int:
    """Delete what the store keeps for one encoder; give the bytes freed."""
    freed = sum(remove(file.path) for file in stored_files(folder))
    remove(folder / _ABOUT)
    for emptied in [*shelf_folders(folder), folder]:
        with suppress(OSError):  # somebody else's file is in it: it stays
            emptied.rmdir()
    return freed


def name_folder(folder: Path, fingerprint: str, name: str) -> None:
    """Note beside the vectors which encoder they are from, for people to read."""
    known = _about(folder)
    about = {"fingerprint": fingerprint, "name": name or known["name"]}
    if known != about:
        text = json.dumps(about, indent=2, sort_keys=True) + "\n"
        write_whole(folder / _ABOUT, [text.encode()])


def _about(folder: Path) -> dict[str, str]:
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        return {"fingerprint": str(about["fingerprint"]), "name": str(about["name"])}
    except (OSError, ValueError, KeyError, TypeError):  # a note, not data: it can be written again
        return {"fingerprint": folder.name, "name": ""}


def survey(folder: Path) -> ShelfReport:
    """Count what is kept for one encoder, from headers alone."""
    files = stored_files(folder)
    rows = segments = 0
    corrupt = sum(file.path.name.endswith(CORRUPT) for file in files)
    for file in files:
        if file.is_segment:
            try:
                rows += Layout.read(file.path).count
                segments += 1
            except DamagedSegmentError:
                corrupt += 1
            except OSError:  # merged or evicted while we look
                continue
    size = sum(file.size for file in files)
    return ShelfReport(**_about(folder), rows=rows, bytes=size, segments=segments, corrupt=corrupt)
