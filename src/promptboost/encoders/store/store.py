"""The embedding store: embeddings computed once, found again by what they were computed from.

It is kept in SQLite files, one for each encoder (:mod:`~promptboost.encoders.store.database`).
``benchmarks/store.py``, 20,000 vectors of 512 numbers on a busy machine: 2.2 s to write and 0.95 s
to read, in 42 MB; plain SQLite with a row a vector 2.3 s, 0.93 s and 83 MB; LMDB 1.2 s, 0.58 s and
84 MB; our own memory-mapped segments, which this replaced, 2.3 s, 0.43 s and 41 MB. Computing them
takes minutes: what counts is that a killed writer or a second one loses nothing, and SQLite sees to
that without code of ours.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows
from promptboost.encoders.store.database import (
    CORRUPT,
    DATABASE,
    KEY_BYTES,
    DamagedDatabaseError,
    Database,
    Dtype,
)
from promptboost.encoders.store.report import EncoderShare, StoreReport, Verification
from promptboost.errors import EmbeddingError, SettingError, StoreError

__all__ = ["Compute", "EmbeddingStore", "default_root", "image_key", "text_key"]

Compute = Callable[[list[int]], NDArray[np.float32]]

_FORMAT = "v2"  # another format is another folder, so that versions can share a root
_SPARE = 0.9  # eviction goes a little below the limit, so as not to be needed at every write


def text_key(text: str) -> bytes:
    """Digest a text, exactly as given: another space or another case is another key.

    Examples
    --------
    >>> len(text_key("a photo of a cat"))
    16
    >>> text_key("a cat") == text_key("a cat ")
    False
    """
    # A lone surrogate (from a badly decoded file) is odd but must not stop a run.
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"text").digest()


def image_key(image_bytes_digest: bytes, view: str) -> bytes:
    """Digest one view of an image.

    Parameters
    ----------
    image_bytes_digest : bytes
        A digest of the image file's bytes, so that a renamed image is still known.
    view : str
        Names the view (crop, flip, ...) and everything that it depends on; ``""`` for none.

    Examples
    --------
    >>> image_key(b"digest of the file", "crop 3") == image_key(b"digest of the file", "")
    False
    """
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    prefix = len(image_bytes_digest).to_bytes(8, "little")
    data = prefix + image_bytes_digest + view.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"picture").digest()


def default_root() -> Path:
    """Return the folder of the store: under ``PROMPTBOOST_CACHE`` or the user's cache folder."""
    if chosen := os.environ.get("PROMPTBOOST_CACHE"):
        return Path(chosen).expanduser() / "store"
    import platformdirs

    return platformdirs.user_cache_path("promptboost", appauthor=False) / "store"


