"""The store's dealings with the file system: whole files, one lock, errors that can be acted on."""

import errno
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from promptboost.errors import StoreError

__all__ = ["TEMPORARY", "exclusive", "make_folder", "remove", "store_error", "write_whole"]

TEMPORARY = ".tmp"
"""Suffix of files being written; one found while holding the lock was left by a killed process."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_ELSEWHERE = "set PROMPTBOOST_CACHE to another folder"


def store_error(path: Path, error: OSError) -> StoreError:
    """Say what an operating-system error means for the store and what to do about it."""
    if error.errno in _FULL:
        return StoreError(
            f"No room to write {path} ({error.strerror}). Everything stored before is intact. "
            "Free some disk space (`promptboost cache` shows what the store takes and can clear "
            f"it) or {_ELSEWHERE}, then run the same command again: it goes on from here."
        )
    if error.errno in _FORBIDDEN:
        return StoreError(
            f"The embedding store may not write or read {path} ({error.strerror}). "
            f"Correct the folder's permissions or {_ELSEWHERE}."
        )
    return StoreError(
        f"The embedding store cannot use {path} ({error.strerror or error}). "
        f"Check that folder and its disk, or {_ELSEWHERE}."
    )


def write_bytes(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write one piece: the only place where the store's bytes go to disk."""
    file.write(data)


def write_whole(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file so that it is seen whole or not at all.

    ``path``'s folder must exist. On failure nothing is left behind.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        try:
            with open(temporary, "xb") as file:
                for piece in pieces:
                    write_bytes(file, piece)
                file.flush()
                # Some file systems only notice here that there is no room.
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise
    except OSError as error:
        raise store_error(path, error) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(folder, error) from error


def remove(path: Path) -> int:
    """Delete a file if that is possible now; give the bytes freed."""
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError:  # already gone, or (on Windows) still mapped by a reader: next time
        return 0
    return size


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(root: Path, timeout: float = 300.0) -> Iterator[None]:
    """Hold the store's lock: one writer at a time among all processes and threads.

    The operating system gives the lock back when its holder dies, however it dies. Readers never
    take it. It is held for a write, never while vectors are being computed.
    """
    make_folder(root)
    path = root / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise store_error(path, error) from error
    try:
        _wait_for_lock(handle, path, timeout)
        yield
    finally:
        os.close(handle)


def _wait_for_lock(handle: int, path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        try:
            return _try_lock(handle)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES, errno.EDEADLK}:
                raise store_error(path, error) from error
        if time.monotonic() > deadline:
            raise StoreError(
                f"Another process has held {path} for {timeout:.0f} s. Stop that process "
                f"(it may be suspended) or {_ELSEWHERE}."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
