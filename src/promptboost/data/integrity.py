"""Images that cannot be used: found by decoding all, or by a look at both ends of each file.

Decoding is for a user's own images. A benchmark may have a million, of which a few thousand are
used: a file that begins and ends as its format says was written to its end, and only the others
are decoded, as some good ones have more after their end. A fault in the middle of such a file is an
error when the image is used.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from promptboost.data.dataset import Dataset, LabelledImage, Listing
from promptboost.data.decode import BadImage, check_one
from promptboost.errors import DataError, SettingError, count

OnBad = Literal["skip", "stop"]

_SHOWN = 5


def check_images(
    images: "Dataset | Sequence[LabelledImage]", *, workers: int = 2, progress: bool = True
) -> list[BadImage]:
    """Decode every image and list those that cannot be used, in order.

    Examples
    --------
    >>> from promptboost.data import LabelledImage
    >>> for bad in check_images([LabelledImage("7", "cat", b"not an image")]):
    ...     print(bad)
    7: not an image of a known kind
    """
    items = images.images if isinstance(images, Dataset) else images
    bad: list[BadImage] = []
    with ThreadPoolExecutor(workers) as threads, _bar(len(items), progress) as bar:
        for problem in threads.map(LabelledImage.check, items):
            bar.update()
            if problem is not None:
                bad.append(problem)
    return bad


def without_bad(listing: Listing, bad: Sequence[BadImage], on_bad: OnBad) -> Dataset:
    """Make a dataset of the images that can be used; raise DataError if a class has none left.

    ``on_bad="stop"`` raises if any image cannot be used.
    """
    if on_bad not in ("skip", "stop"):
        raise SettingError(f"on_bad is {on_bad!r}, but must be 'skip' or 'stop'")
    every_bad = (*listing.bad, *bad)
    if every_bad and on_bad == "stop":
        raise DataError(f"{count(len(every_bad), 'file')} cannot be used:\n{_listed(every_bad)}")
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


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    hidden = None if progress else True  # None: shown on a terminal only
    return tqdm(total=total, desc="checking images", unit=" images", disable=hidden, leave=False)


#: How files of a format begin and end.
_ENDS = (
    (b"\xff\xd8\xff", b"\xff\xd9"),  # JPEG
    (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"),
)
_LONGEST = max(len(end) for ends in _ENDS for end in ends)
# One task a file would cost more than the look at it.
_AT_ONCE = 256


def cut_off(files: Sequence[Path], *, workers: int = 2, progress: bool = False) -> list[BadImage]:
    """List the images that are cut off or are none, in order."""
    parts = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
    bad: list[BadImage] = []
    with ThreadPoolExecutor(workers) as threads, _bar(len(files), progress) as bar:
        for part, problems in zip(parts, threads.map(_bad_ones, parts), strict=True):
            bad += problems
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
