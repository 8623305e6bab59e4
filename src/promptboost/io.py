"""Files and folders: atomic writes, one lock per folder, one checked reader.

A file is written whole or not at all (:func:`replacing`). A set of files is replaced at once: it is
written into a folder inside (:func:`stage`), and one rename by :func:`swap` makes it valid; if the process
is killed after that, the next one that opens the folder moves the files (:func:`settle`). Readers see the
old set or the new one (:func:`steady`).

Files are read by :func:`open_regular`, which never waits for a pipe or a device. JSON and TOML have no
duplicate keys, no NaN, and no huge numbers or deep nesting (:func:`check_values`).
"""

import contextlib
import errno
import json
import math
import os
import platform
import re
import secrets
import shutil
import stat
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from promptboost.errors import FileFormatError, InputError, PoolError, RunError

if TYPE_CHECKING:
    from filelock import BaseFileLock

T = TypeVar("T")

Stamp = tuple[int, int, int, int]
"""Inode, size and times of a file: changes when the file is written or replaced."""

#: Sums and products of numbers within these limits stay finite.
LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 1e100
#: Files of promptboost are nested six deep; Python's limit is some hundreds.
DEEPEST = 64

FIRST = "run.toml"
"""The settings of a run, moved first by a swap."""

SET = (
    *("ensemble.json", "weights.json", "residual.json", "edits.json", "metrics.json"),
    *("predictions.csv", "thumbnails.json", "explanations.json", "issues.json"),
    *("report.html", "README.md", "partial.json", FIRST),
)
"""The files of a run by name, :data:`FIRST` last; there are heads too, and :data:`POOL_ROWS`."""

HEADS = "head-*.safetensors"
POOL_ROWS = "pool-rows"
"""Folder with the embeddings of a big pool, until boosting is done."""

NEXT = ".promptboost-next"
"""Folder inside a run folder with the files that will replace those around it."""

_READY = ".promptboost-ready"  # NEXT, once it is complete
_LOCK = ".promptboost.lock"
_TEMPORARY = ".promptboost-*.tmp"
_PATIENCE = 30.0
_POLL = 0.02
_READS = 100
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class NotAFileError(OSError, InputError):
    """A pipe, a device or a socket was given in place of a file."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


# --- reading --------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading; raise NotAFileError for anything that could block."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:  # a NUL in a name that comes from a file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise NotAFileError(errno.EINVAL, "not a regular file", os.fspath(path))
    return open(path, "rb")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file."""
    with open_regular(path) as stream:
        return stream.read()


def read_text(path: str | os.PathLike[str], *, error: type[InputError] | None = None) -> str:
    """Read a UTF-8 file, with or without a byte order mark; line ends are kept.

    Raises `error` if given; else :class:`PoolError` if the file cannot be opened, and
    :class:`FileFormatError` if it is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except OSError as problem:
        raise (error or PoolError)(f"{path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise (error or FileFormatError)(
            f"{path} is not UTF-8 (byte {problem.start}); save it again as UTF-8"
        ) from problem


def read_json(path: str | os.PathLike[str], *, error: type[InputError] | None = None) -> Any:
    """Read a JSON file; raises the errors of :func:`read_text` and :func:`load_json`."""
    return load_json(read_text(path, error=error), str(path))


def load_json(text: str, where: str) -> Any:
    """Parse and check JSON; `where` names the file in messages."""
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


def parse_json(text: str) -> Any:
    """Parse JSON without duplicate keys; raise ValueError for anything else."""
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def load_toml(text: str, where: str) -> dict[str, Any]:
    """Parse and check TOML; `where` names the file in messages."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} is not TOML: {error}") from error
    check_values(tables, where)
    return tables


def check_values(value: Any, where: str = "", path: tuple[str | int, ...] = ()) -> None:
    """Raise FileFormatError if parsed JSON or TOML has NaN, a huge number, or deep nesting."""
    problem = ""
    if isinstance(value, dict | list):
        if len(path) > DEEPEST:
            path, problem = path[:2], f"is nested more than {DEEPEST} deep"
        else:
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                if not isinstance(inner, str):
                    check_values(inner, where, (*path, key))
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        problem = "is too large; whole numbers go up to 2**63 - 1"
    elif isinstance(value, float) and not abs(value) <= LARGEST_NUMBER:
        kind = f"a number up to {LARGEST_NUMBER:g}" if math.isfinite(value) else "a number"
        problem = f"must be {kind}, not {value:g}"
    if problem:
        steps = [f"[{step}]" if isinstance(step, int) else f".{step:.60}" for step in path]
        name = "".join(steps).lstrip(".")
        raise FileFormatError(": ".join(text for text in (where, name, problem) if text))


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from pairs; raise PoolError for a duplicate key."""
    # json keeps the last of two equal keys silently, and the sentences of the first are lost.
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise PoolError(f"{key!r} occurs twice in one object; join the two")
        values[key] = value
    return values


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file from its status."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """Return the stamp of a file, or None if there is no such file."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


