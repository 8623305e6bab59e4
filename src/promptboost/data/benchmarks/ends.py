"""Finding pictures that were cut off, by a look at the two ends of each file.

A benchmark may have a million pictures, of which a few thousand are used; decoding them all takes
hours. A file that begins and ends as its format says was written to its end. Only the others are
decoded, as some good ones have more after their end. A fault in the middle of a file is an error
when the picture is used.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from promptboost.data.reading import BadPicture, check_one

__all__ = ["cut_off"]

#: How files of a format begin and end.
_ENDS = (
    (b"\xff\xd8\xff", b"\xff\xd9"),  # JPEG
    (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"),
)
_LONGEST = max(len(end) for ends in _ENDS for end in ends)
# One task a file would cost more than the look at it.
_AT_ONCE = 256


def cut_off(files: Sequence[Path], *, workers: int = 2, progress: bool = False) -> list[BadPicture]:
    """List the pictures that are cut off or are none, in order.

    Parameters
    ----------
    files : sequence of Path
        Where to look.
    workers : int, default=2
        Threads that do so.
    progress : bool, default=False
        Show a progress bar on a terminal.

    Examples
    --------
    >>> for bad in cut_off([Path("nowhere.jpg")]):
    ...     print(bad)
    nowhere.jpg: no such file
    """
    from tqdm import tqdm

    parts = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
    bad: list[BadPicture] = []
    with (
        ThreadPoolExecutor(workers) as threads,
        tqdm(
            total=len(files),
            desc="checking pictures",
            unit=" pictures",
            disable=None if progress else True,
            leave=False,
        ) as bar,
    ):
        for part, found in zip(parts, threads.map(_bad_ones, parts), strict=True):
            bad += found
            bar.update(len(part))
    return bad


def _bad_ones(files: Sequence[Path]) -> list[BadPicture]:
    doubtful = (file for file in files if not _has_both_ends(file))
    checked = (check_one(file, str(file)) for file in doubtful)
    return [bad for bad in checked if bad is not None]


def _has_both_ends(file: Path) -> bool:
    try:
        with file.open("rb", buffering=0) as stream:
            first = stream.read(_LONGEST)
            stream.seek(-min(_LONGEST, len(first)), os.SEEK_END)
            last = stream.read(_LONGEST)
    except OSError:
        return False
    return any(first.startswith(begin) and last.endswith(end) for begin, end in _ENDS)
