"""Embedding store: every embedding is computed once, kept on disk, and found by its content.

The store is one SQLite file with one row per embedding and its checksum. SQLite takes care of killed and
concurrent writers. An embedding without its checksum counts as missing; a file that SQLite cannot read is
set aside and begun anew. ``docs/results/performance.md`` compares its speed.
"""

import hashlib
import logging
import math
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows
from promptboost.errors import EmbeddingError, SettingError, StoreError, human_bytes
from promptboost.io import cache_folder
from promptboost.progress import Advance, Progress, no_progress, stage

T = TypeVar("T")
KEY_BYTES = 16
_FILE = "embeddings-v3.sqlite"  # another format is another file, so that versions can share a root
_SPARE = 0.9  # eviction goes a little below the limit, so as not to be needed at every write
_BLOCK = 7  # 2**7 successive rows are evicted together: their use is noted once
_KEYS_AT_ONCE = 500
_TOUCH_SECONDS = 600.0  # noting every use would turn every read into a write
_LOCK_SECONDS = 300.0
_SCHEMA = (
    "CREATE TABLE encoders (id INTEGER PRIMARY KEY, fingerprint BLOB, dim INTEGER, name BLOB)",
    # A key begins with the number of its encoder.
    "CREATE TABLE rows (id INTEGER PRIMARY KEY, key BLOB UNIQUE, checksum INTEGER, data BLOB)",
    "CREATE TABLE uses (block INTEGER PRIMARY KEY, time REAL)",
)
_PRAGMAS = ("synchronous = NORMAL", "cache_size = -32768")
# Large pages waste little room at their end; deleted rows give theirs back.
_NEW_FILE = ("page_size = 16384", "auto_vacuum = INCREMENTAL")
_ELSEWHERE = "or set PROMPTBOOST_CACHE to another folder."
_log = logging.getLogger(__name__)


def text_key(text: str) -> bytes:
    """Return the key of a text, exactly as given.

    Examples
    --------
    >>> text_key("a cat") == text_key("a cat ")
    False
    """
    return hashlib.blake2b(_bytes(text), digest_size=KEY_BYTES, person=b"text").digest()


def image_key(image_bytes_digest: bytes, view: str) -> bytes:
    """Return the key of one view of an image, from a digest of its file: a renamed image is known.

    `view` names the crop and everything it depends on, as
    :func:`~promptboost.data.views.view_name` does.

    Examples
    --------
    >>> image_key(b"digest of the file", "crop 3") == image_key(b"digest of the file", "original")
    False
    """
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    data = len(image_bytes_digest).to_bytes(8, "little") + image_bytes_digest + _bytes(view)
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"picture").digest()


def head_key(text_fingerprint: str, row: int) -> bytes:
    """Return the key of one row of a head."""
    data = _bytes(f"{text_fingerprint} {row}")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"head").digest()


def default_root() -> Path:
    """Return the folder of the store: under ``PROMPTBOOST_CACHE`` or the user's cache folder."""
    return cache_folder() / "store"


