"""One segment: an immutable, memory-mapped file of vectors with a sorted index and checksums.

Layout, little-endian: a 64-byte header; the vectors, in the order they were computed, so that a
second run reads them in sequence; then the index (both halves of the sorted keys, and the row of
each), one CRC-32 for each block of rows, and one CRC-32 of everything but the rows.
"""

import hashlib
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.store.disk import store_error, write_whole
from promptboost.errors import StoreError

__all__ = [
    "KEY_BYTES",
    "KeyPairs",
    "as_pairs",
    "first_positions",
    "image_key",
    "text_key",
    "DamagedSegmentError",
    "Layout",
    "RawRows",
    "Segment",
    "write_segment",
]

KEY_BYTES = 16

KeyPairs = NDArray[np.uint64]
"""Keys as an ``(n, 2)`` array: two 64-bit halves, which numpy sorts and searches natively."""


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


def as_pairs(keys: Sequence[bytes]) -> KeyPairs:
    """Turn digests into an ``(n, 2)`` array of their halves."""
    for position, key in enumerate(keys):
        if len(key) != KEY_BYTES:
            raise StoreError(
                f"Key {position} has {len(key)} bytes where the store needs {KEY_BYTES}: "
                "make keys with text_key or image_key."
            )
    return np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)


def first_positions(pairs: KeyPairs) -> NDArray[np.int64]:
    """Give, for each key, the position at which the same key first occurs.

    Examples
    --------
    >>> first_positions(as_pairs([text_key("a"), text_key("b"), text_key("a")])).tolist()
    [0, 1, 0]
    """
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: equal keys stay in their order
    ordered = pairs[order]
    is_new = np.ones(len(pairs), dtype=np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.empty(len(pairs), dtype=np.int64)
    first[order] = order[is_new][np.cumsum(is_new) - 1]
    return first


RawRows = NDArray[Any]
"""Vectors as they are on disk, float32 or float16."""

_MAGIC = b"PBSEGv1\n"
_HEADER = struct.Struct("<8sQIII36x")
_BLOCK_BYTES = 1 << 16  # the unit of checking: small enough to read for the sake of one row
_UNCHECKED, _SOUND, _BAD = 0, 1, 2


class DamagedSegmentError(Exception):
    """A segment's file is cut off or altered; raised and caught within the store."""


@dataclass(frozen=True)
class Layout:
    """Where things are in a segment."""

    count: int
    dim: int
    item_bytes: int
    block_rows: int

    @classmethod
    def of(cls, count: int, dim: int, item_bytes: int) -> "Layout":
        """Lay out ``count`` rows."""
        return cls(count, dim, item_bytes, max(1, _BLOCK_BYTES // (dim * item_bytes)))

    @classmethod
    def read(cls, path: Path) -> "Layout":
        """Read a file's header, and check that the file has the length the header implies."""
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
        return cls.parse(header, size)

    @classmethod
    def parse(cls, header: bytes, size: int) -> "Layout":
        """Check a header against the size of its file."""
        if len(header) != _HEADER.size:
            raise DamagedSegmentError("cut off within the header")
        magic, *fields = _HEADER.unpack(header)
        layout = cls(*fields)
        if magic != _MAGIC or layout.item_bytes not in (2, 4) or min(fields) < 1:
            raise DamagedSegmentError("not a segment")
        if layout.size != size:
            raise DamagedSegmentError(f"{size} bytes long instead of {layout.size}")
        return layout

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        return _HEADER.pack(_MAGIC, self.count, self.dim, self.item_bytes, self.block_rows)

    @property
    def block_bytes(self) -> int:
        """Bytes in a block of rows."""
        return self.block_rows * self.dim * self.item_bytes

    @property
    def blocks(self) -> int:
        """How many blocks there are, the last perhaps short."""
        return -(-self.count // self.block_rows)

    @property
    def rows_end(self) -> int:
        """Where the rows end."""
        return _HEADER.size + self.count * self.dim * self.item_bytes

    @property
    def index_start(self) -> int:
        """Where the index starts, aligned for its 64-bit halves."""
        return -(-self.rows_end // 8) * 8

    @property
    def size(self) -> int:
        """Length of the file."""
        return self.index_start + 20 * self.count + 4 * self.blocks + 4


class Segment:
    """A segment opened for reading; nothing is loaded but what is looked at.

    Opening checks the header and index, reading a row checks the block it is in, once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_touched = 0.0
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.layout = layout = Layout.parse(file.read(_HEADER.size), size)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise store_error(path, error) from error
        self._mapped = mapped
        self._bytes = memoryview(mapped)
        n, start = layout.count, layout.index_start
        self.high: NDArray[np.uint64] = np.frombuffer(mapped, "<u8", n, start)
        self.low: NDArray[np.uint64] = np.frombuffer(mapped, "<u8", n, start + 8 * n)
        self.row_of: NDArray[np.uint32] = np.frombuffer(mapped, "<u4", n, start + 16 * n)
        self._checksums = np.frombuffer(mapped, "<u4", layout.blocks, start + 20 * n)
        rows = np.frombuffer(mapped, f"<f{layout.item_bytes}", n * layout.dim, _HEADER.size)
        self.rows: RawRows = rows.reshape(n, layout.dim)
        self._state = np.full(layout.blocks, _UNCHECKED, dtype=np.uint8)
        expected = int.from_bytes(self._bytes[-4:], "little")
        if zlib.crc32(self._bytes[start:-4], zlib.crc32(layout.header)) != expected:
            raise DamagedSegmentError("the index does not have its checksum")

    @property
    def damaged(self) -> bool:
        """Whether any block read so far was not as it was written."""
        return bool((self._state == _BAD).any())

    def find(self, pairs: KeyPairs) -> NDArray[np.int64]:
        """Return the row of each key, or -1."""
        at = np.searchsorted(self.high, pairs[:, 0])
        rows = np.full(len(pairs), -1, dtype=np.int64)
        pending = np.flatnonzero(at < self.layout.count)
        while pending.size:  # goes round again only for keys that share their first half
            pending = pending[self.high[at[pending]] == pairs[pending, 0]]
            hit = self.low[at[pending]] == pairs[pending, 1]
            rows[pending[hit]] = self.row_of[at[pending[hit]]]
            pending = pending[~hit]
            at[pending] += 1
            pending = pending[at[pending] < self.layout.count]
        return rows

    def sound(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which rows are as they were written, checking their blocks where needed."""
        blocks = rows // self.layout.block_rows
        unchecked = np.unique(blocks[self._state[blocks] == _UNCHECKED])
        for block in unchecked.tolist():
            start = _HEADER.size + block * self.layout.block_bytes
            end = min(start + self.layout.block_bytes, self.layout.rows_end)
            intact = zlib.crc32(self._bytes[start:end]) == self._checksums[block]
            self._state[block] = _SOUND if intact else _BAD
        sound: NDArray[np.bool_] = self._state[blocks] == _SOUND
        return sound

    def release(self) -> None:
        """Return the memory that rows read so far take; the system may keep them cached."""
        length = self.layout.rows_end // mmap.PAGESIZE * mmap.PAGESIZE
        if sys.platform != "win32" and length:
            self._mapped.madvise(mmap.MADV_DONTNEED, 0, length)

    def pairs_by_row(self) -> KeyPairs:
        """Return the keys in the order of the rows."""
        pairs = np.empty((self.layout.count, 2), dtype=np.uint64)
        pairs[self.row_of, 0] = self.high
        pairs[self.row_of, 1] = self.low
        return pairs


def write_segment(path: Path, pairs: KeyPairs, layout: Layout, pieces: Iterable[RawRows]) -> None:
    """Write rows, given piece by piece in the order of ``pairs``, as one segment."""
    write_whole(path, _serialise(pairs, layout, pieces))


def _serialise(pairs: KeyPairs, layout: Layout, pieces: Iterable[RawRows]) -> Iterator[bytes]:
    yield layout.header
    checksums: list[int] = []
    waiting = b""  # less than a block: checksums do not depend on how the rows come in pieces
    for piece in pieces:
        waiting += piece.astype(piece.dtype.newbyteorder("<"), copy=False).tobytes()
        whole = len(waiting) - len(waiting) % layout.block_bytes
        checksums += [
            zlib.crc32(waiting[at : at + layout.block_bytes])
            for at in range(0, whole, layout.block_bytes)
        ]
        yield waiting[:whole]
        waiting = waiting[whole:]
    if waiting:
        checksums.append(zlib.crc32(waiting))
    yield waiting + bytes(layout.index_start - layout.rows_end)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    index = pairs[order].astype("<u8")
    tail = index[:, 0].tobytes() + index[:, 1].tobytes() + order.astype("<u4").tobytes()
    tail += np.array(checksums, dtype="<u4").tobytes()
    yield tail
    yield zlib.crc32(tail, zlib.crc32(layout.header)).to_bytes(4, "little")
