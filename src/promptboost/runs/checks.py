"""What can be found out before any picture is read."""

import contextlib
import errno
import os
import secrets
from pathlib import Path
from shlex import quote

from promptboost.data import load_data
from promptboost.data.benchmarks import benchmark_source, read_benchmark
from promptboost.errors import PoolError, RunError, StoreError
from promptboost.pool import is_saved_pool, read_sources
from promptboost.pool.keeping import saved_templates
from promptboost.runs.folder import RunFolder
from promptboost.runs.settings import FitSettings

__all__ = ["check_inputs", "check_place", "check_store", "check_writable"]


def check_writable(folder: Path) -> None:
    """Write a file into a folder, or into the first that is there above it, and remove it.

    Permissions alone do not tell: file systems can be full, or mounted for reading only.

    Raises
    ------
    OSError
        If that cannot be done.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as there:
    ...     check_writable(Path(there) / "not" / "yet" / "made")
    ...     list(Path(there).iterdir())
    []
    """
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    probe = folder / f".promptboost-{secrets.token_hex(8)}.tmp"
    try:
        probe.write_bytes(b"probe")
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def check_store() -> None:
    """Raise unless vectors can be kept in the user's store."""
    from promptboost.encoders.store import EmbeddingStore

    root = EmbeddingStore().root
    try:
        check_writable(root)
    except OSError as error:
        raise StoreError(
            f"vectors cannot be kept in {root}: {_reason(error)}; let PROMPTBOOST_CACHE name a "
            "folder that can be written to"
        ) from error


def check_place(run: RunFolder) -> None:
    """Raise unless a run can be written where it shall be."""
    try:
        check_writable(run.path)
    except OSError as error:
        raise RunError(
            f"a run cannot be written to {run.path}: {_reason(error)}; choose another place"
        ) from error


def check_inputs(source: str, settings: FitSettings) -> None:
    """Raise if the pictures or the sentences are not where they are said to be."""
    if (benchmark := benchmark_source(source)) is not None:
        read_benchmark(*benchmark)  # lists, but decodes no picture
    elif source != "emoji" and not Path(source).exists():
        load_data(source, progress=False)  # raises, and has the words for it
    if settings.prompts is not None:
        _check_prompts(settings.prompts)


def _check_prompts(file: str) -> None:
    """Read sentences, or the first line of a pool; whether names meet is known with the classes."""
    if not is_saved_pool(file):
        read_sources(file)
    elif not saved_templates(file):
        raise PoolError(
            f"the pool {file} has no templates, and boosting starts from one; make it again with: "
            f"promptboost pool build {quote(file)} --classes DATA -o with-templates.jsonl"
        )


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
