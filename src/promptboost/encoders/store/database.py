"""One SQLite file of the store: the embeddings of one encoder, of one length and number type.

Embeddings are kept in blocks of about 64 kB with a checksum each: the keys of the block, then its
embeddings. The table ``places`` says where each key is. A block that does not have its checksum is
dropped; a file that SQLite cannot read is set aside, and its sound blocks move to a new one.
"""

import json
import logging
import os
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.errors import StoreError

KEY_BYTES = 16
DATABASE = ".sqlite"
CORRUPT = ".corrupt"
"""Suffix of a damaged file set aside: never read again, the first to go when room is needed."""

_BLOCK_BYTES = 1 << 16
_KEYS_AT_ONCE = 500
_TOUCH_SECONDS = 600.0  # noting every use would turn every read into a write
_LOCK_SECONDS = 300.0
_ELSEWHERE = "set PROMPTBOOST_CACHE to another folder"
_SCHEMA = (
    "CREATE TABLE about (settings BLOB)",
    "CREATE TABLE blocks (id INTEGER PRIMARY KEY, checksum INTEGER, data BLOB)",
    "CREATE TABLE uses (block INTEGER PRIMARY KEY, time REAL)",
    "CREATE TABLE places (key BLOB PRIMARY KEY, block INTEGER, position INTEGER) WITHOUT ROWID",
)
_PRAGMAS = ("synchronous = NORMAL", "cache_size = -32768")
# Larger pages for large blobs; deleted blocks give their room back.
_NEW_FILE = ("page_size = 8192", "auto_vacuum = INCREMENTAL")
_WRITE = "BEGIN IMMEDIATE"
_USED = "INSERT OR REPLACE INTO uses VALUES (?, ?)"
_log = logging.getLogger(__name__)


class DamagedDatabaseError(Exception):
    """A database's file is cut off or altered; raised and caught within the store."""


