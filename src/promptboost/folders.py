"""Folders with one writer at a time, whose files are replaced all at once.

A new set of files is written beside the old one, in a folder of its own inside. When it is whole, that
folder gets another name: from then on the new set counts, and whoever comes next, should the writer be
killed, moves its files to their places. A reader sees all of the old set or all of the new.
"""

import contextlib
import errno
import os
import platform
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from promptboost.errors import RunError
from promptboost.files import (
    Stamp,
    file_stamp,
    flush_folder,
    is_part,
    read_bytes,
    sweep,
    try_lock,
    write_bytes,
)

T = TypeVar("T")

NEXT = ".promptboost-next"
"""The folder in which the files are that shall replace those around it."""

FIRST = "run.toml"
"""The file that is moved first: what a folder is about."""

SET = (
    *(
        "ensemble.json",
        "weights.json",
        "residual.json",
        "edits.json",
        "metrics.json",
        "predictions.csv",
        "thumbnails.json",
        "explanations.json",
        "issues.json",
    ),
    *("report.html", "README.md", "partial.json", FIRST),
)
"""The files of a set by name, :data:`FIRST` last; there are heads too, and :data:`POOL_ROWS`."""

HEADS = "head-*.safetensors"
POOL_ROWS = "pool-rows"
"""Where the rows of a big pool are, until boosting is done."""

_READY = ".promptboost-ready"
_LOCK = ".promptboost.lock"
_AGAIN = 0.02  # seconds until the next look at a lock
_PATIENCE = 30.0
_READS = 100
_LINE = 300
_GONE = ".gone"

# Locks of this process, by folder and thread, so that a writer may call another.
_held: dict[tuple[str, int, int], int] = {}


def cache_folder() -> Path:
    """Return where what can be made again is kept: ``PROMPTBOOST_CACHE``, or the user's cache folder."""
    if chosen := os.environ.get("PROMPTBOOST_CACHE"):
        return Path(os.path.expanduser(chosen))  # that of Path raises for a user who is not there
    import platformdirs

    return platformdirs.user_cache_path("promptboost", appauthor=False)


def belongs(name: str) -> bool:
    """Tell by its name whether a file is of a set: no other is replaced or removed by a swap."""
    return name in (*SET, POOL_ROWS) or fnmatchcase(name, HEADS)


def is_ours(name: str) -> bool:
    """Tell by its name whether a file is part of the machinery of this module."""
    return name in (NEXT, _READY, _LOCK) or is_part(name)


