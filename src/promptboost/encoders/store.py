"""Embedding store: an SQLite file with one row per embedding, found by encoder and content.

An embedding that does not match its checksum counts as missing; a file that SQLite cannot read is deleted.
``docs/results/performance.md`` compares its speed.
"""

import hashlib
import logging
import math
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows
from promptboost.errors import EmbeddingError, SettingError, StoreError, human_bytes
from promptboost.io import cache_folder
from promptboost.progress import Advance

_FILE = "embeddings-v4.sqlite"  # another format is another file, so that versions can share a root
_SPARE = 0.9  # eviction goes a little below the limit, so as not to be needed at every write
_KEYS_AT_ONCE = 500
_LOCK_SECONDS = 300.0
_SCHEMA = (
    "CREATE TABLE encoders (id INTEGER PRIMARY KEY, fingerprint BLOB, dim INTEGER, name BLOB)",
    # A key begins with the number of its encoder.
    "CREATE TABLE rows (id INTEGER PRIMARY KEY, key BLOB UNIQUE, checksum INTEGER, data BLOB)",
)
_PRAGMAS = ("synchronous = NORMAL", "cache_size = -32768")
# Large pages waste little room at their end; deleted rows give theirs back.
_NEW_FILE = ("page_size = 16384", "auto_vacuum = INCREMENTAL")
# What the user can change, by the error code of SQLite; any other code is damage.
_OBSTACLES = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("READONLY", "PERM", "CANTOPEN", "IOERR", "FULL", "BUSY", "LOCKED")
}
_log = logging.getLogger(__name__)


def text_key(text: str) -> bytes:
    """Return the key of a text."""
    return _key(_bytes(text), b"text")


def image_key(image_bytes_digest: bytes, view: str) -> bytes:
    """Return the key of one view of an image, from a digest of its file and the view's name."""
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    length = len(image_bytes_digest).to_bytes(8, "little")
    return _key(length + image_bytes_digest + _bytes(view), b"picture")


def head_key(text_fingerprint: str, row: int) -> bytes:
    """Return the key of one row of a head."""
    return _key(_bytes(f"{text_fingerprint} {row}"), b"head")


def _key(content: bytes, kind: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16, person=kind).digest()


class EncoderShare(NamedTuple):
    """Embeddings of one encoder; ``bytes`` is the size of the numbers alone."""

    fingerprint: str
    name: str
    rows: int
    bytes: int


