"""Finding images that were cut off, by a look at the two ends of each file.

A benchmark may have a million images, of which a few thousand are used; decoding them all takes
hours. A file that begins and ends as its format says was written to its end. Only the others are
decoded, as some good ones have more after their end. A fault in the middle of a file is an error
when the image is used.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from promptboost.data.dataset import Dataset, LabelledImage, Listing
from promptboost.data.decode import BadImage, check_one
from promptboost.errors import DataError, SettingError

__all__ = ["OnBad", "check_images", "without_bad", "cut_off"]

OnBad = Literal["skip", "stop"]

_SHOWN = 5


def check_images(
    images: "Dataset | Sequence[LabelledImage]", *, workers: int = 2, progress: bool = True
) -> list[BadImage]:
    """Decode every image and list those that cannot be used, in order.

    Parameters
    ----------
    images : Dataset or sequence of LabelledImage
        What to check.
    workers : int, default=2
        Threads that decode.
    progress : bool, default=True
        Show a progress bar on a terminal.

    Examples
    --------
    >>> from promptboost.data import LabelledImage
    >>> for bad in check_images([LabelledImage("7", "cat", b"not an image")]):
    ...     print(bad)
    7: not an image of a known kind
    """
    from tqdm import tqdm

    items = images.images if isinstance(images, Dataset) else images
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(lambda image: check_one(image.source, image.name), items)
        bar = tqdm(
            results,
            total=len(items),
            desc="checking images",
            unit=" images",
            disable=None if progress else True,
            leave=False,
        )
        return [bad for bad in bar if bad is not None]


def without_bad(listing: Listing, bad: Sequence[BadImage], on_bad: OnBad) -> Dataset:
    """Make a dataset of the images that can be used.

    Parameters
    ----------
    listing : Listing
        What the reader found.
    bad : sequence of BadImage
        Those of its images that cannot be used.
    on_bad : {"skip", "stop"}
        Go on without the bad ones, or raise if there are any.

    Raises
    ------
    DataError
        If asked to stop, or if a class is left without images.

    Examples
    --------
    >>> from promptboost.data import LabelledImage
    >>> listing = Listing.of([LabelledImage("1", "cat", b""), LabelledImage("2", "cat", b"...")], [])
    >>> data = without_bad(listing, [BadImage("1", "the file is empty")], "skip")
    >>> [image.id for image in data.images]
    ['2']
    """
    if on_bad not in ("skip", "stop"):
        raise SettingError(f"on_bad is {on_bad!r}, but must be 'skip' or 'stop'")
    every_bad = (*listing.bad, *bad)
    if every_bad and on_bad == "stop":
        raise DataError(f"{_counted(len(every_bad))} cannot be used:\n{_listed(every_bad)}")
    unusable = {item.path for item in bad}
    kept = [image for image in listing.images if image.name not in unusable]
    empty = set(listing.classes) - {image.label for image in kept}
    if empty:
        name = min(empty)
        members = {image.name for image in listing.images if image.label == name}
        lost = [item for item in bad if item.path in members]
        why = f" that can be used:\n{_listed(lost)}" if lost else "; add some, or remove it"
        raise DataError(f"the class {name!r} has no images{why}")
    return Dataset.of(kept, every_bad)


def _listed(bad: Sequence[BadImage]) -> str:
    lines = [f"  {item}" for item in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  … and {len(bad) - _SHOWN} more")
    return "\n".join(lines)


def _counted(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


#: How files of a format begin and end.
_ENDS = (
    (b"\xff\xd8\xff", b"\xff\xd9"),  # JPEG
    (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"),
)
_LONGEST = max(len(end) for ends in _ENDS for end in ends)
# One task a file would cost more than the look at it.
_AT_ONCE = 256


def cut_off(files: Sequence[Path], *, workers: int = 2, progress: bool = False) -> list[BadImage]:
    """List the images that are cut off or are none, in order.

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
    bad: list[BadImage] = []
    with (
        ThreadPoolExecutor(workers) as threads,
        tqdm(
            total=len(files),
            desc="checking images",
            unit=" images",
            disable=None if progress else True,
            leave=False,
        ) as bar,
    ):
        for part, found in zip(parts, threads.map(_bad_ones, parts), strict=True):
            bad += found
            bar.update(len(part))
    return bad


def _bad_ones(files: Sequence[Path]) -> list[BadImage]:
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