@dataclass(frozen=True)
class EncoderShare:
    """Contents of the store for one encoder; ``bytes`` are those of the numbers."""

    fingerprint: str
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class StoreReport:
    """Contents of the store by encoder; ``str()`` gives a table.

    Examples
    --------
    >>> share = EncoderShare("9f3c", "ViT-B-32/openai", 1200, 2_500_000)
    >>> print(StoreReport("cache/store", 20_000_000_000, 2_600_000, 0, (share,)))
    cache/store: 1,200 vectors, 2.6 MB of at most 20.0 GB
         vectors       size  encoder
           1,200     2.5 MB  ViT-B-32/openai (9f3c)
    """

    root: str
    limit: int
    bytes: int
    corrupt: int
    encoders: tuple[EncoderShare, ...]

    @property
    def rows(self) -> int:
        """The number of embeddings."""
        return sum(share.rows for share in self.encoders)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serializable values."""
        return {**asdict(self), "rows": self.rows, "encoders": [*map(asdict, self.encoders)]}

    def __str__(self) -> str:
        size = f"{human_bytes(self.bytes)} of at most {human_bytes(self.limit)}"
        lines = [f"{self.root}: {self.rows:,} vectors, {size}"]
        if self.encoders:
            lines.append(f"{'vectors':>12} {'size':>10}  encoder")
        for share in self.encoders:
            name = f"{share.name} ({share.fingerprint})" if share.name else share.fingerprint
            lines.append(f"{share.rows:>12,} {human_bytes(share.bytes):>10}  {name}")
        if self.corrupt:
            lines.append("a damaged file was set aside: `promptboost cache clear` deletes it")
        return "\n".join(lines)


@dataclass(frozen=True)
class Verification:
    """Result of a check of every byte; ``str()`` gives a sentence.

    Examples
    --------
    >>> print(Verification(ok=True, rows=3, rows_lost=0))
    3 vectors checked, all sound
    """

    ok: bool
    rows: int
    rows_lost: int

    def __str__(self) -> str:
        lost = f"{self.rows_lost:,} were" if self.rows_lost else "the file was"
        fault = f"{lost} damaged; what was lost is computed again when needed"
        return f"{self.rows:,} vectors checked, {'all sound' if self.ok else fault}"


class _DamagedError(Exception):
    """The file is cut off or altered; raised and caught within the store."""


class EmbeddingStore:
    """Embeddings on disk, by an encoder's fingerprint and a digest of the content.

    Any number of processes and threads may use one store at the same time, and any of them may be
    killed at any moment: a batch is on disk whole or not at all. What is read is checked; what is
    damaged is computed again.

    Parameters
    ----------
    root : path, optional
        Folder of the store, created when first written to; :func:`default_root` if not given.
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
        self.root = (default_root() if root is None else Path(root)).absolute()
        self.max_bytes = max_bytes
        self._path = self.root / _FILE
        self._corrupt = self._path.with_suffix(".corrupt")

    def get_or_compute(
        self,
        fingerprint: str,
        keys: Sequence[bytes],
        compute: Callable[[list[int]], NDArray[np.float32]],
        *,
        dim: int,
        batch: int = 1024,
        name: str = "",
        advance: Advance | None = None,
    ) -> UnitRows:
        """Return one row for each key, computing only those that no run has computed before.

        Parameters
        ----------
        fingerprint : str
            Identity of the encoder: whatever changes embeddings must change it.
        keys : sequence of bytes
            From :func:`text_key` or :func:`image_key`; may repeat.
        compute : callable
            Given positions in ``keys``, without repeats and in order, returns a row for each.
        dim : int
            Length of the embeddings.
        batch : int, default=1024
            Number of positions given to ``compute`` at once. Each batch is stored before the next
            begins, so a killed run continues where it was.
        name : str, optional
            Name of the encoder, for reports.
        advance : callable, optional
            Called with the number of further keys that are done; the numbers add up to all.

        Returns
        -------
        float32 array of shape (len(keys), dim)
            Bit for bit the same on every run.
        """
        if batch < 1:
            raise SettingError(f"batch is {batch}; it must be at least 1.")
        first: dict[bytes, int] = {}
        for position, key in enumerate(keys):
            first.setdefault(key, position)
        distinct, positions = list(first), list(first.values())
        rows, missing = self.find(fingerprint, distinct, dim=dim)
        if advance:
            advance(len(keys) - len(missing))
        if missing:
            # What cannot be stored is not computed either.
            self._write(lambda connection: _prefix(connection, fingerprint, dim, name))
        for start in range(0, len(missing), batch):
            part = missing[start : start + batch]
            # Another process may have stored some of it meanwhile.
            rows[part], new = self.find(fingerprint, [distinct[i] for i in part], dim=dim)
            if todo := [part[i] for i in new]:
                computed = _checked(compute([positions[i] for i in todo]), (len(todo), dim))
                rows[todo] = self.add(fingerprint, [distinct[i] for i in todo], computed, name=name)
            if advance:
                advance(len(part))
        if len(distinct) == len(keys):
            return rows
        index = {key: i for i, key in enumerate(distinct)}
        return rows[[index[key] for key in keys]]

    def find(
        self, fingerprint: str, keys: Sequence[bytes], *, dim: int
    ) -> tuple[UnitRows, list[int]]:
        """Return one row for each key, and the positions of those that are not stored, in order."""
        if dim < 1:
            raise SettingError(f"dim is {dim}; it must be at least 1.")
        for position, key in enumerate(keys):
            if len(key) != KEY_BYTES:
                raise StoreError(
                    f"Key {position} has {len(key)} bytes where the store needs {KEY_BYTES}: "
                    "make keys with text_key or image_key."
                )
        rows = np.zeros((len(keys), dim), dtype=np.float32)
        stale: set[int] = set()

        def fill(connection: sqlite3.Connection) -> list[int]:
            return _fill(connection, _prefix(connection, fingerprint, dim), keys, rows, stale)

        missing = self._read(fill, list(range(len(keys))))
        if stale:
            with suppress(StoreError):  # a read-only store can still be read
                self._write(lambda connection: _note_use(connection, stale))
        return rows, missing

    def add(
        self, fingerprint: str, keys: Sequence[bytes], rows: NDArray[np.float32], *, name: str = ""
    ) -> UnitRows:
        """Store computed rows, and return them as later runs will find them.

        If another process stored a key first, its row is returned: batches of other sizes can differ
        in the last bit.
        """
        stored = _checked(rows, (len(keys), rows.shape[1])).copy()

        def insert(connection: sqlite3.Connection) -> None:
            prefix = _prefix(connection, fingerprint, rows.shape[1], name)
            new: dict[bytes, bytes] = {}
            for i in _fill(connection, prefix, keys, stored, set()):
                new.setdefault(prefix + keys[i], stored[i].astype("<f4").tobytes())
            connection.executemany(
                "INSERT OR REPLACE INTO rows (key, checksum, data) VALUES (?, ?, ?)",
                [(key, zlib.crc32(key + data), data) for key, data in new.items()],
            )
            last = connection.execute("SELECT ifnull(max(id), 0) FROM rows").fetchone()[0]
            _note_use(connection, range((last - len(new) + 1) >> _BLOCK, (last >> _BLOCK) + 1))

        self._write(insert)
        self._evict()
        return stored

    def report(self) -> StoreReport:
        """Return the contents of the store, by encoder."""

        def count(connection: sqlite3.Connection) -> list[EncoderShare]:
            shares = []
            for number, *texts, dim in connection.execute(
                "SELECT id, fingerprint, name, dim FROM encoders"
            ):
                query = "SELECT count(*) FROM rows WHERE key BETWEEN ? AND ?"
                rows = connection.execute(query, _ends(number.to_bytes(4, "big"))).fetchone()[0]
                fingerprint, name = (text.decode("utf-8", "surrogatepass") for text in texts)
                shares.append(EncoderShare(fingerprint, name, rows, 4 * dim * rows))
            return shares

        nothing: list[EncoderShare] = []
        shares = tuple(self._read(count, nothing))
        size, corrupt = _size(self._path) + _size(self._corrupt), int(self._corrupt.exists())
        return StoreReport(str(self.root), self.max_bytes, size, corrupt, shares)

    def verify(self, *, progress: Progress = no_progress) -> Verification:
        """Check every byte; delete damaged embeddings, and set a damaged file aside."""
        rows, bad, was_there = 0, list[tuple[int]](), self._path.exists()
        total = self.report().rows

        def check(connection: sqlite3.Connection) -> None:
            nonlocal rows
            for number, *record in connection.execute("SELECT * FROM rows"):
                rows += 1
                if rows % _KEYS_AT_ONCE == 0:
                    advance(_KEYS_AT_ONCE)
                if not _is_sound(*record):
                    bad.append((number,))
            problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise _DamagedError(problem)

        with stage(progress, "checking the store", total) as advance:
            self._read(check, None)
        is_set_aside = was_there and not self._path.exists()
        if bad and not is_set_aside:
            with suppress(StoreError):  # what is damaged is not used anyway
                self._write(lambda c: c.executemany("DELETE FROM rows WHERE id = ?", bad))
        return Verification(not bad and not is_set_aside, rows, len(bad))

    def clear(self, fingerprint: str | None = None) -> int:
        """Delete everything, or the embeddings of one encoder; return the bytes freed."""
        size = _size(self._path) + _size(self._corrupt)

        def delete(connection: sqlite3.Connection) -> None:
            query = "DELETE FROM encoders WHERE fingerprint = ? RETURNING id"
            for (number,) in connection.execute(query, (_bytes(fingerprint or ""),)).fetchall():
                ends = _ends(number.to_bytes(4, "big"))
                connection.execute("DELETE FROM rows WHERE key BETWEEN ? AND ?", ends)
            connection.execute("PRAGMA incremental_vacuum").fetchall()

        if fingerprint is None:
            _remove(self._path, self._corrupt)
        elif self._path.exists():
            self._write(delete)
        return size - _size(self._path) - _size(self._corrupt)

    def _evict(self) -> None:
        """Keep the limit: a damaged file goes first, then the least recently used embeddings."""

        def drop(connection: sqlite3.Connection) -> bool:
            blocks = connection.execute("SELECT block FROM uses ORDER BY time, block").fetchall()
            doomed = blocks[: math.ceil(len(blocks) * (1 - _SPARE * self.max_bytes / size))]
            ends = [(block << _BLOCK, ((block + 1) << _BLOCK) - 1) for (block,) in doomed]
            connection.executemany("DELETE FROM rows WHERE id BETWEEN ? AND ?", ends)
            connection.executemany("DELETE FROM uses WHERE block = ?", doomed)
            connection.execute("PRAGMA incremental_vacuum").fetchall()
            return len(doomed) == len(blocks)

        if _size(self._path) + _size(self._corrupt) > self.max_bytes:
            _remove(self._corrupt)
        while (size := _size(self._path)) > self.max_bytes:
            if self._write(drop):
                _remove(self._path)

    def _read(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Return what `read` returns, or `nothing` if there is no file, or a damaged one."""
        if not self._path.exists():
            return nothing
        try:
            with self._transaction("BEGIN") as connection:
                return read(connection) if _has_tables(connection) else nothing
        except _DamagedError as damage:
            self._set_aside(damage)
            return nothing

    def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Apply a change, to a new file if there is none or a damaged one."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.root, error.strerror) from error
        try:
            return self._apply(change)
        except _DamagedError as damage:
            self._set_aside(damage)
            return self._apply(change)

    def _apply(self, change: Callable[[sqlite3.Connection], T]) -> T:
        # Not for an existing file, where setting auto_vacuum would be one more write.
        pragmas = () if _size(self._path) else _NEW_FILE
        with self._transaction("BEGIN IMMEDIATE", *pragmas) as connection:
            if not _has_tables(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)
            return change(connection)

    @contextmanager
    def _transaction(self, begin: str, *pragmas: str) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction: threads and forks share nothing."""
        try:
            with closing(
                sqlite3.connect(self._path, timeout=_LOCK_SECONDS, isolation_level=None)
            ) as connection:
                for pragma in (*pragmas, *_PRAGMAS):
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute(begin)
                yield connection
                connection.execute("COMMIT")  # not reached after an error: closing rolls back
        except sqlite3.Error as error:
            raise _explained(self._path, error) from error

    def _set_aside(self, damage: _DamagedError) -> None:
        """Rename a damaged file, so that a new one is begun."""
        _log.warning("Set aside %s (%s); embeddings are computed again.", self._path, damage)
        with suppress(
            OSError
        ):  # read-only, or another process was first: it is not used either way
            os.replace(self._path, self._corrupt)
            os.unlink(f"{self._path}-journal")  # must not be applied to the new file


def _has_tables(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA schema_version").fetchone()[0])


def _prefix(
    connection: sqlite3.Connection, fingerprint: str, dim: int, name: str | None = None
) -> bytes:
    """Return what the keys of an encoder begin with; with a `name`, a new encoder is registered."""
    query = "SELECT id, name FROM encoders WHERE fingerprint = ? AND dim = ?"
    row = connection.execute(query, (_bytes(fingerprint), dim)).fetchone()
    if row is None and name is not None:
        query = "INSERT INTO encoders (fingerprint, dim, name) VALUES (?, ?, ?) RETURNING id, name"
        row = connection.execute(query, (_bytes(fingerprint), dim, _bytes(name))).fetchone()
    elif name and row[1] != _bytes(name):
        connection.execute("UPDATE encoders SET name = ? WHERE id = ?", (_bytes(name), row[0]))
    number: int = row[0] if row else 0  # numbers begin with 1
    return number.to_bytes(4, "big")


def _ends(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of the keys of an encoder."""
    return prefix, prefix + b"\xff" * (KEY_BYTES + 1)


def _fill(
    connection: sqlite3.Connection,
    prefix: bytes,
    keys: Sequence[bytes],
    rows: UnitRows,
    stale: set[int],
) -> list[int]:
    """Fill in stored rows; return the positions of others, and add blocks whose use is to be noted."""
    missing, size, recent = [], 4 * rows.shape[1], time.time() - _TOUCH_SECONDS
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        part = [prefix + key for key in keys[start : start + _KEYS_AT_ONCE]]
        query = (
            f"SELECT id >> {_BLOCK}, key, checksum, data, CAST(time AS REAL) > ? FROM rows LEFT JOIN "
            f"uses ON block = id >> {_BLOCK} WHERE key IN ({','.join('?' * len(part))})"
        )
        known: dict[bytes, bytes] = {}
        for block, key, checksum, data, is_recent in connection.execute(query, (recent, *part)):
            if _is_sound(key, checksum, data) and len(data) == size:
                known[key] = data
                if not is_recent:
                    stale.add(block)
        found = [i for i, key in enumerate(part) if key in known]
        joined = b"".join([known[part[i]] for i in found])
        rows[[start + i for i in found]] = np.frombuffer(joined, "<f4").reshape(-1, rows.shape[1])
        missing += [start + i for i, key in enumerate(part) if key not in known]
    return missing


def _is_sound(key: Any, checksum: Any, data: Any) -> bool:
    # In a damaged file any value may have become anything.
    is_row = isinstance(key, bytes) and isinstance(data, bytes)
    return is_row and zlib.crc32(key + data) == checksum


def _note_use(connection: sqlite3.Connection, blocks: Iterable[int]) -> None:
    values = [(block, time.time()) for block in blocks]
    connection.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?)", values)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted meanwhile
        return 0


def _remove(*paths: Path) -> None:
    for path in paths:
        for name in (path, f"{path}-journal"):
            with suppress(OSError):  # gone already, or (on Windows) open elsewhere
                os.unlink(name)


def _checked(rows: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    rows = np.asarray(rows, dtype=np.float32)
    if rows.shape != shape:
        raise EmbeddingError(
            f"Computing {shape[0]} vectors of length {shape[1]} gave an array of shape "
            f"{rows.shape}; nothing of this batch was stored."
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise EmbeddingError(
            f"{bad.size} of {shape[0]} computed vectors are not finite (the first "
            f"is number {bad[0]} of its batch); nothing of this batch was stored."
        )
    return rows


def _unusable(path: Path, reason: object) -> StoreError:
    return StoreError(
        f"The embedding store may not write or read {path} ({reason}). Check the permissions of its "
        f"folder and the disk, {_ELSEWHERE}"
    )


def _explained(path: Path, error: sqlite3.Error) -> Exception:
    """Return what an error of SQLite means for the store."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return error
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC):
        return StoreError(
            f"No room to write {path} ({error}). Everything stored before is intact. Free some disk "
            "space (`promptboost cache` shows what the store takes and can clear it) " + _ELSEWHERE
        )
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                f"Another process has held {path} for {_LOCK_SECONDS:.0f} s. Stop that process (it may "
                f"be suspended) {_ELSEWHERE}"
            )
        case (
            sqlite3.SQLITE_READONLY
            | sqlite3.SQLITE_PERM
            | sqlite3.SQLITE_CANTOPEN
            | sqlite3.SQLITE_IOERR
        ):
            return _unusable(path, error)
    return _DamagedError(str(error))
