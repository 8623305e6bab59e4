"""Files: written whole or not at all, read as UTF-8 text, JSON or TOML, with errors that say where.

Only regular files are read: opening a pipe, a device or a socket could wait for ever. What is read from
JSON or TOML is checked once, here: no key twice, no NaN, and nothing larger or more deeply nested than
what anybody means (:func:`check_values`).
"""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, InputError, PoolError

if sys.platform != "win32":
    import fcntl

Stamp = tuple[int, int, int, int]
"""What changes when a file is written to or replaced."""

_PART, _PART_END = ".promptboost-", ".tmp"
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class NotAFileError(OSError, InputError):
    """A pipe, a device or a socket is in the place of a file."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


#: Numbers beyond these are nobody's: sums and products of those within stay finite.
LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 1e100
#: Our own files are nested six deep; Python gives up at some hundreds.
DEEPEST = 64


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[Path]:
    """Return a temporary file to fill, which takes the place of `path` when the block ends well.

    Whoever reads `path` sees the old file or the new one, never a part. If the block raises, or
    the process is interrupted, the old file stays and the temporary one is removed; what a killed
    process left is removed by the next write into the folder.

    Its folder must exist, and an existing file hands on its permissions. A symbolic link is followed:
    its target is what a user means who names it. Without `follow` the file takes the place of the link
    itself. That is for files of a folder that may be a stranger's, where a link could lead anywhere.
    """
    # Following links first keeps a link a link.
    target = Path(os.path.realpath(path)) if follow else Path(path)
    mode = _mode_of_existing(target)
    part, handle = _new_file_beside(target)
    try:
        yield part
        if mode is not None:
            part.chmod(mode)
        with part.open("r+b") as stream:
            os.fsync(stream.fileno())
        if os.name == "nt":  # where an open file cannot be renamed
            os.close(handle)
            handle = -1
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        if handle >= 0:
            os.close(handle)
    flush_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, follow: bool = True) -> None:
    """Write bytes to a file, whole or not at all; see :func:`replacing`."""
    with replacing(path, follow=follow) as part:
        part.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str, *, follow: bool = True) -> None:
    """Write text as UTF-8 with the line ends it has, whole or not at all; see :func:`replacing`."""
    write_bytes(path, text.encode("utf-8"), follow=follow)


def append_bytes(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Add bytes to the end of a file, on disk when this returns; a symbolic link is an OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK
    with open(_regular(path, flags), "ab") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read it; raise NotAFileError for what could hang its reader."""
    return open(_regular(path, os.O_RDONLY), "rb")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file whole; see :func:`open_regular`."""
    with open_regular(path) as stream:
        return stream.read()


def write_json(path: str | os.PathLike[str], value: Any, *, follow: bool = True) -> None:
    """Write JSON that people can read, whole or not at all; see :func:`replacing`."""
    write_text(path, json_text(value), follow=follow)


def json_text(value: Any, *, indent: int | None = 1) -> str:
    """Return JSON for people, one entry a line; NaN and infinity, which JSON lacks, are a ValueError."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    # File names that are not valid Unicode reach Python as lone surrogates, and may be image ids.
    # They occur only inside strings, where JSON's escape stands for the same thing.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def read_text(path: str | os.PathLike[str], *, error: type[InputError] | None = None) -> str:
    """Read a UTF-8 file, with or without a byte order mark, with the line ends it has.

    `error` is what to raise; by default :class:`PoolError` where the file cannot be opened, and
    :class:`FileFormatError` where it is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except OSError as problem:
        raise (error or PoolError)(f"{path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise (error or FileFormatError)(
            f"{path} is not UTF-8 (byte {problem.start}); save it again as UTF-8"
        ) from problem


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file in which no key occurs twice; errors are those of :func:`read_text`."""
    return load_json(read_text(path), str(path))


def load_json(text: str, where: str) -> Any:
    """Read JSON that :func:`check_values` accepts; `where` is the file, for messages."""
    try:
        value = parse_json(text)
    except PoolError as error:
        raise FileFormatError(f"{where}: {error}") from error
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"{where} is cut off or not JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}"
        ) from error
    except ValueError as error:
        raise FileFormatError(f"{where} cannot be read as JSON: {error}") from error
    check_values(value, where)
    return value


def parse_json(text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON, objects by `pairs`, in which no key occurs twice; what is wrong is a ValueError."""
    try:
        return json.loads(text, object_pairs_hook=pairs or unique)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def load_toml(text: str, where: str) -> dict[str, Any]:
    """Read TOML that :func:`check_values` accepts; `where` is the file, for messages."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} is not TOML: {error}") from error
    check_values(tables, where)
    return tables


