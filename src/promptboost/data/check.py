"""Finding the bad pictures before the work starts."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from promptboost.data.dataset import Dataset, Picture
from promptboost.data.listing import Listing
from promptboost.data.reading import BadPicture, check_one
from promptboost.errors import DataError, SettingError

__all__ = ["OnBad", "check_pictures", "without_bad"]

OnBad = Literal["skip", "stop"]

_SHOWN = 5


def check_pictures(
    pictures: "Dataset | Sequence[Picture]", *, workers: int = 2, progress: bool = True
) -> list[BadPicture]:
    """Decode every picture and list those that cannot be used, in order.

    Parameters
    ----------
    pictures : Dataset or sequence of Picture
        What to check.
    workers : int, default=2
        Threads that decode.
    progress : bool, default=True
        Show a progress bar on a terminal.

    Examples
    --------
    >>> from promptboost.data import Picture
    >>> for bad in check_pictures([Picture("7", "cat", b"not a picture")]):
    ...     print(bad)
    7: not a picture of a known kind
    """
    from tqdm import tqdm

    items = pictures.pictures if isinstance(pictures, Dataset) else pictures
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(lambda picture: check_one(picture.source, picture.name), items)
        bar = tqdm(
            results,
            total=len(items),
            desc="checking pictures",
            unit=" pictures",
            disable=None if progress else True,
            leave=False,
        )
        return [bad for bad in bar if bad is not None]


def without_bad(listing: Listing, bad: Sequence[BadPicture], on_bad: OnBad) -> Dataset:
    """Make a dataset of the pictures that can be used.

    Parameters
    ----------
    listing : Listing
        What the reader found.
    bad : sequence of BadPicture
        Those of its pictures that cannot be used.
    on_bad : {"skip", "stop"}
        Go on without the bad ones, or raise if there are any.

    Raises
    ------
    DataError
        If asked to stop, or if a class is left without pictures.

    Examples
    --------
    >>> from promptboost.data import Picture
    >>> listing = Listing.of([Picture("1", "cat", b""), Picture("2", "cat", b"...")], [])
    >>> data = without_bad(listing, [BadPicture("1", "the file is empty")], "skip")
    >>> [picture.id for picture in data.pictures]
    ['2']
    """
    if on_bad not in ("skip", "stop"):
        raise SettingError(f"on_bad is {on_bad!r}, but must be 'skip' or 'stop'")
    every_bad = (*listing.bad, *bad)
    if every_bad and on_bad == "stop":
        raise DataError(f"{_counted(len(every_bad))} cannot be used:\n{_listed(every_bad)}")
    unusable = {item.path for item in bad}
    kept = [picture for picture in listing.pictures if picture.name not in unusable]
    empty = set(listing.classes) - {picture.label for picture in kept}
    if empty:
        name = min(empty)
        members = {picture.name for picture in listing.pictures if picture.label == name}
        lost = [item for item in bad if item.path in members]
        why = f" that can be used:\n{_listed(lost)}" if lost else "; add some, or remove it"
        raise DataError(f"the class {name!r} has no pictures{why}")
    return Dataset.of(kept, every_bad)


def _listed(bad: Sequence[BadPicture]) -> str:
    lines = [f"  {item}" for item in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  … and {len(bad) - _SHOWN} more")
    return "\n".join(lines)


def _counted(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"
