"""Images that are already in memory: PIL images, arrays, bytes of files."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import LabelledImage, Listing
from promptboost.data.decode import BadImage, ImageError, ImageSource, read_image
from promptboost.data.manifest import check_columns, images_of_rows, split_of
from promptboost.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["read_frame", "read_pairs", "as_images", "holds_images", "is_one_image"]


def read_pairs(pairs: Iterable[Any]) -> Listing:
    """Take (image, label) pairs; an image is a PIL image, an array, bytes or a path.

    Parameters
    ----------
    pairs : iterable of (image, label) or (image, label, split)
        An array has shape (height, width) or (height, width, 1, 3 or 4) and holds bytes, or floats
        from 0 to 1.

    Returns
    -------
    Listing
        The images, called by their position, and those that cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> image = read_pairs([(np.zeros((8, 8, 3), dtype=np.uint8), "dark")]).images[0]
    >>> image.id, image.label, image.open().size
    ('0', 'dark', (8, 8))
    """
    images: list[LabelledImage] = []
    bad: list[BadImage] = []
    classes: list[str] = []
    for position, pair in enumerate(pairs):
        image, label, split = _parts(pair, position)
        classes.append(label)
        try:
            images.append(LabelledImage(str(position), label, _source(image), split))
        except ImageError as error:
            bad.append(BadImage(str(position), error.bad.reason))
        except TypeError as error:
            raise DataError(f"image {position}: {error}") from error
    return Listing.of(images, bad, classes)


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
        The images, and those that cannot be used.
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
    return images_of_rows(rows, Path.cwd())


def _parts(pair: Any, position: int) -> tuple[Any, str, str | None]:
    if isinstance(pair, str | bytes) or not hasattr(pair, "__len__") or len(pair) not in (2, 3):
        raise DataError(f"item {position} is not a pair of an image and its label")
    image, label, *more = pair
    split = split_of(more[0], f"image {position}") if more else None
    return image, _label(label, position), split


def _label(label: Any, position: int) -> str:
    if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
        raise DataError(f"the label of image {position} is {label!r}; it must be a text")
    if not str(label).strip():
        raise DataError(f"the label of image {position} is blank; give every class a name")
    return str(label).strip()


def _source(image: Any) -> ImageSource:
    from PIL import Image

    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        return Path(image)
    if isinstance(image, Image.Image):
        # Now, not later: a lazily opened image may be closed by then, or shared between threads.
        return read_image(image)
    if hasattr(image, "__array__"):
        return _from_array(np.asarray(image))
    raise TypeError(f"a {type(image).__name__} is not a PIL image, an array, bytes or a path")


def _from_array(array: NDArray[Any]) -> "Image":
    from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise TypeError(
            f"an array of shape {array.shape} is not an image: it must be (height, width) or "
            "(height, width, 1, 3 or 4)"
        )
    if array.dtype.kind == "f":
        if not (array.size and array.min() >= 0.0 and array.max() <= 1.0):
            raise TypeError("an array of floats must hold values from 0 to 1; or use uint8")
        array = np.rint(array * 255.0).astype(np.uint8)
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise TypeError(f"an array of {array.dtype} is not an image: use uint8, or floats 0 to 1")
    return read_image(Image.fromarray(np.ascontiguousarray(array)))


def holds_images(X: Any) -> bool:
    """Tell images (paths, PIL images, arrays of pixels, bytes of files) from rows of numbers.

    Examples
    --------
    >>> holds_images(["a.jpg", "b.jpg"]), holds_images([[0.6, 0.8], [0.0, 1.0]])
    (True, False)
    """
    if getattr(X, "ndim", 1) != 1:  # an array, a sparse matrix or a data frame
        return bool(X.ndim > 2)
    if isinstance(X, str | bytes) or not hasattr(X, "__len__") or len(X) == 0:
        return False
    from PIL.Image import Image

    first = next(iter(X))
    if isinstance(first, str | bytes | os.PathLike | Image):
        return True
    return isinstance(first, np.ndarray) and first.ndim > 1


def is_one_image(X: Any) -> bool:
    """Tell one image, such as a path or an array of shape (height, width, 3), from several.

    Examples
    --------
    >>> is_one_image("a.jpg"), is_one_image(["a.jpg"]), is_one_image(np.zeros((8, 8, 3)))
    (True, False, True)
    """
    if isinstance(X, str | bytes | os.PathLike):
        return True
    if isinstance(X, np.ndarray):
        return X.ndim == 3 and X.shape[2] in (1, 3, 4)
    from PIL.Image import Image

    return isinstance(X, Image)


def as_images(X: Sequence[Any]) -> tuple[LabelledImage, ...]:
    """Make images of what :func:`holds_images`; a file is called by its path, if all are files.

    Examples
    --------
    >>> [image.id for image in as_images(["a.jpg", "b.jpg"])]
    ['a.jpg', 'b.jpg']
    """
    items = list(X)
    listing = read_pairs((item, "not known") for item in items)
    if listing.bad:
        raise ImageError(listing.bad[0])
    paths = [os.fspath(item) for item in items if isinstance(item, str | os.PathLike)]
    if len(paths) < len(items) or len(set(paths)) < len(paths):
        return listing.images
    named = zip(listing.images, paths, strict=True)
    return tuple(replace(image, id=str(path)) for image, path in named)