def check_values(value: Any, where: str = "") -> None:
    """Check what was read of JSON or TOML: its numbers are finite, and neither they nor it too large.

    Whoever reads on may then add, multiply, print and recurse as with any number and list.
    """
    waiting: deque[tuple[Any, tuple[Any, ...]]] = deque([({"": value}, ())])
    while waiting:
        item, place = waiting.popleft()
        for key, part in item.items() if isinstance(item, dict) else enumerate(item):
            if isinstance(part, dict | list):
                if len(place) > DEEPEST:
                    problem = f"is nested more than {DEEPEST} deep"
                    raise FileFormatError(_at(where, place[:3], problem))
                waiting.append((part, (*place, key)))
            elif isinstance(part, int) and abs(part) > LARGEST_INTEGER:
                problem = "is too large; whole numbers go up to 2**63 - 1"
                raise FileFormatError(_at(where, (*place, key), problem))
            elif isinstance(part, float) and not abs(part) <= LARGEST_NUMBER:
                kind = f"a number up to {LARGEST_NUMBER:g}" if math.isfinite(part) else "a number"
                problem = f"must be {kind}, not {part:g}"
                raise FileFormatError(_at(where, (*place, key), problem))


def _at(where: str, place: tuple[Any, ...], problem: str) -> str:
    """Name the file and the place in it, as in ``metrics.json: methods[0].accuracy: is …``."""
    steps = [f"[{key}]" if isinstance(key, int) else f".{key:.60}" for key in place]
    return ": ".join(part for part in (where, "".join(steps).lstrip("."), problem) if part)


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of pairs; raise PoolError if a key occurs twice."""
    # json keeps the last of two equal keys in silence, and the sentences of the first are lost.
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise PoolError(f"{key!r} occurs twice; join the two lists")
        values[key] = value
    return values


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file by its status."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """Return the stamp of a file, or None if it is gone."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):  # the second: a name that no file can have
        return None


def _mode_of_existing(target: Path) -> int | None:
    """Return the permissions of the file to be replaced, or None if there is none."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):  # one that is not followed
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "A folder is in the place of the file", str(target))
    if not stat.S_ISREG(mode):
        # Replacing a device such as /dev/null would take it away from everyone.
        raise InputError(f"{target} is not a regular file: give the name of a file to write.")
    return stat.S_IMODE(mode)


def _new_file_beside(target: Path) -> tuple[Path, int]:
    """Create an empty file in the folder of the target: only there is a rename atomic.

    The handle holds a lock on it, by which others know that it is in use.
    """
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "There is no such folder; make it first", str(target.parent)
        )
    sweep(target.parent)
    while True:
        part = target.parent / f"{_PART}{secrets.token_hex(8)}{_PART_END}"
        # os.open lets the umask decide the permissions; the tempfile module would make it private.
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _PLAIN, 0o666)
        # Another process may have swept it before it was locked.
        if os.name == "nt" or (try_lock(handle) and os.fstat(handle).st_nlink):
            return part, handle
        os.close(handle)
        part.unlink(missing_ok=True)


def is_part(name: str) -> bool:
    """Tell by its name whether a file is one that a write has not finished yet."""
    return name.startswith(_PART) and name.endswith(_PART_END)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Delete the temporary files of processes that were killed; those in use are left alone."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        parts = [entry.path for entry in entries if is_part(entry.name)]
        for path in parts:
            with contextlib.suppress(OSError):
                _sweep_one(path)


def _sweep_one(path: str) -> None:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return
    handle = os.open(path, os.O_RDONLY | _NO_LINK | _PLAIN)
    try:
        if try_lock(handle):
            os.unlink(path)
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Lock an open file unless another has; the lock ends with the handle, or with the process.

    Where the file system has no locks the answer is yes: work goes on as if nobody else were there.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # beyond what is written: others may read that
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    return True


def _regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file without waiting for anything; raise if it is none."""
    try:
        handle = os.open(path, flags | _NO_WAIT | _PLAIN, 0o666)
    except OSError as problem:
        if problem.errno not in (errno.ENXIO, errno.ENODEV):
            raise
        # A socket, a pipe that nobody reads, or a device that is not there.
        raise NotAFileError(problem.errno, "not a regular file", os.fspath(path)) from None
    except ValueError:  # a zero byte in its name, which comes from a file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise NotAFileError(errno.EINVAL, "not a regular file", os.fspath(path))


def flush_folder(folder: Path) -> None:
    """Make the rename survive a power cut where the system can; the data are safe already."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
