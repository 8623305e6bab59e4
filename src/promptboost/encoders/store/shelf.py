"""A shelf: the segments of one encoder, of one dimension and number type."""

import logging
import os
import secrets
import time
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.encoders.store.files import TEMPORARY, make_folder, remove, store_error
from promptboost.encoders.store.keys import KeyPairs
from promptboost.encoders.store.merge import merge_segments, worth_merging
from promptboost.encoders.store.segment import (
    DamagedSegmentError,
    Layout,
    RawRows,
    Segment,
    write_segment,
)

__all__ = ["CORRUPT", "SEGMENT", "Dtype", "Shelf"]

Dtype = Literal["float32", "float16"]
SEGMENT = ".seg"
CORRUPT = ".corrupt"
"""Suffix of a damaged segment set aside: never read again, the first to go when room is needed."""

_ROWS_AT_ONCE = 1 << 14
_FEW_ROWS = 64  # not worth a system call to give their memory back
_TOUCH_SECONDS = 60.0
_BAD_ROWS = "rows do not have their checksum"
_log = logging.getLogger(__name__)


class Shelf:
    """The vectors of one encoder. Methods that write need the store's lock held by the caller."""

    def __init__(self, folder: Path, dim: int, dtype: Dtype) -> None:
        self.folder = folder / f"{dtype}x{dim}"
        self.dim = dim
        self.dtype = np.dtype(dtype)
        self._segments: dict[str, Segment] = {}
        self._refused: set[str] = set()  # damaged, and possibly still there in a read-only folder

    # Reading

    def fill(self, pairs: KeyPairs, wanted: NDArray[np.int64], out: UnitRows) -> NDArray[np.int64]:
        """Put known rows into ``out`` at the positions ``wanted``; give those not known."""
        self._refresh()
        # In the order of the keys a search moves through each index once, front to back.
        missing = wanted[np.argsort(pairs[wanted, 0])]
        for segment in self._segments.values():
            if not missing.size:
                break
            rows = segment.find(pairs[missing])
            found = np.flatnonzero(rows >= 0)
            if found.size:
                sound = self._copy(segment, rows[found], missing[found], out)
                rows[found[~sound]] = -1
                missing = missing[rows < 0]
        return np.sort(missing)

    def decode(self, raw: RawRows) -> UnitRows:
        """Turn rows as stored into rows as returned: the same on every run, the first included."""
        if self.dtype == np.float32:
            return raw.astype(np.float32, copy=False)
        return unit_rows(raw)

    def _copy(
        self, segment: Segment, rows: NDArray[np.int64], to: NDArray[np.int64], out: UnitRows
    ) -> NDArray[np.bool_]:
        sound = np.empty(len(rows), dtype=np.bool_)
        order = np.argsort(rows)  # reads the file front to back
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = order[start : start + _ROWS_AT_ONCE]
            sound[part] = segment.sound(rows[part])
            part = part[sound[part]]
            out[to[part]] = self.decode(segment.rows[rows[part]])
            if len(rows) > _FEW_ROWS:
                segment.release()
        self._touch(segment)
        return sound

    def _touch(self, segment: Segment) -> None:
        """Mark a segment as used, which is what eviction goes by."""
        now = time.time()
        if now - segment.last_touched > _TOUCH_SECONDS:
            segment.last_touched = now
            try:
                os.utime(segment.path)
            except OSError:  # a read-only or evicted segment is still readable here
                _log.debug("could not mark %s as used", segment.path)

    def _refresh(self) -> None:
        """See what other processes have added, merged or removed."""
        for _ in range(10):
            names = self._names()
            self._segments = {n: s for n, s in self._segments.items() if n in names}
            vanished = False
            for name in names:
                if name not in self._segments and name not in self._refused:
                    vanished |= not self._open(name)
            # A file that went between listing and opening was merged into one not yet listed.
            if not vanished:
                break
        self._segments = dict(sorted(self._segments.items()))

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(SEGMENT))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise store_error(self.folder, error) from error

    def _open(self, name: str) -> bool:
        path = self.folder / name
        try:
            segment = Segment(path)
            found = (segment.layout.dim, segment.layout.item_bytes)
            if found != (self.dim, self.dtype.itemsize):
                raise DamagedSegmentError(f"does not hold {self.folder.name} rows")
        except FileNotFoundError:
            return False
        except DamagedSegmentError as damage:
            self._set_aside(path, str(damage))
        else:
            self._segments[name] = segment
        return True

    def _set_aside(self, path: Path, why: str) -> None:
        self._segments.pop(path.name, None)
        self._refused.add(path.name)
        _log.warning("Set aside %s (%s); its vectors are computed again.", path, why)
        try:
            os.replace(path, path.with_name(path.name + CORRUPT))
        except OSError:  # read-only, or another process was first: it is ignored either way
            _log.debug("could not rename %s", path)

    # Writing, under the store's lock

    def prepare(self) -> None:
        """Make the folder, and clear what a killed writer left in it."""
        make_folder(self.folder)
        if not os.access(self.folder, os.W_OK):
            raise store_error(self.folder, PermissionError(13, "Permission denied"))
        for folder in (self.folder, self.folder.parent):
            for path in folder.glob(f"*{TEMPORARY}"):
                remove(path)

    def add(self, pairs: KeyPairs, raw: RawRows) -> None:
        """Store rows as one new segment."""
        make_folder(self.folder)  # another process may have cleared the store
        pieces = (raw[at : at + _ROWS_AT_ONCE] for at in range(0, len(raw), _ROWS_AT_ONCE))
        layout = Layout.of(len(raw), self.dim, raw.dtype.itemsize)
        write_segment(self._new_path(), pairs, layout, pieces)

    def merge(self, largest: int) -> None:
        """Merge small segments if there are many of about the same size."""
        self._refresh()
        group = worth_merging(list(self._segments.values()), largest)
        if not group:
            return
        merge_segments(group, self._new_path())
        for path, damaged in [(segment.path, segment.damaged) for segment in group]:
            if damaged:
                self._set_aside(path, _BAD_ROWS)
            else:
                remove(path)
        self._refresh()

    def check(self) -> tuple[int, list[Path], int]:
        """Check every byte: give the segments seen, the damaged ones, and the rows lost in them."""
        self._refresh()
        seen = len(self._segments) + len(self._refused)
        damaged = [self.folder / name for name in sorted(self._refused)]
        lost = 0
        for segment in self._segments.values():
            bad_rows = int((~segment.sound(np.arange(segment.layout.count))).sum())
            segment.release()
            if bad_rows:
                damaged.append(segment.path)
                lost += bad_rows
        return seen, damaged, lost

    @property
    def damaged(self) -> list[Segment]:
        """Segments in which a damaged block has been met."""
        return [segment for segment in self._segments.values() if segment.damaged]

    def repair(self, segment: Segment) -> None:
        """Set a damaged segment aside, keeping its sound rows in a new one."""
        if segment.path.exists():
            merge_segments([segment], self._new_path())
            self._set_aside(segment.path, _BAD_ROWS)
        self._refresh()

    def _new_path(self) -> Path:
        # Names sort by age, so that among equal keys the oldest row is the one returned.
        return self.folder / f"{time.time_ns():016x}-{secrets.token_hex(4)}{SEGMENT}"