# --- writing --------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[Path]:
    """Yield a temporary file, which replaces `path` when the block ends without an error.

    Readers of `path` see the old file or the new one. Temporary files of killed processes are removed by
    the next write into the folder, which must exist. Permissions of an existing file are kept. With
    `follow`, the target of a symbolic link is replaced; without, the link itself: for folders from
    untrusted sources.
    """
    target = Path(os.path.realpath(path)) if follow else Path(path)
    mode = _replaceable_mode(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "There is no such folder; make it first", str(target.parent)
        )
    sweep(target.parent)
    # Next to the target: only within one file system is a rename atomic.
    temporary = target.parent / _TEMPORARY.replace("*", secrets.token_hex(8))
    lock = _file_lock(temporary)
    try:
        if os.name != "nt":  # Windows neither renames nor writes a locked file
            _acquire(lock, timeout=1.0)
        temporary.touch()
        yield temporary
        if mode is not None:
            temporary.chmod(mode)
        with temporary.open("r+b") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        lock.release()


def write_bytes(path: str | os.PathLike[str], data: bytes, *, follow: bool = True) -> None:
    """Write bytes to a file atomically; see :func:`replacing`."""
    with replacing(path, follow=follow) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str, *, follow: bool = True) -> None:
    """Write UTF-8 text to a file atomically, line ends unchanged; see :func:`replacing`."""
    write_bytes(path, text.encode("utf-8"), follow=follow)


def write_json(path: str | os.PathLike[str], value: Any, *, follow: bool = True) -> None:
    """Write human-readable JSON to a file atomically; see :func:`replacing`."""
    write_text(path, json_text(value), follow=follow)


def json_text(value: Any, *, indent: int | None = 1) -> str:
    """Return human-readable JSON; raise ValueError for NaN and infinity, which JSON lacks."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    # File names that are not valid Unicode reach Python as lone surrogates, and may be image ids.
    # They occur only in strings, where JSON has an equal escape.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def _replaceable_mode(target: Path) -> int | None:
    """Return the permissions of the file to replace, or None if there is none."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):  # not followed
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(
            errno.EISDIR, "There is a folder with the name of the file", str(target)
        )
    if not stat.S_ISREG(mode):
        # Never replace a device such as /dev/null.
        raise InputError(f"{target} is not a regular file: give the name of a file to write.")
    return stat.S_IMODE(mode)


def is_temporary(name: str) -> bool:
    """Return whether a file name is one of a temporary file."""
    return fnmatchcase(name, _TEMPORARY)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Delete the temporary files of killed processes, which are not locked."""
    for path in list(Path(folder).glob(_TEMPORARY)):
        with contextlib.suppress(OSError):
            lock = _file_lock(path)
            if _acquire(lock):
                path.unlink(missing_ok=True)
            lock.release()


def _file_lock(path: Path, **options: Any) -> "BaseFileLock":
    from filelock import FileLock

    return FileLock(path, fallback_to_soft=False, **options)


def _acquire(lock: "BaseFileLock", *, timeout: float = 0.0) -> bool:
    """Acquire a lock, if the file system has locks; return False if it is held elsewhere."""
    try:
        lock.acquire(timeout=timeout)
    except TimeoutError:
        return False
    except OSError as problem:
        if problem.errno not in _NO_LOCKS:
            raise
    return True


# --- folders --------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the cache folder: ``PROMPTBOOST_CACHE``, or the default of the system."""
    if chosen := os.environ.get("PROMPTBOOST_CACHE"):
        return Path(os.path.expanduser(chosen))  # Path.expanduser raises for an unknown user
    import platformdirs

    return platformdirs.user_cache_path("promptboost", appauthor=False)


def belongs(name: str) -> bool:
    """Return whether a file name is one of a run; a swap affects no other files."""
    return name in (*SET, POOL_ROWS) or fnmatchcase(name, HEADS)


def is_ours(name: str) -> bool:
    """Return whether a file name is one of this module's lock, temporary or staged files."""
    return name in (NEXT, _READY, _LOCK) or is_temporary(name)


