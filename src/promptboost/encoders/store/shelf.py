"""A shelf: the segments of one encoder, of one dimension and number type."""

import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows
from promptboost.encoders.store.disk import TEMPORARY, make_folder, remove, store_error
from promptboost.encoders.store.segment import (
    DamagedSegmentError,
    KeyPairs,
    Layout,
    RawRows,
    Segment,
    first_positions,
    write_segment,
)

__all__ = ["merge_segments", "worth_merging", "CORRUPT", "SEGMENT", "Dtype", "Shelf"]

_FAN_IN = 8
_ROWS_AT_ONCE = 1 << 13


def worth_merging(segments: Sequence[Segment], largest: int) -> list[Segment]:
    """Choose segments to merge: eight of about the same size, so a row is rewritten rarely.

    The sum of what is chosen is at most ``largest`` bytes. Nothing is chosen when no size class
    has eight segments, so their number stays logarithmic in the number of appends.
    """
    classes: dict[int, list[Segment]] = {}
    for segment in segments:
        size_class = int(math.log(segment.layout.size, _FAN_IN))
        classes.setdefault(size_class, []).append(segment)
    for _, group in sorted(classes.items()):
        if len(group) < _FAN_IN:
            continue
        by_size = sorted(group, key=lambda segment: segment.layout.size)
        total = np.cumsum([segment.layout.size for segment in by_size])
        chosen = by_size[: int(np.searchsorted(total, largest, side="right"))]
        if len(chosen) > 1:
            return sorted(chosen, key=lambda segment: segment.path.name)
    return []


def merge_segments(segments: Sequence[Segment], path: Path) -> None:
    """Write the sound rows of ``segments`` to a new one, without those of equal key but the first.

    Nothing is written when no row is sound. The inputs are left as they are.
    """
    pairs = np.concatenate([segment.pairs_by_row() for segment in segments])
    sound = np.concatenate([s.sound(np.arange(s.layout.count)) for s in segments])
    pairs_of_sound = pairs[sound]
    keep = np.zeros(len(pairs), dtype=np.bool_)
    is_first = first_positions(pairs_of_sound) == np.arange(len(pairs_of_sound))
    keep[np.flatnonzero(sound)[is_first]] = True
    if not keep.any():
        return
    shape = segments[0].layout
    layout = Layout.of(int(keep.sum()), shape.dim, shape.item_bytes)
    write_segment(path, pairs[keep], layout, _kept_rows(segments, keep))
    # As recent as the most recent of its parts, not as the merge.
    used = max((_last_use(segment) for segment in segments), default=0.0)
    with suppress(OSError):
        os.utime(path, (used, used))


def _kept_rows(segments: Sequence[Segment], keep: NDArray[np.bool_]) -> Iterator[RawRows]:
    start = 0
    for segment in segments:
        rows = np.flatnonzero(keep[start : start + segment.layout.count])
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            yield segment.rows[rows[at : at + _ROWS_AT_ONCE]]
        segment.release()
        start += segment.layout.count


def _last_use(segment: Segment) -> float:
    try:
        return segment.path.stat().st_mtime
    except OSError:
        return 0.0


Dtype = Literal["float32", "float16"]
SEGMENT = ".seg"
CORRUPT = ".corrupt"
"""Suffix of a damaged segment set aside: never read again, the first to go when room is needed."""

_READ_AT_ONCE = 1 << 14
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
        for start in range(0, len(rows), _READ_AT_ONCE):
            part = order[start : start + _READ_AT_ONCE]
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
        pieces = (raw[at : at + _READ_AT_ONCE] for at in range(0, len(raw), _READ_AT_ONCE))
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