@contextlib.contextmanager
def writing(
    folder: Path,
    job: str,
    *,
    patience: float = _PATIENCE,
    say: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Be the only writer of a folder, which is made if it is missing.

    A swap that a killed process left is completed first. What was made is removed again if nothing
    was written. The lock ends with the process, however that ends.

    Parameters
    ----------
    folder : Path
        The folder; also by another path to it.
    job : str
        What is done here, for those who wait.
    patience : float
        Seconds to wait for another writer, then a RunError says who it is.
    say : callable, optional
        Called once with a line when there is somebody to wait for.
    """
    key = (os.path.realpath(folder), threading.get_ident(), os.getpid())
    if key in _held:
        yield
        return
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        _held[key] = handle = _lock(folder, job, patience, say)
        try:
            _tidy(folder)
            yield
        finally:
            del _held[key]
            _unlock(folder, handle)
    finally:
        with contextlib.suppress(OSError):  # one that something was written to stays
            for place in missing:
                place.rmdir()


def _tidy(folder: Path) -> None:
    """Complete the swap of a killed process, and remove what others have left."""
    _roll_forward(folder)
    sweep(folder)
    for path in list(folder.iterdir()):
        if is_part(path.name) and _is_folder(path):
            _remove(path)
    if not (folder / NEXT / FIRST).exists():
        unstage(folder)


def staged(folder: Path) -> Path | None:
    """Return the folder of a set of files that is not whole yet, or None."""
    return folder / NEXT if _is_folder(folder / NEXT) else None


def stage(folder: Path) -> Path:
    """Make an empty folder for a new set of files; call it as the writer."""
    unstage(folder)
    (folder / NEXT).mkdir()
    return folder / NEXT


def unstage(folder: Path) -> None:
    """Drop a set of files that is not whole; call it as the writer."""
    _drop(folder / NEXT)


def swap(folder: Path) -> None:
    """Let the new set of files take the place of the old; call it as the writer.

    Files that are not of a set stay where they are.
    """
    fresh = folder / NEXT
    for path in list(fresh.iterdir()):
        if not belongs(path.name):
            _remove(path)
        elif path.is_file() and _is_folder(folder / path.name):  # now: later there is no way back
            raise RunError(f"{folder / path.name} is a folder in the place of a file; move it away")
    # What the new set lacks must go, and whoever completes the swap cannot tell that from the rest.
    gone = [p.name for p in folder.iterdir() if belongs(p.name) and not (fresh / p.name).exists()]
    write_bytes(fresh / _GONE, b"\0".join(map(os.fsencode, gone)))
    os.rename(fresh, folder / _READY)
    flush_folder(folder)
    _roll_forward(folder)


def _roll_forward(folder: Path) -> None:
    """Move the files of a set that is whole to their places, from wherever that was interrupted."""
    ready = folder / _READY
    if not os.path.lexists(ready):
        return
    if not _is_folder(ready):
        _remove(ready)
        return
    with contextlib.suppress(FileNotFoundError):
        for gone in os.fsdecode(read_bytes(ready / _GONE)).split("\0"):
            # Never a path, nor what somebody else keeps there: the folder may be a stranger's.
            if os.path.basename(gone) == gone and belongs(gone):
                _remove(folder / gone)
        (ready / _GONE).unlink()
    names = sorted(os.listdir(ready), key=lambda name: (name != FIRST, name))
    for name in names:
        if belongs(name) and stat.S_ISREG((ready / name).lstat().st_mode):
            os.replace(ready / name, folder / name)
    flush_folder(folder)
    _remove(ready)


def settle(folder: Path) -> None:
    """Wait for the end of a swap, or complete the one of a killed process."""
    if not os.path.lexists(folder / _READY):
        return
    try:
        with writing(folder, "swap of files"):
            pass
    except OSError as problem:
        raise RunError(
            f"new files are in {folder}, and not all at their places: {problem.strerror}; where it can "
            "be written to, any command that reads it completes that"
        ) from problem


def tidy(folder: Path) -> None:
    """Remove what killed writers left, unless one is at work or the folder cannot be written to."""
    if any(is_ours(name) for name in os.listdir(folder)):
        with contextlib.suppress(OSError, RunError), writing(folder, "tidying", patience=0):
            pass


def steady(folder: Path, read: Callable[[], T]) -> T:
    """Return what `read` reads in a folder: all of it from before a swap, or from after it."""
    for _ in range(_READS):
        settle(folder)
        before = file_stamp(folder / FIRST)
        try:
            value = read()
        except Exception:
            if _unchanged(folder, before):
                raise
            continue
        if _unchanged(folder, before):
            return value
    raise RunError(f"{folder} is replaced again and again; try it once more when that has ended")


def _unchanged(folder: Path, before: Stamp | None) -> bool:
    return not os.path.lexists(folder / _READY) and file_stamp(folder / FIRST) == before


def _lock(folder: Path, job: str, patience: float, say: Callable[[str], None] | None) -> int:
    """Lock the file that stands for the folder, and write into it who did."""
    path, deadline = folder / _LOCK, time.monotonic() + patience
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
        except FileNotFoundError:  # another writer has removed the folder that it had made
            continue
        except OSError as problem:
            if problem.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            path.unlink(missing_ok=True)  # a link or a socket under our own name
            continue
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            path.unlink(missing_ok=True)
            continue
        # Once locked it must still be the file of that name: who had it before has removed it.
        if try_lock(handle) and os.fstat(handle).st_ino == _inode(path):
            who = f"{job} (process {os.getpid()} on {platform.node()})"
            if os.fstat(handle).st_nlink == 1:  # under another name it may be anybody's file
                with contextlib.suppress(OSError):  # a full disk: others will not know who it is
                    os.ftruncate(handle, 0)
                    os.write(handle, who.encode())
            return handle
        holder = os.read(handle, _LINE).decode("utf-8", "replace")
        os.close(handle)
        if time.monotonic() >= deadline:
            raise RunError(
                f"another {holder or 'process'} is writing to {folder}; wait for it or stop it, then "
                "type the same again"
            )
        if say is not None and holder:
            say(f"waiting for another {holder}, which is writing to {folder}")
            say = None
        time.sleep(_AGAIN)


def _inode(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_ino
    return None


def _unlock(folder: Path, handle: int) -> None:
    """Remove the lock's file while it is still locked: who waits then makes another."""
    if os.name == "nt":  # an open file cannot be removed there
        os.close(handle)
    with contextlib.suppress(OSError):
        (folder / _LOCK).unlink()
    if os.name != "nt":
        os.close(handle)


def _is_folder(path: Path) -> bool:
    """Tell whether a folder is there, and not a link to one elsewhere."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _drop(path: Path) -> None:
    """Remove a folder under another name: killed half-way, it must not look like a whole one."""
    if _is_folder(path):
        path = path.rename(path.with_name(f".promptboost-{secrets.token_hex(8)}.tmp"))
    _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; links are not followed."""
    if _is_folder(path):
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
