"""Files: written whole or not at all, read as UTF-8 text or as JSON, with errors that say where."""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, InputError, PoolError

Stamp = tuple[int, int, int, int]
"""What changes when a file is written to or replaced."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Return a temporary file to fill, which takes the place of `path` when the block ends well.

    Whoever reads `path` sees the old file or the new one, never a part. If the block raises, or
    the process is interrupted, the old file stays and the temporary one is removed.

    Its folder must exist. A symbolic link is followed, and an existing file hands on its
    permissions.
    """
    # Following links first keeps a link a link; its target is what the user means to write.
    target = Path(os.path.realpath(path))
    mode = _mode_of_existing(target)
    part = _new_file_beside(target)
    try:
        yield part
        if mode is not None:
            part.chmod(mode)
        with part.open("r+b") as stream:
            os.fsync(stream.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8 with the line ends it has, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON that people can read, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def read_text(path: str | os.PathLike[str], *, error: type[InputError] | None = None) -> str:
    """Read a UTF-8 file, with or without a byte order mark, with the line ends it has.

    `error` is what to raise; by default :class:`PoolError` where the file cannot be opened, and
    :class:`FileFormatError` where it is not UTF-8.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
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
    """Read JSON in which no key occurs twice; `where` is the file, for messages."""
    try:
        return json.loads(text, object_pairs_hook=unique)
    except PoolError as error:
        raise FileFormatError(f"{where}: {error}") from error
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"{where} is cut off or not JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} cannot be read as JSON: {error}") from error


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
    except OSError:
        return None


def _mode_of_existing(target: Path) -> int | None:
    """Return the permissions of the file to be replaced, or None if there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "A folder is in the place of the file", str(target))
    if not stat.S_ISREG(mode):
        # Replacing a device such as /dev/null would take it away from everyone.
        raise InputError(f"{target} is not a regular file: give the name of a file to write.")
    return stat.S_IMODE(mode)


def _new_file_beside(target: Path) -> Path:
    """Create an empty file in the folder of the target: only there is a rename atomic."""
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "There is no such folder; make it first", str(target.parent)
        )
    part = target.parent / f".promptboost-{secrets.token_hex(8)}.tmp"
    # os.open lets the umask decide the permissions; the tempfile module would make it private.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return part


def _flush_folder(folder: Path) -> None:
    """Make the rename survive a power cut where the system can; the data are safe already."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
