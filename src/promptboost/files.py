"""Files that are written whole or not at all."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from promptboost.errors import InputError

__all__ = ["write_bytes", "write_text", "replacing"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file to fill, which takes the place of `path` when the block ends well.

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
    """Give the permissions of the file to be replaced, or None; refuse what is not a file."""
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