class StoreReport(NamedTuple):
    """Contents of the store by encoder; ``str()`` formats them as a table."""

    root: str
    limit: int
    bytes: int
    encoders: tuple[EncoderShare, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serializable values."""
        shares = [share._asdict() for share in self.encoders]
        return {**self._asdict(), "encoders": shares, "rows": self.rows}

    @property
    def rows(self) -> int:
        """The number of embeddings."""
        return sum(share.rows for share in self.encoders)

    def __str__(self) -> str:
        size = f"{human_bytes(self.bytes)} of at most {human_bytes(self.limit)}"
        lines = [f"{self.root}: {self.rows:,} vectors, {size}"]
        if self.encoders:
            lines.append(f"{'vectors':>12} {'size':>10}  encoder")
        for fingerprint, name, rows, taken in self.encoders:
            name = f"{name} ({fingerprint})" if name else fingerprint
            lines.append(f"{rows:>12,} {human_bytes(taken):>10}  {name}")
        return "\n".join(lines)


class EmbeddingStore:
    """Embeddings on disk, by an encoder's fingerprint and a digest of the content.

    Processes and threads may share a store, and may be killed at any moment: a batch is stored whole or not
    at all. Beyond `max_bytes` the oldest embeddings are deleted.
    """

    def __init__(self, root: Path | str | None = None, *, max_bytes: int = 20_000_000_000) -> None:
        if max_bytes <= 0:
            raise SettingError(f"max_bytes must be positive, got {max_bytes}")
        self.root = (cache_folder() / "store" if root is None else Path(root)).absolute()
        self.max_bytes = max_bytes
        self._path = self.root / _FILE

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
        """Return one row of length `dim` for each key; compute and store the missing ones.

        `compute` is called with positions in `keys`, at most `batch` at once, without repeats and in
        order; its rows are stored before the next batch begins.
        """
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        distinct = list(dict.fromkeys(keys))
        rows, missing = self.find(fingerprint, distinct, dim=dim)
        if advance:
            advance(len(keys) - len(missing))
        if missing:  # fail before computing anything if the store cannot be written
            self._run(lambda connection: _prefix(connection, fingerprint, dim, name), write=True)
        for start in range(0, len(missing), batch):
            some = missing[start : start + batch]
            computed = compute([first[distinct[i]] for i in some])
            rows[some] = self.add(fingerprint, [distinct[i] for i in some], computed, name=name)
            if advance:
                advance(len(some))
        index = {key: i for i, key in enumerate(distinct)}
        return rows if len(rows) == len(keys) else rows[[index[key] for key in keys]]

    def find(
        self, fingerprint: str, keys: Sequence[bytes], *, dim: int
    ) -> tuple[UnitRows, list[int]]:
        """Return one row for each key, and the positions of the missing ones, in order."""
        rows = np.zeros((len(keys), dim), dtype=np.float32)
        missing = self._run(
            lambda connection: _fill(connection, _prefix(connection, fingerprint, dim), keys, rows),
            default=list(range(len(keys))),
        )
        return rows, missing

    def add(
        self, fingerprint: str, keys: Sequence[bytes], rows: NDArray[np.float32], *, name: str = ""
    ) -> UnitRows:
        """Store computed rows; return them, or what another process stored first.

        Batches of other sizes can differ in the last bit.
        """
        stored = np.array(rows, dtype=np.float32)
        if stored.ndim != 2 or len(stored) != len(keys):
            raise EmbeddingError(f"Computing {len(keys)} vectors gave shape {stored.shape}.")
        if bad := int((~np.isfinite(stored).all(axis=1)).sum()):
            raise EmbeddingError(f"{bad} of {len(keys)} computed vectors are not finite.")

        def insert(connection: sqlite3.Connection) -> None:
            prefix = _prefix(connection, fingerprint, stored.shape[1], name)
            new: dict[bytes, bytes] = {}
            for i in _fill(connection, prefix, keys, stored):
                new.setdefault(prefix + keys[i], stored[i].astype("<f4").tobytes())
            connection.executemany(
                "INSERT OR REPLACE INTO rows (key, checksum, data) VALUES (?, ?, ?)",
                [(key, zlib.crc32(key + data), data) for key, data in new.items()],
            )

        self._run(insert, write=True)
        while (size := self._size()) > self.max_bytes:
            share = 1 - _SPARE * self.max_bytes / size
            if self._run(partial(_evict, share=share), write=True):
                self._remove()
        return stored

    def report(self) -> StoreReport:
        """Return the contents of the store, by encoder."""

        def count(connection: sqlite3.Connection) -> Iterator[EncoderShare]:
            query = "SELECT id, dim, fingerprint, name FROM encoders"
            for number, dim, *texts in connection.execute(query).fetchall():
                query = "SELECT count(*) FROM rows WHERE key >= ? AND key < ?"
                first_keys = [which.to_bytes(4, "big") for which in (number, number + 1)]
                (rows,) = connection.execute(query, first_keys).fetchone()
                fingerprint, name = (text.decode("utf-8", "surrogatepass") for text in texts)
                yield EncoderShare(fingerprint, name, rows, 4 * dim * rows)

        shares = self._run(lambda connection: tuple(count(connection)), ())
        return StoreReport(str(self.root), self.max_bytes, self._size(), shares)

    def clear(self) -> int:
        """Delete everything; return the bytes freed."""
        size = self._size()
        self._remove()
        return size - self._size()

    def _run(
        self, work: Callable[[sqlite3.Connection], Any], default: Any = None, *, write: bool = False
    ) -> Any:
        """Return the result of `work`; reading a missing or damaged file returns `default`."""
        for again in (False, True):
            if not write and not self._path.exists():
                break
            try:
                return self._transaction(work, default, write)
            except (OSError, UnicodeDecodeError, sqlite3.Error) as error:
                code = getattr(error, "sqlite_errorcode", None)
                if code is None and isinstance(error, sqlite3.Error):  # a mistake here
                    raise
                if again or isinstance(error, OSError) or (code or 0) & 0xFF in _OBSTACLES:
                    raise StoreError(
                        f"the embedding store {self._path} cannot be used ({error}); everything stored is "
                        "intact. Free some space, check its permissions, stop a suspended process that "
                        "holds it, or set PROMPTBOOST_CACHE to another folder"
                    ) from error
                _log.warning("Deleting %s (%s); embeddings are computed again.", self._path, error)
                self._remove()
        return default

    def _transaction(
        self, work: Callable[[sqlite3.Connection], Any], default: Any, write: bool
    ) -> Any:
        """Open the file for one transaction: threads and forks share nothing."""
        if write:
            self.root.mkdir(parents=True, exist_ok=True)
        # Not for an existing file, where setting auto_vacuum would be one more write.
        pragmas = _NEW_FILE if write and not self._size() else ()
        connection = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, isolation_level=None)
        with closing(connection):
            for pragma in (*pragmas, *_PRAGMAS):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                if not write:
                    return default
                for statement in _SCHEMA:
                    connection.execute(statement)
            result = work(connection)
            connection.execute("COMMIT")  # not reached after an error: closing rolls back
            return result

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:  # deleted meanwhile
            return 0

    def _remove(self) -> None:
        for name in (self._path, f"{self._path}-journal"):  # not to be applied to a new file
            with suppress(OSError):  # gone already, read-only, or (on Windows) open elsewhere
                os.unlink(name)


def _prefix(
    connection: sqlite3.Connection, fingerprint: str, dim: int, name: str | None = None
) -> bytes:
    """Return the start of the keys of an encoder; with a `name`, register a new encoder."""
    query = "SELECT id, name FROM encoders WHERE fingerprint = ? AND dim = ?"
    row = connection.execute(query, (_bytes(fingerprint), dim)).fetchone()
    if row is None and name is not None:
        query = "INSERT INTO encoders (fingerprint, dim, name) VALUES (?, ?, ?) RETURNING id, name"
        row = connection.execute(query, (_bytes(fingerprint), dim, _bytes(name))).fetchone()
    elif name and row[1] != _bytes(name):
        connection.execute("UPDATE encoders SET name = ? WHERE id = ?", (_bytes(name), row[0]))
    number: int = row[0] if row else 0  # numbers begin with 1
    return number.to_bytes(4, "big")


def _fill(
    connection: sqlite3.Connection, prefix: bytes, keys: Sequence[bytes], rows: UnitRows
) -> list[int]:
    """Fill in stored rows; return the positions of the others."""
    missing, size = [], 4 * rows.shape[1]
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        wanted = [prefix + key for key in keys[start : start + _KEYS_AT_ONCE]]
        marks = ",".join("?" * len(wanted))
        records = connection.execute(
            f"SELECT key, checksum, data FROM rows WHERE key IN ({marks})", wanted
        )
        # In a damaged file any value may have become anything.
        sound = {
            key: data
            for key, checksum, data in records
            if isinstance(key, bytes) and isinstance(data, bytes) and len(data) == size
            if zlib.crc32(key + data) == checksum
        }
        stored = [i for i, key in enumerate(wanted) if key in sound]
        joined = b"".join([sound[wanted[i]] for i in stored])
        rows[[start + i for i in stored]] = np.frombuffer(joined, "<f4").reshape(-1, rows.shape[1])
        missing += [start + i for i, key in enumerate(wanted) if key not in sound]
    return missing


def _evict(connection: sqlite3.Connection, share: float) -> bool:
    """Delete a share of the rows, the oldest; return whether none are left."""
    first, last = connection.execute("SELECT min(id), ifnull(max(id), 0) FROM rows").fetchone()
    end = (first or 0) + math.ceil(share * (last - (first or 0) + 1))
    connection.execute("DELETE FROM rows WHERE id < ?", (end,))
    connection.execute("PRAGMA incremental_vacuum").fetchall()
    return bool(end > last)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
