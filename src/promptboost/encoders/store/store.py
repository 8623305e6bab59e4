"""The embedding store: embeddings computed once, found again by what they were computed from.

It is kept in SQLite files, one for each encoder (:mod:`~promptboost.encoders.store.database`).
Computing embeddings takes minutes, reading them a second: what counts is that a killed writer or a
second one loses nothing, and SQLite sees to that. ``docs/results/performance.md`` has the figures.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows
from promptboost.encoders.store.database import (
    CORRUPT,
    DATABASE,
    KEY_BYTES,
    DamagedDatabaseError,
    Database,
)
from promptboost.encoders.store.report import EncoderShare, StoreReport, Verification
from promptboost.errors import EmbeddingError, SettingError, StoreError
from promptboost.io import cache_folder
from promptboost.progress import Advance, Progress, no_progress, stage

_FORMAT = "v2"  # another format is another folder, so that versions can share a root
_OURS = re.compile(rf"float(16|32)x[1-9]\d*-[0-9a-f]+{re.escape(DATABASE)}")
_SPARE = 0.9  # eviction goes a little below the limit, so as not to be needed at every write


def text_key(text: str) -> bytes:
    """Digest a text, exactly as given: another space or another case is another key.

    Examples
    --------
    >>> text_key("a cat") == text_key("a cat ")
    False
    """
    # A lone surrogate (from a badly decoded file) is odd but must not stop a run.
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"text").digest()


def image_key(image_bytes_digest: bytes, view: str) -> bytes:
    """Digest one view of an image, from a digest of its file: a renamed image is still known.

    `view` names the crop and everything that it depends on, as
    :func:`~promptboost.data.views.view_name` does.

    Examples
    --------
    >>> image_key(b"digest of the file", "crop 3") == image_key(b"digest of the file", "original")
    False
    """
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    prefix = len(image_bytes_digest).to_bytes(8, "little")
    data = prefix + image_bytes_digest + view.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"picture").digest()


def head_key(text_fingerprint: str, row: int) -> bytes:
    """Digest one row of a head, by the fingerprint of the whole text that it is a sum of."""
    data = f"{text_fingerprint} {row}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"head").digest()


def default_root() -> Path:
    """Return the folder of the store: under ``PROMPTBOOST_CACHE`` or the user's cache folder."""
    return cache_folder() / "store"


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
        compute: Callable[[list[int]], NDArray[np.float32]],
        *,
        dim: int,
        batch: int = 1024,
        dtype: Literal["float32", "float16"] = "float32",
        name: str = "",
        advance: Advance | None = None,
    ) -> UnitRows:
        """Return one row for each key, computing only those that no run has computed before.

        Parameters
        ----------
        fingerprint : str
            Of the encoder, which people call `name`: whatever changes embeddings must change it.
        keys : sequence of bytes
            From :func:`text_key` or :func:`image_key`; may repeat.
        compute : callable
            Given positions in ``keys``, without repeats and in order, returns a row for each.
        batch : int, default=1024
            Positions given to ``compute`` at once. Each batch is stored before the next begins, so
            a killed run goes on where it was.
        dtype : {"float32", "float16"}, default="float32"
            Number type on disk. ``"float32"`` returns rows exactly as computed. ``"float16"``
            takes half the room; rows are rounded and made unit length again, on the first run as
            on every later one.
        advance : callable, optional
            Called with the number of further keys that are done; the numbers add up to all.

        Returns
        -------
        float32 array of shape (len(keys), dim)
            Bit for bit the same on every run.
        """
        _check_settings(keys, dim, batch, dtype)
        database = self._database(fingerprint, dim, dtype)
        settings = {"fingerprint": fingerprint, "name": name}
        out = np.empty((len(keys), dim), dtype=np.float32)
        first: dict[bytes, int] = {}
        for position, key in enumerate(keys):
            first.setdefault(key, position)
        missing = database.fill(keys, list(first.values()), out)
        if advance:
            advance(len(keys) - len(missing))
        if missing:
            # What cannot be stored is not computed either.
            database.prepare(settings)
        for start in range(0, len(missing), batch):
            part = missing[start : start + batch]
            # Another process may have stored some of it meanwhile.
            if todo := database.fill(keys, part, out):
                raw = _checked(compute(todo), (len(todo), dim), database.dtype)
                self._add(database, settings, keys, todo, raw, out)
            if advance:
                advance(len(part))
        return out[[first[key] for key in keys]] if len(first) < len(keys) else out

    def find(
        self, fingerprint: str, keys: Sequence[bytes], *, dim: int
    ) -> tuple[UnitRows, list[int]]:
        """Return one row for each key, and the positions of those that are not stored, in order.

        For those who cannot leave the computing to :meth:`get_or_compute`; its rows of float32.
        """
        _check_settings(keys, dim, 1, "float32")
        rows = np.zeros((len(keys), dim), dtype=np.float32)
        missing = self._database(fingerprint, dim).fill(keys, list(range(len(keys))), rows)
        return rows, missing

    def add(
        self, fingerprint: str, keys: Sequence[bytes], rows: NDArray[np.float32], *, name: str = ""
    ) -> UnitRows:
        """Store computed rows of float32, and return them as later runs will find them."""
        raw = _checked(rows, (len(keys), rows.shape[1]), np.dtype(np.float32))
        database = self._database(fingerprint, rows.shape[1])
        out = np.empty(raw.shape, dtype=np.float32)
        settings = {"fingerprint": fingerprint, "name": name}
        database.prepare(settings)
        self._add(database, settings, keys, list(range(len(keys))), raw, out)
        return out

    def rows(self, fingerprint: str, *, dim: int) -> Iterator[tuple[bytes, NDArray[np.float32]]]:
        """Return all that is stored of an encoder, in the order of keys.

        SQLite lays the same rows out in another way each time: two stores are the same if this is.
        """
        database = self._database(fingerprint, dim)
        for keys in database.all_keys():
            out = np.empty((len(keys), dim), dtype=np.float32)
            missing = set(database.fill(keys, list(range(len(keys))), out))
            yield from ((key, out[i]) for i, key in enumerate(keys) if i not in missing)

    def _database(self, fingerprint: str, dim: int, dtype: str = "float32") -> Database:
        identity = f"{dtype}x{dim} {fingerprint}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(identity, digest_size=16).hexdigest()
        return Database(self.root / f"{dtype}x{dim}-{digest}{DATABASE}")

    def _add(
        self,
        database: Database,
        settings: dict[str, str],
        keys: Sequence[bytes],
        positions: list[int],
        raw: NDArray[Any],
        out: UnitRows,
    ) -> None:
        if not database.path.exists():  # new, or another process has cleared the store
            database.prepare(settings)
        try:
            database.add(keys, positions, raw, out)
        except DamagedDatabaseError as damage:
            database.rebuild(str(damage))
            database.prepare(settings)
            database.add(keys, positions, raw, out)
        self._evict()

    def report(self) -> StoreReport:
        """Return what is stored, for which encoders, and what room it takes."""
        fingerprints: dict[str, str] = {}
        shares: dict[str, EncoderShare] = {}
        for path in self._files():  # a database comes before what was set aside of it
            digest, is_database = path.name.partition(".")[0], path.suffix == DATABASE
            about: dict[str, Any] = {}
            rows, is_corrupt = 0, path.suffix == CORRUPT
            if is_database:
                try:
                    about, rows = Database(path).contents()
                except DamagedDatabaseError:
                    is_corrupt = True
            fingerprint = fingerprints.setdefault(digest, about.get("fingerprint", digest))
            share = shares.get(fingerprint, EncoderShare(fingerprint))
            shares[fingerprint] = replace(
                share,
                name=share.name or about.get("name", ""),
                rows=share.rows + rows,
                bytes=share.bytes + _size(path),
                files=share.files + is_database,
                corrupt=share.corrupt + is_corrupt,
            )
        outdated = sum(map(_size, self._outdated()))
        return StoreReport(str(self.root.parent), self.max_bytes, tuple(shares.values()), outdated)

    def verify(self, *, progress: Progress = no_progress) -> Verification:
        """Check every byte; keep what is sound and drop the rest."""
        found = {}
        paths = self._files(DATABASE)
        with stage(progress, "checking the store", len(paths)) as advance:
            for path in paths:
                found[str(path)] = Database(path).check()
                advance()
        damaged = tuple(path for path, (sound, _) in found.items() if not sound)
        return Verification(len(found), damaged, sum(lost for _, lost in found.values()))

    def clear(self, fingerprint: str | None = None) -> int:
        """Delete everything, or what is stored for one encoder; return the bytes freed."""
        doomed = [*self._files(), *self._outdated()] if fingerprint is None else []
        for path in self._files(DATABASE) if fingerprint is not None else ():
            with suppress(DamagedDatabaseError):
                if Database(path).contents()[0].get("fingerprint") == fingerprint:
                    doomed.append(path)
        freed = sum(map(_remove, doomed))
        with suppress(OSError):  # somebody else's file is in it: it stays
            self.root.rmdir()
        return freed

    def _files(self, suffix: str = "") -> list[Path]:
        """List the files that the store names itself: no others are counted or deleted."""
        try:
            paths = sorted(self.root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise StoreError(f"The embedding store may not read {self.root}.") from error
        ours = (path for path in paths if _OURS.match(path.name) and path.is_file())
        return [path for path in ours if path.name.endswith(suffix)]

    def _outdated(self) -> list[Path]:
        """List the embeddings of the format before this one."""
        return [*(self.root.parent / "v1").glob("*/float*/*.seg*")]

    def _evict(self) -> None:
        """Keep the limit: outdated and damaged files go first, then the least recently used."""
        if sum(map(_size, [*self._files(), *self._outdated()])) <= self.max_bytes:
            return
        for path in [*self._outdated(), *self._files(CORRUPT)]:
            _remove(path)
        while (excess := sum(map(_size, self._files())) - _SPARE * self.max_bytes) > 0:
            uses = []
            for path in self._files(DATABASE):
                with suppress(StoreError, DamagedDatabaseError):
                    uses += [(*use, path) for use in Database(path).uses()]
            doomed = defaultdict(list)
            for _, block, size, path in sorted(uses):
                if excess > 0:
                    doomed[path].append(block)
                    excess -= size
            if not doomed:
                return
            for path, blocks in doomed.items():
                Database(path).drop(blocks)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted meanwhile
        return 0


def _remove(path: Path) -> int:
    """Delete a file; return the bytes freed."""
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


def _checked(
    rows: NDArray[np.float32], shape: tuple[int, int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return computed rows in the number type of the store."""
    rows = np.asarray(rows)
    if rows.shape != shape:
        raise EmbeddingError(
            f"Computing {shape[0]} vectors of length {shape[1]} gave an array of shape "
            f"{rows.shape}; nothing of this batch was stored."
        )
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(rows, dtype=dtype)
    bad = np.flatnonzero(~np.isfinite(raw).all(axis=1))
    if bad.size:
        raise EmbeddingError(
            f"{bad.size} of {shape[0]} computed vectors are not finite in {dtype.name} (the first "
            f"is number {bad[0]} of its batch); nothing of this batch was stored."
        )
    return raw
