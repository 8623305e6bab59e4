"""Shared storage: files under one URL, written whole, read by every process that works."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from promptboost.errors import InputError, MissingExtraError
from promptboost.files import is_part, read_bytes, write_bytes

# There a file appears when all of it has been sent, or not at all.
_WHOLE_BY_NATURE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory"}


class StorageError(InputError):
    """Shared storage cannot be reached, or its URL not be read."""


@dataclass(frozen=True)
class Storage:
    """The files below a folder or a URL; one that is there is whole.

    Parameters
    ----------
    url : str
        A folder of this machine or of a mount that all machines share, or what fsspec can open, such as
        ``s3://bucket/prefix``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = Storage(folder)
    ...     storage.write("rows/a.bin", b"12")
    ...     storage.read("rows/a.bin"), sorted(storage.names("rows")), "rows/b.bin" in storage
    (b'12', ['a.bin'], False)
    """

    url: str

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all; its folders are made."""
        if (path := self._local(name)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The folder may be a stranger's, where a link could lead anywhere.
            write_bytes(path, data, follow=False)
            return
        system, root = self._remote
        target = f"{root}/{name}"
        if set(_protocols(system)) & _WHOLE_BY_NATURE:
            system.pipe_file(target, data)
            return
        system.makedirs(target.rpartition("/")[0], exist_ok=True)
        part = f"{target}.{secrets.token_hex(8)}.part"
        try:
            system.pipe_file(part, data)
            system.mv(part, target)
        except BaseException:
            with contextlib.suppress(Exception):
                system.rm_file(part)
            raise

    def read(self, name: str) -> bytes:
        """Read a file whole; FileNotFoundError if it is not there."""
        if (path := self._local(name)) is not None:
            return read_bytes(path)
        system, root = self._remote
        content: bytes = system.cat_file(f"{root}/{name}")
        return content

    def __contains__(self, name: str) -> bool:
        if (path := self._local(name)) is not None:
            return path.is_file()
        system, root = self._remote
        return bool(system.isfile(f"{root}/{name}"))

    def names(self, folder: str = "") -> Iterator[str]:
        """Return the names of the files in a folder, in no order; what is half written is not there."""
        if (path := self._local(folder)) is not None:
            with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
                yield from (e.name for e in entries if not is_part(e.name) and e.is_file())
            return
        system, root = self._remote
        place = f"{root}/{folder}".rstrip("/")
        # Another process may have added files since the last listing.
        system.invalidate_cache(place)
        with contextlib.suppress(FileNotFoundError):
            for entry in system.ls(place, detail=True):
                name = entry["name"].rstrip("/").rpartition("/")[2]
                if entry["type"] == "file" and not name.endswith(".part"):
                    yield name

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if (path := self._local(name)) is not None:
                path.unlink()
            else:
                system, root = self._remote
                system.rm_file(f"{root}/{name}")

    def _local(self, name: str) -> Path | None:
        """Return where a file is on this machine, or in a mount; None for other storage."""
        if "://" not in self.url:
            return Path(self.url) / name
        if self.url.startswith("file://"):
            return Path(self.url.removeprefix("file://")) / name
        return None

    @cached_property
    def _remote(self) -> tuple[Any, str]:
        return open_url(self.url)


def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Examples
    --------
    >>> open_url("memory://photos/cats/")[1]
    '/photos/cats'
    """
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(
            f"{url} is not a folder of this machine; to open it, type: pip install 'promptboost[ray]'"
        ) from error
    try:
        system, root = fsspec.core.url_to_fs(url)
    except ImportError as error:  # what opens s3://, gs:// and others is installed apart
        protocol = url.partition("://")[0]
        part = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}.get(protocol)
        what = f"type: pip install {part}" if part else str(error)
        raise MissingExtraError(f"{url} cannot be opened yet; {what}") from error
    except ValueError as error:
        raise StorageError(f"{url} cannot be opened: {error}") from error
    return system, root.rstrip("/")


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
