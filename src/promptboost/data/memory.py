"""Pictures that are already in memory: PIL images, arrays, bytes of files."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import Picture
from promptboost.data.listing import Listing
from promptboost.data.reading import BadPicture, PictureError, PictureSource, read_picture
from promptboost.data.rows import check_columns, pictures_of_rows, split_of
from promptboost.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["read_frame", "read_pairs"]


def read_pairs(pairs: Iterable[Any]) -> Listing:
    """Take (picture, label) pairs; a picture is a PIL image, an array, bytes or a path.

    Parameters
    ----------
    pairs : iterable of (picture, label) or (picture, label, split)
        An array has shape (height, width) or (height, width, 1, 3 or 4) and holds bytes, or floats
        from 0 to 1.

    Returns
    -------
    Listing
        The pictures, called by their position, and those that cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> picture = read_pairs([(np.zeros((8, 8, 3), dtype=np.uint8), "dark")]).pictures[0]
    >>> picture.id, picture.label, picture.open().size
    ('0', 'dark', (8, 8))
    """
    pictures: list[Picture] = []
    bad: list[BadPicture] = []
    classes: list[str] = []
    for position, pair in enumerate(pairs):
        image, label, split = _parts(pair, position)
        classes.append(label)
        try:
            pictures.append(Picture(str(position), label, _source(image), split))
        except PictureError as error:
            bad.append(BadPicture(str(position), error.bad.reason))
        except TypeError as error:
            raise DataError(f"picture {position}: {error}") from error
    return Listing.of(pictures, bad, classes)


def read_frame(frame: Any) -> Listing:
    """Take a data frame with the columns path or image, label, and perhaps split.

    Parameters
    ----------
    frame : pandas.DataFrame
        Relative paths start from the current folder. A column ``image`` holds PIL images, arrays
        or bytes.

    Returns
    -------
    Listing
        The pictures, and those that cannot be used.
    """
    columns = [str(column).strip().lower() for column in frame.columns]
    cells = [frame.iloc[:, number].tolist() for number in range(len(columns))]
    table = dict(zip(columns, cells, strict=True))
    if "image" in table and "path" not in table:
        check_columns(columns, ["image", "label"], "the data frame")
        splits = table.get("split", [None] * len(frame))
        return read_pairs(zip(table["image"], table["label"], splits, strict=True))
    check_columns(columns, ["path", "label"], "the data frame")
    rows = (
        (f"row {index!r}", dict(zip(columns, row, strict=True)))
        for index, row in zip(frame.index.tolist(), zip(*cells, strict=True), strict=True)
    )
    return pictures_of_rows(rows, Path.cwd())


def _parts(pair: Any, position: int) -> tuple[Any, str, str | None]:
    if isinstance(pair, str | bytes) or not hasattr(pair, "__len__") or len(pair) not in (2, 3):
        raise DataError(f"item {position} is not a pair of a picture and its label")
    image, label, *more = pair
    split = split_of(more[0], f"picture {position}") if more else None
    return image, _label(label, position), split


def _label(label: Any, position: int) -> str:
    if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
        raise DataError(f"the label of picture {position} is {label!r}; it must be a text")
    if not str(label).strip():
        raise DataError(f"the label of picture {position} is blank; give every class a name")
    return str(label).strip()


def _source(image: Any) -> PictureSource:
    from PIL import Image

    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        return Path(image)
    if isinstance(image, Image.Image):
        # Now, not later: a lazily opened image may be closed by then, or shared between threads.
        return read_picture(image)
    if hasattr(image, "__array__"):
        return _from_array(np.asarray(image))
    raise TypeError(f"a {type(image).__name__} is not a PIL image, an array, bytes or a path")


def _from_array(array: NDArray[Any]) -> "Image":
    from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise TypeError(
            f"an array of shape {array.shape} is not a picture: it must be (height, width) or "
            "(height, width, 1, 3 or 4)"
        )
    if array.dtype.kind == "f":
        if not (array.size and array.min() >= 0.0 and array.max() <= 1.0):
            raise TypeError("an array of floats must hold values from 0 to 1; or use uint8")
        array = np.rint(array * 255.0).astype(np.uint8)
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise TypeError(f"an array of {array.dtype} is not a picture: use uint8, or floats 0 to 1")
    return read_picture(Image.fromarray(np.ascontiguousarray(array)))
