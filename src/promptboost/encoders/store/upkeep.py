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
from dataclasses import dataclass
from pathlib import Path

from promptboost.encoders.store.files import TEMPORARY, remove, store_error, write_whole
from promptboost.encoders.store.report import ShelfReport
from promptboost.encoders.store.segment import DamagedSegmentError, Layout
from promptboost.encoders.store.shelf import CORRUPT, SEGMENT, Shelf

__all__ = [
    "clear_folder",
    "encoder_folder",
    "encoder_folders",
    "evict",
    "name_folder",
    "open_shelves",
    "survey",
]

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
    """Give the folder of an encoder; a fingerprint that is no safe file name is digested."""
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