class Database:
    """The embeddings in one file, opened anew for every operation: threads and forks are free."""

    def __init__(self, path: Path) -> None:
        dtype, _, dim = path.name.partition("-")[0].partition("x")
        self.path = path
        self.dim = int(dim)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._row_bytes = KEY_BYTES + self.dim * self.dtype.itemsize

    def fill(self, keys: Sequence[bytes], wanted: list[int], out: UnitRows) -> list[int]:
        """Put known embeddings into ``out`` at the positions ``wanted``; return the unknown ones."""
        if not self.path.exists():
            return wanted
        try:
            with self._transaction() as connection:
                if not self._about(connection):
                    return wanted
                missing, bad, stale = self._read(connection, keys, wanted, out)
        except DamagedDatabaseError as damage:
            self.rebuild(str(damage))
            return wanted
        with suppress(StoreError, DamagedDatabaseError):  # a read-only store can still be read
            if bad:
                news = "%d blocks of %s do not have their checksum; they are computed again."
                _log.warning(news, len(bad), self.path)
                self.drop(bad)
            if stale:
                with self._transaction(_WRITE) as connection:
                    connection.executemany(_USED, [(block, time.time()) for block in stale])
        return missing

    def all_keys(self) -> Iterator[list[bytes]]:
        """Return all keys in their order, some at a time."""
        last = b""
        while self.path.exists():
            query = "SELECT key FROM places WHERE key > ? ORDER BY key LIMIT ?"
            with self._transaction() as connection:
                found = connection.execute(query, (last, _KEYS_AT_ONCE)).fetchall()
            if not found:
                return
            last = found[-1][0]
            yield [key for (key,) in found]

    def prepare(self, settings: Mapping[str, Any]) -> None:
        """Make the file, noting what it is for, or raise if embeddings cannot be stored."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path.parent, error.strerror or error) from error
        if not os.access(self.path.parent, os.W_OK):
            raise _forbidden(self.path, "permission denied")
        note = json.dumps({**settings, "dim": self.dim, "dtype": self.dtype.name})
        with self._transaction(_WRITE, _NEW_FILE) as connection:
            about = self._about(connection)
            if not about:
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute("INSERT INTO about VALUES (?)", (note,))
            elif settings.get("name") and settings["name"] != about.get("name"):
                connection.execute("UPDATE about SET settings = ?", (note,))

    def add(
        self, keys: Sequence[bytes], positions: list[int], raw: NDArray[Any], out: UnitRows
    ) -> None:
        """Store what was computed at some positions, in order, and put it into ``out``.

        Where another process stored a key first, its embedding is the one that later runs will
        see, and so the one returned: batches of other sizes can differ in the last bit.
        """
        out[positions] = self._decoded(raw)
        rows_at_once = max(1, _BLOCK_BYTES // (self.dim * self.dtype.itemsize))
        with self._transaction(_WRITE) as connection:
            new, _, _ = self._read(connection, keys, positions, out)
            raw = raw[np.isin(positions, new)]
            for start in range(0, len(new), rows_at_once):
                rows = slice(start, start + rows_at_once)
                names = b"".join([keys[position] for position in new[rows]])
                self._insert(connection, names + raw[rows].tobytes())

    def drop(self, blocks: Sequence[int]) -> None:
        """Delete blocks and give their room back; a file with none left goes as a whole."""
        numbers = [(block,) for block in blocks]
        with self._transaction(_WRITE) as connection:
            connection.executemany("DELETE FROM blocks WHERE id = ?", numbers)
            connection.executemany("DELETE FROM uses WHERE block = ?", numbers)
            connection.execute("DELETE FROM places WHERE block NOT IN (SELECT id FROM blocks)")
            for _ in range(connection.execute("PRAGMA freelist_count").fetchone()[0]):
                connection.execute("PRAGMA incremental_vacuum")  # one page
            left = connection.execute("SELECT EXISTS (SELECT 1 FROM blocks)").fetchone()[0]
        if not left:
            for path in (self.path, Path(f"{self.path}-journal")):
                with suppress(OSError):  # gone already, or (on Windows) open elsewhere
                    path.unlink()

    def uses(self) -> list[tuple[float, int, int]]:
        """Return time of last use, number and bytes of each block."""
        query = (
            "SELECT ifnull(CAST(time AS REAL), 0.0), id, ifnull(length(data), 0) "
            "FROM blocks LEFT JOIN uses ON id = block"
        )
        with self._transaction() as connection:
            return connection.execute(query).fetchall()

    def contents(self) -> tuple[dict[str, Any], int]:
        """Return what is noted about the encoder, and the number of embeddings."""
        with self._transaction() as connection:
            if about := self._about(connection):
                return about, connection.execute("SELECT count(*) FROM places").fetchone()[0]
            return {}, 0

    def check(self) -> tuple[bool, int]:
        """Check every byte: return whether all is as written, and the embeddings lost."""
        bad: dict[int, int] = {}
        try:
            with self._transaction() as connection:
                if not self._about(connection):
                    return True, 0
                query = "SELECT id, checksum, data FROM blocks"
                for block, checksum, data in connection.execute(query):
                    rows = len(data) // self._row_bytes if isinstance(data, bytes) else 0
                    if self._content(checksum, data) is None:
                        bad[block] = rows
                sound = connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
        except DamagedDatabaseError as damage:
            self.rebuild(str(damage))
            return False, 0
        if bad:
            with suppress(StoreError, DamagedDatabaseError):  # what is damaged is not used anyway
                self.drop([*bad])
        if not sound:
            self.rebuild("SQLite finds it inconsistent")
        return sound and not bad, sum(bad.values())

    def rebuild(self, why: str) -> None:
        """Set the damaged file aside; its sound blocks move to a new one, as far as can be read."""
        _log.warning("Set aside %s (%s); what it lost is computed again.", self.path, why)
        aside = self.path.with_name(f"{self.path.name}.{time.time_ns():x}{CORRUPT}")
        try:
            os.replace(self.path, aside)
        except OSError:  # read-only, or another process was first: it is not used either way
            return
        with suppress(OSError):  # half of a write to the damaged file must not reach the new one
            os.replace(f"{self.path}-journal", f"{aside}-journal")
        old = Database(aside)
        with suppress(StoreError, DamagedDatabaseError), old._transaction() as source:
            self.prepare(self._about(source))
            # An error of the source ends the copy: what comes after cannot be read.
            with self._transaction(_WRITE) as connection, suppress(sqlite3.Error):
                for checksum, data in source.execute("SELECT checksum, data FROM blocks"):
                    if self._content(checksum, data) is not None:
                        self._insert(connection, data)

    def _read(
        self,
        connection: sqlite3.Connection,
        keys: Sequence[bytes],
        wanted: list[int],
        out: UnitRows,
    ) -> tuple[list[int], list[int], list[int]]:
        """Fill ``out``; return the positions without an embedding, and damaged and stale blocks."""
        places = defaultdict(list)
        for start in range(0, len(wanted), _KEYS_AT_ONCE):
            part = {keys[position]: position for position in wanted[start : start + _KEYS_AT_ONCE]}
            marks = ",".join("?" * len(part))
            query = f"SELECT key, block, position FROM places WHERE key IN ({marks})"
            for key, block, row in connection.execute(query, list(part)):
                # In a damaged file a number may have become anything.
                if key in part and isinstance(block, int) and isinstance(row, int):
                    places[block].append((part[key], row))
        missing, bad, stale = set(wanted), [], []
        for block in sorted(places):
            query = (
                "SELECT checksum, data, time FROM blocks LEFT JOIN uses ON id = block WHERE id = ?"
            )
            stored = connection.execute(query, (block,)).fetchone()
            content = stored and self._content(*stored[:2])
            if content is None:
                bad.append(block)
                continue
            names, embeddings = content
            # A place that is wrong in a sound block is computed again and written anew.
            found = [
                (position, row)
                for position, row in places[block]
                if names[KEY_BYTES * row : KEY_BYTES * (row + 1)] == keys[position]
            ]
            positions, rows = [position for position, _ in found], [row for _, row in found]
            out[positions] = self._decoded(embeddings[rows])
            missing.difference_update(positions)
            if not (isinstance(stored[2], float) and time.time() - stored[2] <= _TOUCH_SECONDS):
                stale.append(block)
        return sorted(missing), bad, stale

    def _insert(self, connection: sqlite3.Connection, data: bytes) -> None:
        block = connection.execute(
            "INSERT INTO blocks (checksum, data) VALUES (?, ?)", (zlib.crc32(data), data)
        ).lastrowid
        connection.execute(_USED, (block, time.time()))
        rows = range(len(data) // self._row_bytes)
        places = [(data[KEY_BYTES * row : KEY_BYTES * (row + 1)], block, row) for row in rows]
        connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", sorted(places))

    def _content(self, checksum: object, data: object) -> tuple[bytes, NDArray[Any]] | None:
        """Return the keys, one after the other, and embeddings of a block; None if damaged."""
        if not isinstance(data, bytes) or zlib.crc32(data) != checksum:
            return None
        count, rest = divmod(len(data), self._row_bytes)
        if rest or not count:
            return None
        names = data[: count * KEY_BYTES]
        return names, np.frombuffer(data, self.dtype, offset=len(names)).reshape(count, self.dim)

    def _decoded(self, raw: NDArray[Any]) -> UnitRows:
        """Turn stored numbers into rows as returned: the same on every run, the first included."""
        if self.dtype.itemsize == 4:
            return raw.astype(np.float32, copy=False)
        return unit_rows(raw)

    def _about(self, connection: sqlite3.Connection) -> dict[str, Any]:
        """Return what the file says of itself; nothing if it has no tables yet."""
        if not connection.execute("PRAGMA schema_version").fetchone()[0]:
            return {}
        row = connection.execute("SELECT settings FROM about").fetchone()
        try:
            about: dict[str, Any] = json.loads(row[0])
            fits = (about["dim"], about["dtype"]) == (self.dim, self.dtype.name)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedDatabaseError("its settings cannot be read") from error
        if not fits:
            raise DamagedDatabaseError("does not hold the embeddings its name tells")
        return about

    @contextmanager
    def _transaction(
        self, begin: str = "BEGIN", pragmas: Sequence[str] = ()
    ) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction."""
        try:
            with closing(
                sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
            ) as connection:
                for pragma in (*pragmas, *_PRAGMAS):
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    with suppress(sqlite3.Error):
                        if connection.in_transaction:
                            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error


def _forbidden(path: Path, reason: object) -> StoreError:
    return StoreError(
        f"The embedding store may not write or read {path} ({reason}). "
        f"Correct the folder's permissions or {_ELSEWHERE}."
    )


def _unusable(path: Path, reason: object) -> StoreError:
    return StoreError(
        f"The embedding store cannot use {path} ({reason}). Check that folder and its disk, or "
        f"{_ELSEWHERE}."
    )


def _explained(path: Path, error: sqlite3.Error) -> Exception:
    """Turn an error of SQLite into what it means for the store."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return error
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC):
        return StoreError(
            f"No room to write {path} ({error}). Everything stored before is intact. Free some disk "
            "space (`promptboost cache` shows what the store takes and can clear it) or "
            f"{_ELSEWHERE}. What is stored is found again."
        )
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                f"Another process has held {path} for {_LOCK_SECONDS:.0f} s. Stop that process "
                f"(it may be suspended) or {_ELSEWHERE}."
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return _forbidden(path, error)
        case sqlite3.SQLITE_IOERR:
            return _unusable(path, error)
    return DamagedDatabaseError(str(error))