class EmbeddingStore:
    """Embeddings on disk, filed under an encoder's fingerprint and a digest of the content.

    Any number of processes and threads may use one store at the same time, and any of them may be
    killed at any moment: a batch is on disk whole or not at all. What is read is checked; what is
    damaged is computed again.

    Parameters
    ----------
    root : path, optional
        Folder of the store, made when first written to; :func:`default_root` if not given.
    max_bytes : int, default=20_000_000_000
        Room it may take. Beyond that the least recently used embeddings are deleted.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from promptboost.encoders.store import EmbeddingStore, text_key
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = EmbeddingStore(folder.name)
    >>> def compute(positions):
    ...     print("computing", positions)
    ...     return np.ones((len(positions), 2), dtype=np.float32)
    >>> keys = [text_key("a cat"), text_key("a dog"), text_key("a cat")]
    >>> rows = store.get_or_compute("some-encoder", keys, compute, dim=2)
    computing [0, 1]
    >>> bool((store.get_or_compute("some-encoder", keys, compute, dim=2) == rows).all())
    True
    >>> store.report().rows
    2
    >>> folder.cleanup()
    """

    def __init__(self, root: Path | str | None = None, *, max_bytes: int = 20_000_000_000) -> None:
        if max_bytes <= 0:
            raise SettingError(f"max_bytes is {max_bytes}; give the store some room, in bytes.")
        self.root = (default_root() if root is None else Path(root)).absolute() / _FORMAT
        self.max_bytes = max_bytes

    def get_or_compute(
        self,
        fingerprint: str,
        keys: Sequence[bytes],
        compute: Compute,
        *,
        dim: int,
        batch: int = 1024,
        dtype: Dtype = "float32",
        name: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> UnitRows:
        """Return one row for each key, computing only those that no run has computed before.

        Parameters
        ----------
        fingerprint : str
            Of the encoder: whatever changes embeddings must change it.
        keys : sequence of bytes
            From :func:`text_key` or :func:`image_key`; may repeat.
        compute : callable
            Given positions in ``keys``, without repeats and in order, returns a row for each.
        dim : int
            Length of the rows.
        batch : int, default=1024
            Positions given to ``compute`` at once. Each batch is stored before the next begins, so
            a killed run goes on where it was.
        dtype : {"float32", "float16"}, default="float32"
            Number type on disk. ``"float32"`` returns rows exactly as computed. ``"float16"``
            takes half the room; rows are rounded and made unit length again, on the first run as
            on every later one.
        name : str, optional
            What people call the encoder, shown in reports.
        progress : callable, optional
            Called with the number of further keys that are done; the numbers add up to all.

        Returns
        -------
        ndarray of shape (len(keys), dim), float32
            Bit for bit the same on every run.
        """
        _check_settings(keys, dim, batch, dtype)
        out = np.empty((len(keys), dim), dtype=np.float32)
        first: dict[bytes, int] = {}
        for position, key in enumerate(keys):
            first.setdefault(key, position)
        database = self._database(fingerprint, dim, dtype)
        missing = database.fill(keys, list(first.values()), out)
        if progress:
            progress(len(keys) - len(missing))
        if missing:
            # What cannot be stored is not computed either.
            database.prepare(fingerprint, name)
        for start in range(0, len(missing), batch):
            part = missing[start : start + batch]
            # Another process may have stored some of it meanwhile.
            todo = database.fill(keys, part, out)
            if todo:
                raw = _as_stored(compute(todo), len(todo), dim, dtype)
                self._add(database, fingerprint, name, keys, todo, raw, out)
            if progress:
                progress(len(part))
        if len(first) < len(keys):
            out = out[[first[key] for key in keys]]
        return out

    def report(self) -> StoreReport:
        """Return what is stored, for which encoders, and what room it takes."""
        groups: dict[str, list[Path]] = {}
        for path in self._files():
            groups.setdefault(path.name.partition(".")[0], []).append(path)
        shares: dict[str, EncoderShare] = {}
        for digest, paths in sorted(groups.items()):
            share = _share(digest, paths)
            known = shares.get(share.fingerprint)
            shares[share.fingerprint] = share if known is None else _sum(known, share)
        outdated = sum(map(_size, self._outdated()))
        return StoreReport(str(self.root.parent), self.max_bytes, tuple(shares.values()), outdated)

    def verify(self) -> Verification:
        """Check every byte; keep what is sound and drop the rest."""
        lost, damaged = 0, []
        databases = self._databases()
        for path in databases:
            sound, rows = _opened(path).check()
            lost += rows
            damaged += [] if sound else [str(path)]
        return Verification(len(databases), tuple(damaged), lost)

    def clear(self, fingerprint: str | None = None) -> int:
        """Delete everything, or what is stored for one encoder; return the bytes freed."""
        if fingerprint is None:
            doomed = [*self._files(), *self._outdated()]
        else:
            doomed = [
                path for path in self._databases() if _about(path).get("fingerprint") == fingerprint
            ]
        freed = sum(map(_remove, doomed))
        with suppress(OSError):  # somebody else's file is in it: it stays
            self.root.rmdir()
        return freed

    def _add(
        self,
        database: Database,
        fingerprint: str,
        name: str,
        keys: Sequence[bytes],
        positions: list[int],
        raw: NDArray[Any],
        out: UnitRows,
    ) -> None:
        if not database.path.exists():  # another process has cleared the store
            database.prepare(fingerprint, name)
        try:
            database.add(keys, positions, raw, out)
        except DamagedDatabaseError as damage:
            database.rebuild(str(damage))
            database.prepare(fingerprint, name)
            database.add(keys, positions, raw, out)
        self._evict()

    def _database(self, fingerprint: str, dim: int, dtype: Dtype) -> Database:
        identity = f"{dtype}x{dim} {fingerprint}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(identity, digest_size=16).hexdigest()
        return Database(self.root / f"{dtype}x{dim}-{digest}{DATABASE}", dim, dtype)

    def _files(self) -> list[Path]:
        """List the files that the store names itself: no others are counted or deleted."""
        with suppress(FileNotFoundError, NotADirectoryError):
            try:
                return sorted(
                    path
                    for path in self.root.iterdir()
                    if path.name.startswith("float") and DATABASE in path.name and path.is_file()
                )
            except PermissionError as error:
                raise StoreError(f"The embedding store may not read {self.root}.") from error
        return []

    def _databases(self) -> list[Path]:
        return [path for path in self._files() if path.name.endswith(DATABASE)]

    def _outdated(self) -> Iterator[Path]:
        """List the embeddings of the format before this one."""
        return (path for path in (self.root.parent / "v1").glob("*/float*/*.seg*"))

    def _evict(self) -> None:
        """Keep the limit: outdated and damaged files go first, then the least recently used."""
        total = sum(map(_size, self._files())) + sum(map(_size, self._outdated()))
        if total <= self.max_bytes:
            return
        spare = [*self._outdated(), *(p for p in self._files() if p.name.endswith(CORRUPT))]
        for path in spare:
            total -= _remove(path)
        while total > _SPARE * self.max_bytes and (databases := self._databases()):
            uses = []
            for path in databases:
                with suppress(StoreError, DamagedDatabaseError):
                    uses += [(*use, path) for use in _opened(path).uses()]
            excess = total - _SPARE * self.max_bytes
            doomed: dict[Path, list[int]] = {}
            for _, block, size, path in sorted(uses):
                if excess <= 0:
                    break
                doomed.setdefault(path, []).append(block)
                excess -= size
            for path, blocks in doomed.items():
                _opened(path).drop(blocks)
            before, total = total, sum(map(_size, self._files()))
            if total >= before:
                break


def _opened(path: Path) -> Database:
    """Open a database by its file's name."""
    dtype, _, dim = path.name.partition("-")[0].partition("x")
    return Database(path, int(dim), "float16" if dtype == "float16" else "float32")


def _about(path: Path) -> dict[str, Any]:
    with suppress(DamagedDatabaseError):
        return _opened(path).settings()[0]
    return {}


def _share(digest: str, paths: list[Path]) -> EncoderShare:
    rows, corrupt, about = 0, sum(path.name.endswith(CORRUPT) for path in paths), {}
    databases = [path for path in paths if path.name.endswith(DATABASE)]
    for path in databases:
        try:
            about, rows = _opened(path).settings()
        except DamagedDatabaseError:
            corrupt += 1
    return EncoderShare(
        fingerprint=about.get("fingerprint", digest),
        name=about.get("name", ""),
        rows=rows,
        bytes=sum(map(_size, paths)),
        files=len(databases),
        corrupt=corrupt,
    )


def _sum(one: EncoderShare, other: EncoderShare) -> EncoderShare:
    return EncoderShare(
        one.fingerprint,
        one.name or other.name,
        one.rows + other.rows,
        one.bytes + other.bytes,
        one.files + other.files,
        one.corrupt + other.corrupt,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted meanwhile
        return 0


def _remove(path: Path) -> int:
    size = _size(path)
    try:
        path.unlink()
    except OSError:  # gone already, or (on Windows) open elsewhere
        return 0
    return size


def _check_settings(keys: Sequence[bytes], dim: int, batch: int, dtype: str) -> None:
    if dim < 1 or batch < 1:
        raise SettingError(f"dim is {dim} and batch is {batch}; both must be at least 1.")
    if dtype not in ("float32", "float16"):
        raise SettingError(f"dtype is {dtype!r}; the store keeps 'float32' or 'float16'.")
    for position, key in enumerate(keys):
        if len(key) != KEY_BYTES:
            raise StoreError(
                f"Key {position} has {len(key)} bytes where the store needs {KEY_BYTES}: "
                "make keys with text_key or image_key."
            )


def _as_stored(rows: NDArray[np.float32], count: int, dim: int, dtype: Dtype) -> NDArray[Any]:
    rows = np.asarray(rows)
    if rows.shape != (count, dim):
        raise EmbeddingError(
            f"Computing {count} vectors of length {dim} gave an array of shape {rows.shape}; "
            "nothing of this batch was stored."
        )
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(rows, dtype=dtype)
    bad = np.flatnonzero(~np.isfinite(raw).all(axis=1))
    if bad.size:
        raise EmbeddingError(
            f"{bad.size} of {count} computed vectors are not finite in {dtype} (the first is "
            f"number {bad[0]} of its batch); nothing of this batch was stored."
        )
    return raw
