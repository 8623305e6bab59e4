"""Files that are written whole or not at all."""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, InputError, PoolError

__all__ = ["write_bytes", "write_text", "replacing", "decode", "load_json", "read_text", "unique"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Return a temporary file to fill, which takes the place of `path` when the block ends well.

    Whoever reads `path` sees the old file or the new one, never a part. If the block raises, or
    the process is interrupted, the old file stays and the temporary one is removed.

    Parameters
    ----------
    path : path-like
        The file to write. Its folder must exist. A symbolic link is followed, and an existing
        file hands on its permissions.

    Yields
    ------
    pathlib.Path
        An empty file in the same folder.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "numbers.txt") as part:
    ...         _ = part.write_text("1 2 3")
    ...     [file.name for file in Path(folder).iterdir()]
    ['numbers.txt']
    """
    # Following links first keeps a link a link; its target is what the user means to write.
    target = Path(os.path.realpath(path))
    mode = _mode_of_existing(target)
    part = _new_file_beside(target)
    try:
        yield part
        if mode is not None:
            part.chmod(mode)
        _flush_to_disk(part)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes to a file, whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "data.bin", b"abc")
    ...     (Path(folder) / "data.bin").read_bytes()
    b'abc'
    """
    with replacing(path) as part:
        part.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    r"""Write text as UTF-8 with the line ends it has, whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "note.txt", "naïve\n")
    ...     (Path(folder) / "note.txt").read_bytes()
    b'na\xc3\xafve\n'
    """
    write_bytes(path, text.encode("utf-8"))


def _mode_of_existing(target: Path) -> int | None:
    """Return the permissions of the file to be replaced, or None; refuse what is not a file."""
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


def _flush_to_disk(file: Path) -> None:
    with file.open("r+b") as stream:
        os.fsync(stream.fileno())


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


def read_text(path: str | Path) -> str:
    r"""Read a text file, whatever editor saved it.

    Raises
    ------
    PoolError
        If the file cannot be opened.
    FileFormatError
        If it is not UTF-8.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "owl.txt")
    ...     _ = path.write_bytes(b"\xef\xbb\xbflarge round eyes")
    ...     read_text(path)
    'large round eyes'
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise PoolError(f"cannot read the descriptions {path}: {error.strerror}") from error
    return decode(content, str(path))


def decode(content: bytes, file: str) -> str:
    """Turn the bytes of a file into text; `file` is its name, for the message.

    Examples
    --------
    >>> decode(b"an owl", "owl.txt")
    'an owl'
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{file} is not UTF-8 (byte {error.start}); save it again as UTF-8"
        ) from error


def load_json(text: str, where: str) -> Any:
    """Read JSON in which no key occurs twice.

    Examples
    --------
    >>> load_json('{"owl": ["large round eyes"]}', "birds.json")
    {'owl': ['large round eyes']}
    >>> load_json('{"owl": [], "owl": []}', "birds.json")
    Traceback (most recent call last):
        ...
    promptboost.errors.FileFormatError: birds.json: 'owl' occurs twice; join the two lists
    """
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


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of pairs, or say which key occurs twice.

    Examples
    --------
    >>> unique([("owl", 1), ("bat", 2)])
    {'owl': 1, 'bat': 2}
    """
    # json keeps the last of two equal keys in silence, and the sentences of the first are lost.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PoolError(f"{key!r} occurs twice; join the two lists")
        found[key] = value
    return found
