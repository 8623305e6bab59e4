"""Shared storage for all workers: files below a folder or URL, written atomically."""

import contextlib
import os
import platform
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptboost.encoders.runtime import require_modules
from promptboost.errors import InputError, MissingExtraError
from promptboost.io import is_temporary, read_bytes, write_bytes

# Object stores, where uploads are atomic.
_ATOMIC = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory"}
# Libraries whose errors concern the storage, not the content of files.
_LIBRARIES = {"botocore", "aiobotocore", "aiohttp", "fsspec", "gcsfs", "google", "azure", "adlfs"}


class StorageError(InputError):
    """Shared storage cannot be reached, or its URL is invalid."""


class FileRefusedError(StorageError):
    """Access to a file is refused for a `reason` that is the same on every machine."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Storage:
    """The files below a folder or a URL; every file is complete."""

    # A local folder or shared mount, or a URL that fsspec can open, such as ``s3://bucket/prefix``
    url: str

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically; create its folders."""
        path = self._path(name)
        if not is_url(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Untrusted folders may contain links to anywhere.
            write_bytes(path, data, follow=False)
            return
        system, target = open_url(path)
        protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
        with reaching(path):
            if protocols & _ATOMIC:
                system.pipe_file(target, data)
                return
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            temporary = f"{target}.{secrets.token_hex(8)}.part"
            try:
                system.pipe_file(temporary, data)
                system.mv(temporary, target)
            except BaseException:
                with contextlib.suppress(Exception):
                    system.rm_file(temporary)
                raise

    def read(self, name: str) -> bytes:
        """Read a file; raise FileNotFoundError if it does not exist."""
        return read_file(self._path(name))

    def __contains__(self, name: str) -> bool:
        # fsspec's `isfile` would be false where the storage cannot be reached.
        entry = find_entry(self._path(name))
        return entry is not None and not entry.is_folder

    def names(self, folder: str = "") -> Iterator[str]:
        """Return the names of the complete files in a folder, in no order."""
        path = self._path(folder)
        with contextlib.suppress(FileNotFoundError):
            if is_url(path):
                listed = (entry.name for entry in list_folder(path) if not entry.is_folder)
                yield from (name for name in listed if not name.endswith(".part"))
                return
            with os.scandir(path) as entries:
                yield from (e.name for e in entries if not is_temporary(e.name) and e.is_file())

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError):
            if not is_url(path):
                os.unlink(path)
                return
            system, target = open_url(path)
            with reaching(path):
                system.rm_file(target)

    def _path(self, name: str) -> str:
        """Return the path or URL of a file or folder."""
        return f"{self.url.removeprefix('file://').rstrip('/')}/{name}".rstrip("/")


def read_file(path: str) -> bytes:
    """Read the file at a path or URL, the latter in one request."""
    if not is_url(path):
        return read_bytes(path)
    system, remote_path = open_url(path)
    with reaching(path):
        content: bytes = system.cat_file(remote_path)
    return content


@dataclass(frozen=True)
class FileEntry:
    """A file or a folder."""

    name: str
    is_folder: bool
    state: str = ""  # changes with the content: size and modification time, or an ETag
    identity: tuple[int, int] | None = None  # of a local folder, to detect cyclic links


def find_entry(path: str) -> FileEntry | None:
    """Return the file or folder at a path or URL; None if there is none."""
    try:
        if not is_url(path):
            return _local_entry(path)
        system, remote_path = open_url(path)
        with reaching(path):
            return _remote_entry(system.info(remote_path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def list_folder(path: str) -> list[FileEntry]:
    """Return the files and folders in a folder, sorted by name; a broken link is a file."""
    if not is_url(path):
        listed = []
        for name in sorted(os.listdir(path)):
            try:
                listed.append(_local_entry(f"{path}/{name}"))
            except OSError:
                listed.append(FileEntry(name, False))
        return listed
    system, folder = open_url(path)
    with reaching(path):
        infos = system.ls(folder, detail=True)
    remote = [_remote_entry(info) for info in infos if info["name"].rstrip("/") != folder]
    return sorted(remote, key=lambda entry: entry.name)


def _local_entry(path: str) -> FileEntry:
    status, name = os.stat(path), Path(path).name
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(name, True, identity=(status.st_dev, status.st_ino))
    return FileEntry(name, False, f"{status.st_size}-{status.st_mtime_ns}")


def _remote_entry(info: Mapping[str, Any]) -> FileEntry:
    name = info["name"].rstrip("/").rpartition("/")[2]
    if info["type"] == "directory":
        return FileEntry(name, True)
    tags = (info[key] for key in ("ETag", "etag", "mtime", "created") if info.get(key))
    return FileEntry(name, False, f"{info.get('size')}-{str(next(tags, '')).strip(chr(34))}")


def is_url(path: str) -> bool:
    """Return whether a path is a URL, which fsspec opens."""
    return "://" in path


def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    require_modules(["fsspec"], "ray", "files at URLs")
    import fsspec

    try:
        # Without a cache: other processes add files, and there may be very many.
        system, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:  # s3://, gs:// and others need packages of their own
        protocol = url.partition("://")[0]
        package = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}.get(protocol)
        advice = f"type: pip install {package}" if package else str(error)
        raise MissingExtraError(f"{url} cannot be opened yet; {advice}") from error
    except ValueError as error:
        raise StorageError(f"{url} cannot be opened: {error}") from error
    return system, root.rstrip("/")


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Convert errors of storage into StorageError, with advice.

    FileNotFoundError and errors about the content of a file are not converted.
    """
    try:
        yield
    except Exception as error:
        if (converted := _converted(url, error)) is None:
            raise
        raise converted from error


def _converted(url: str, error: Exception) -> StorageError | None:
    """Return the StorageError for an error; None if it does not concern the storage."""
    if isinstance(error, StorageError):
        return None
    here, text = platform.node(), " ".join(str(error).split()) or type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status", 0)  # of an HTTP response
    if isinstance(error, FileNotFoundError):
        if "bucket does not exist" not in text:
            return None
        reason = f"there is no bucket {url.partition('://')[2].partition('/')[0]!r}"
        return FileRefusedError(f"{reason}: make it, or correct {url}", reason)
    if any("Credential" in kind or "Profile" in kind for kind in kinds):
        return StorageError(
            f"{here} has no credentials for {url} ({text}). For S3 set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public bucket"
        )
    if isinstance(error, PermissionError) or (400 <= status < 500 and status not in (408, 429)):
        reason = f"refused: {getattr(error, 'message', '') or text}"
        return FileRefusedError(
            f"access to {url} from {here} is {reason}; check the permissions of the credentials",
            reason,
        )
    if kinds & {"ConnectionError", "TimeoutError"}:
        return StorageError(
            f"{url} cannot be reached from {here}: {text}. Check the network, and AWS_ENDPOINT_URL if it "
            "is S3 but not Amazon's"
        )
    causes = (type(error), type(error.__cause__))  # s3fs wraps errors of botocore
    libraries = {kind.__module__.partition(".")[0] for cause in causes for kind in cause.__mro__}
    return StorageError(f"{url}: {text}") if libraries & _LIBRARIES else None
