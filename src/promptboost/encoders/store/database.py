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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.errors import StoreError

__all__ = ["CORRUPT", "DATABASE", "KEY_BYTES", "Database", "DamagedDatabaseError", "Dtype"]

Dtype = Literal["float32", "float16"]
KEY_BYTES = 16
_Pairs = NDArray[np.uint64]  # keys as two halves each, which numpy compares natively
DATABASE = ".sqlite"
CORRUPT = ".corrupt"
"""Suffix of a damaged file set aside: never read again, the first to go when room is needed."""

_BLOCK_BYTES = 1 << 16
_KEYS_AT_ONCE = 500
_TOUCH_SECONDS = 600.0  # noting every use would turn every read into a write
_LOCK_SECONDS = 300.0
_ELSEWHERE = "set PROMPTBOOST_CACHE to another folder"
_SCHEMA = """
CREATE TABLE about (settings BLOB);
CREATE TABLE blocks (id INTEGER PRIMARY KEY, checksum INTEGER, data BLOB);
CREATE TABLE uses (block INTEGER PRIMARY KEY, time REAL);
CREATE TABLE places (key BLOB PRIMARY KEY, block INTEGER, position INTEGER) WITHOUT ROWID;
"""
_PRAGMAS = ("synchronous = NORMAL", "cache_size = -32768")
# Larger pages for large blobs; deleted blocks give their room back.
_NEW_FILE = ("page_size = 8192", "auto_vacuum = INCREMENTAL")
_log = logging.getLogger(__name__)


class DamagedDatabaseError(Exception):
    """A database's file is cut off or altered; raised and caught within the store."""