@contextlib.contextmanager
def writing(
    folder: Path, job: str, *, patience: float = _PATIENCE, say: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the write lock of a folder, which is created if missing.

    A swap begun by a killed process is completed first. Folders created here are removed again if
    nothing is written. The lock is reentrant within a thread and ends with the process. If another
    process holds it, `say` is called once with the `job` of that process, and RunError is raised after
    `patience` seconds.
    """
    path = folder / _LOCK
    lock = _file_lock(path, is_singleton=True, poll_interval=_POLL)
    if lock.is_locked:
        yield
        return
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        _lock(folder, lock, job, patience, say)
        try:
            _complete_swap(folder)
            sweep(folder)
            if not (folder / NEXT / FIRST).exists():
                unstage(folder)
            yield
        finally:
            with contextlib.suppress(OSError):  # while locked: waiting processes create a new file
                path.unlink()
            lock.release()
    finally:
        with contextlib.suppress(OSError):  # not empty
            for parent in created:
                parent.rmdir()


def _lock(
    folder: Path, lock: "BaseFileLock", job: str, patience: float, say: Callable[[str], None] | None
) -> None:
    """Lock a folder and write a description of the job into the lock file."""
    path, deadline = folder / _LOCK, time.monotonic() + patience
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                path.unlink()  # a link or a pipe
        try:
            if _acquire(lock, timeout=0.0 if say else max(0.0, deadline - time.monotonic())):
                break
        except FileNotFoundError:  # another writer removed the folder that it had created
            continue
        holder = "process"
        with contextlib.suppress(OSError):
            holder = path.read_text("utf-8", "replace")[:300] or holder
        if time.monotonic() >= deadline:
            raise RunError(
                f"another {holder} is writing to {folder}; wait for it or stop it, then "
                "type the same again"
            )
        if say:
            say(f"waiting for another {holder}, which is writing to {folder}")
            say = None
    with contextlib.suppress(OSError):  # a full disk: others will not know who it is
        path.write_text(f"{job} (process {os.getpid()} on {platform.node()})", "utf-8")


def staged(folder: Path) -> Path | None:
    """Return the folder with an unfinished set of files, or None."""
    return folder / NEXT if _is_folder(folder / NEXT) else None


def stage(folder: Path) -> Path:
    """Create an empty folder for a new set of files; needs the lock."""
    unstage(folder)
    (folder / NEXT).mkdir()
    return folder / NEXT


def unstage(folder: Path) -> None:
    """Delete an unfinished set of files; needs the lock."""
    if _is_folder(folder / NEXT):
        (folder / NEXT / FIRST).unlink(missing_ok=True)  # without it, the others are invalid
    remove(folder / NEXT)


def swap(folder: Path) -> None:
    """Replace the files of a run by the staged ones; needs the lock. Other files are left alone."""
    fresh = folder / NEXT
    for path in list(fresh.iterdir()):
        if not belongs(path.name):
            remove(path)
        elif path.is_file() and _is_folder(folder / path.name):  # before the swap begins
            raise RunError(
                f"{folder / path.name} is a folder with the name of a file; move it away"
            )
    os.rename(fresh, folder / _READY)
    _complete_swap(folder)


def _complete_swap(folder: Path) -> None:
    """Delete the old files and move the new ones in; continues an interrupted swap."""
    ready = folder / _READY
    if not _is_folder(ready):
        remove(ready)
        return
    if (ready / FIRST).exists():  # nothing was moved yet: delete files that the new set lacks
        for path in list(folder.iterdir()):
            if belongs(path.name) and not os.path.lexists(ready / path.name):
                remove(path)
    for name in sorted(os.listdir(ready), key=lambda name: (name != FIRST, name)):
        # The folder may be untrusted: move neither links nor other files.
        if belongs(name) and stat.S_ISREG((ready / name).lstat().st_mode):
            os.replace(ready / name, folder / name)
    remove(ready)


def settle(folder: Path) -> None:
    """Wait for the end of a swap, or complete the one of a killed process."""
    if not os.path.lexists(folder / _READY):
        return
    try:
        with writing(folder, "swap of files"):
            pass
    except OSError as problem:
        raise RunError(
            f"the files in {folder} are being replaced, which cannot be completed: {problem.strerror}; "
            "make the folder writable, then read it again"
        ) from problem


def tidy(folder: Path) -> None:
    """Remove files of killed processes, unless another one writes or the folder is read-only."""
    if any(is_ours(name) for name in os.listdir(folder)):
        with contextlib.suppress(OSError, RunError), writing(folder, "tidying", patience=0):
            pass


def steady(folder: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`, repeated if a swap took place meanwhile."""
    for _ in range(_READS):
        settle(folder)
        stamp = file_stamp(folder / FIRST)
        try:
            value = read()
        except Exception:
            if _unchanged(folder, stamp):
                raise
            continue
        if _unchanged(folder, stamp):
            return value
    raise RunError(f"{folder} is replaced again and again; try again when that has ended")


def _unchanged(folder: Path, stamp: Stamp | None) -> bool:
    return not os.path.lexists(folder / _READY) and file_stamp(folder / FIRST) == stamp


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents, if there is one."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
