"""Merging segments, so that a store filled a few vectors at a time stays quick to open."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.store.keys import first_positions
from promptboost.encoders.store.segment import Layout, RawRows, Segment, write_segment

__all__ = ["merge_segments", "worth_merging"]

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