class Database:
    """The embeddings in one file. Every operation opens it anew, so threads and forks are free."""

    def __init__(self, path: Path, dim: int, dtype: Dtype) -> None:
        self.path = path
        self.dim = dim
        self.dtype = np.dtype(dtype).newbyteorder("<")

    # Reading

    def fill(self, keys: Sequence[bytes], wanted: list[int], out: UnitRows) -> list[int]:
        """Put known embeddings into ``out`` at the positions ``wanted``; return the unknown ones."""
        if not self.path.exists():
            return wanted
        try:
            with self._transaction("BEGIN") as connection:
                if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                    return wanted
                self._check_settings(connection)
                missing, bad, stale = self._fill(connection, keys, wanted, out)
        except DamagedDatabaseError as damage:
            self.rebuild(str(damage))
            return wanted
        with suppress(StoreError, DamagedDatabaseError):  # a read-only store can still be read
            if bad:
                _log.warning(
                    "%d blocks of %s do not have their checksum; they are computed again.",
                    len(bad),
                    self.path,
                )
                self.drop(bad)
            if stale:
                self._touch(stale)
        return missing

    def decode(self, raw: NDArray[Any]) -> UnitRows:
        """Turn stored numbers into rows as returned: the same on every run, the first included."""
        if self.dtype.itemsize == 4:
            return raw.astype(np.float32, copy=False)
        return unit_rows(raw)

    def _fill(
        self,
        connection: sqlite3.Connection,
        keys: Sequence[bytes],
        wanted: list[int],
        out: UnitRows,
    ) -> tuple[list[int], list[int], list[int]]:
        missing: list[int] = []
        places: dict[int, list[tuple[int, int]]] = {}
        for start in range(0, len(wanted), _KEYS_AT_ONCE):
            part = {keys[position]: position for position in wanted[start : start + _KEYS_AT_ONCE]}
            marks = ",".join("?" * len(part))
            # The casts are for damaged files, where a number may have become anything.
            query = (
                "SELECT key, ifnull(CAST(block AS INTEGER), -1), "
                f"ifnull(CAST(position AS INTEGER), -1) FROM places WHERE key IN ({marks})"
            )
            for key, block, row in connection.execute(query, list(part)):
                if key in part:
                    places.setdefault(block, []).append((part.pop(key), row))
            missing += part.values()
        bad, stale = [], []
        now = time.time()
        query = (
            "SELECT checksum, data, CAST(time AS REAL) FROM blocks LEFT JOIN uses ON id = block "
            "WHERE id = ?"
        )
        for block in sorted(places):
            stored = connection.execute(query, (block,)).fetchone()
            content = None if stored is None else self._content(*stored[:2])
            if content is None:
                bad.append(block)
                missing += [position for position, _ in places[block]]
                continue
            block_keys, embeddings = content
            to, rows = np.array(places[block], dtype=np.int64).T
            inside = np.clip(rows, 0, len(embeddings) - 1)
            asked = np.frombuffer(b"".join([keys[i] for i in to.tolist()]), dtype="<u8")
            is_there = (block_keys[inside] == asked.reshape(-1, 2)).all(axis=1) & (inside == rows)
            out[to[is_there]] = self.decode(embeddings[rows[is_there]])
            missing += to[~is_there].tolist()  # the place is wrong, not the block: written anew
            if stored[2] is None or now - stored[2] > _TOUCH_SECONDS:
                stale.append(block)
        return sorted(missing), bad, stale

    def _content(self, checksum: object, data: object) -> tuple[_Pairs, NDArray[Any]] | None:
        """Return keys and embeddings of a block, or None if it is damaged."""
        row_bytes = self.dim * self.dtype.itemsize
        if not isinstance(data, bytes) or zlib.crc32(data) != checksum:
            return None
        count, rest = divmod(len(data), KEY_BYTES + row_bytes)
        if rest or not count:
            return None
        embeddings = np.frombuffer(data, dtype=self.dtype, offset=count * KEY_BYTES)
        pairs = np.frombuffer(data, dtype="<u8", count=2 * count).reshape(count, 2)
        return pairs, embeddings.reshape(count, self.dim)

    def _check_settings(self, connection: sqlite3.Connection) -> None:
        about = self._about(connection)
        if (about.get("dim"), about.get("dtype")) != (self.dim, self.dtype.name):
            raise DamagedDatabaseError("does not hold the embeddings its name tells")

    @staticmethod
    def _about(connection: sqlite3.Connection) -> dict[str, Any]:
        row = connection.execute("SELECT settings FROM about").fetchone()
        try:
            about: dict[str, Any] = json.loads(row[0])
            return about
        except (ValueError, TypeError) as error:
            raise DamagedDatabaseError("its settings cannot be read") from error

    # Writing

    def prepare(self, fingerprint: str, name: str) -> None:
        """Make the file, or raise if embeddings cannot be stored."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The embedding store cannot use {self.path.parent} "
                f"({error.strerror or error}). Check that folder and its disk, or {_ELSEWHERE}."
            ) from error
        if not os.access(self.path.parent, os.W_OK):
            raise _forbidden(self.path, "permission denied")
        settings = {
            "fingerprint": fingerprint,
            "name": name,
            "dim": self.dim,
            "dtype": self.dtype.name,
        }
        with self._writing(_NEW_FILE) as connection:
            if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                for statement in _SCHEMA.strip().split("\n"):
                    connection.execute(statement)
                connection.execute("INSERT INTO about VALUES (?)", (json.dumps(settings),))
            elif name and self._about(connection).get("name") != name:
                connection.execute("UPDATE about SET settings = ?", (json.dumps(settings),))

    def add(
        self, keys: Sequence[bytes], positions: list[int], raw: NDArray[Any], out: UnitRows
    ) -> None:
        """Store what was computed for some keys, and put it into ``out``.

        Where another process stored a key first, its embedding is the one that later runs will
        see, and so the one returned: batches of other sizes can differ in the last bit.
        """
        out[positions] = self.decode(raw)
        row_of = {position: row for row, position in enumerate(positions)}
        rows_at_once = max(1, _BLOCK_BYTES // (self.dim * self.dtype.itemsize))
        with self._writing() as connection:
            new, _, _ = self._fill(connection, keys, positions, out)
            for start in range(0, len(new), rows_at_once):
                part = new[start : start + rows_at_once]
                embeddings = raw[[row_of[position] for position in part]].astype(self.dtype)
                block_keys = [keys[position] for position in part]
                self._insert(connection, block_keys, b"".join(block_keys) + embeddings.tobytes())

    def _insert(self, connection: sqlite3.Connection, keys: Sequence[bytes], data: bytes) -> None:
        block = connection.execute(
            "INSERT INTO blocks (checksum, data) VALUES (?, ?)", (zlib.crc32(data), data)
        ).lastrowid
        connection.execute("INSERT OR REPLACE INTO uses VALUES (?, ?)", (block, time.time()))
        places = sorted((key, block, row) for row, key in enumerate(keys))
        connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", places)

    def drop(self, blocks: Sequence[int]) -> None:
        """Delete blocks and give their room back; a file with none left goes as a whole."""
        with self._writing() as connection:
            connection.executemany("DELETE FROM blocks WHERE id = ?", [(b,) for b in blocks])
            connection.executemany("DELETE FROM uses WHERE block = ?", [(b,) for b in blocks])
            connection.execute("DELETE FROM places WHERE block NOT IN (SELECT id FROM blocks)")
            left = connection.execute("SELECT EXISTS (SELECT 1 FROM blocks)").fetchone()[0]
        if not left:
            self.remove()
            return
        with self._connected() as connection:
            # execute() would stop after the first page.
            connection.executescript("PRAGMA incremental_vacuum")

    def remove(self) -> None:
        """Delete the file."""
        for path in (self.path, Path(f"{self.path}-journal")):
            with suppress(OSError):  # gone already, or (on Windows) open elsewhere
                path.unlink()

    def _touch(self, blocks: Sequence[int]) -> None:
        """Note that blocks were used, which is what eviction goes by."""
        uses = [(block, time.time()) for block in blocks]
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?)", uses)

    # Looking after it

    def uses(self) -> list[tuple[float, int, int]]:
        """Return time of last use, number and bytes of each block."""
        query = (
            "SELECT CAST(time AS REAL), id, length(data) FROM blocks LEFT JOIN uses ON id = block"
        )
        with self._transaction("BEGIN") as connection:
            return [
                (used or 0.0, block, size or 0) for used, block, size in connection.execute(query)
            ]

    def settings(self) -> tuple[dict[str, Any], int]:
        """Return what is noted about the encoder, and the number of embeddings."""
        with self._transaction("BEGIN") as connection:
            if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                return {}, 0
            count = connection.execute("SELECT count(*) FROM places").fetchone()[0]
            return self._about(connection), int(count)

    def check(self) -> tuple[bool, int]:
        """Check every byte: return whether all is as written, and the embeddings lost."""
        try:
            with self._transaction("BEGIN") as connection:
                if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                    return True, 0
                self._check_settings(connection)
                bad, lost = self._bad_blocks(connection)
                sound = connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
        except DamagedDatabaseError as damage:
            self.rebuild(str(damage))
            return False, 0
        if bad:
            self.drop(bad)
        if not sound:
            self.rebuild("SQLite finds it inconsistent")
        return sound and not bad, lost

    def _bad_blocks(self, connection: sqlite3.Connection) -> tuple[list[int], int]:
        bad, lost = [], 0
        for block, checksum, data in connection.execute("SELECT id, checksum, data FROM blocks"):
            if self._content(checksum, data) is None:
                bad.append(block)
                size = len(data) if isinstance(data, bytes) else 0
                lost += size // (KEY_BYTES + self.dim * self.dtype.itemsize)
        return bad, lost

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
        old = Database(aside, self.dim, "float16" if self.dtype.itemsize == 2 else "float32")
        with suppress(StoreError, DamagedDatabaseError), old._transaction("BEGIN") as source:
            about = self._about(source)
            old._check_settings(source)
            self.prepare(about["fingerprint"], about["name"])
            # An error of the source ends the copy: what comes after cannot be read.
            with self._writing() as connection, suppress(sqlite3.Error):
                for checksum, data in source.execute("SELECT checksum, data FROM blocks"):
                    content = self._content(checksum, data)
                    if content is not None:
                        block_keys = content[0].tobytes()
                        starts = range(0, len(block_keys), KEY_BYTES)
                        keys = [block_keys[at : at + KEY_BYTES] for at in starts]
                        self._insert(connection, keys, data)

    # Connections

    @contextmanager
    def _connected(self, settings: Sequence[str] = ()) -> Iterator[sqlite3.Connection]:
        try:
            with closing(
                sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
            ) as connection:
                for setting in (*settings, *_PRAGMAS):
                    connection.execute(f"PRAGMA {setting}")
                yield connection
        except sqlite3.Error as error:
            raise _explained(self.path, error) from error

    @contextmanager
    def _transaction(
        self, begin: str, settings: Sequence[str] = ()
    ) -> Iterator[sqlite3.Connection]:
        with self._connected(settings) as connection:
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # some errors have rolled back already
                    connection.execute("ROLLBACK")
                raise

    def _writing(self, settings: Sequence[str] = ()) -> AbstractContextManager[sqlite3.Connection]:
        return self._transaction("BEGIN IMMEDIATE", settings)


def _forbidden(path: Path, reason: object) -> StoreError:
    return StoreError(
        f"The embedding store may not write or read {path} ({reason}). "
        f"Correct the folder's permissions or {_ELSEWHERE}."
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
            f"{_ELSEWHERE}, then run the same command again: it goes on from here."
        )
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"Another process has held {path} for {_LOCK_SECONDS:.0f} s. Stop that process "
            f"(it may be suspended) or {_ELSEWHERE}."
        )
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return _forbidden(path, error)
    if primary == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"The embedding store cannot use {path} ({error}). Check that folder and its disk, or "
            f"{_ELSEWHERE}."
        )
    return DamagedDatabaseError(str(error))
