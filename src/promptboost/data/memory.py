"""Images that are already in memory: PIL images, arrays, bytes of files."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import Dataset, LabeledImage
from promptboost.data.decode import BadImage, ImageError, ImageSource, read_image
from promptboost.data.manifest import check_columns, images_of_rows, split_of
from promptboost.errors import DataError, EmbeddingError, a_type

if TYPE_CHECKING:
    from PIL.Image import Image

_CHANNELS = (1, 3, 4)


def read_pairs(pairs: Iterable[Any]) -> Dataset:
    """Take (image, label) pairs; an image is a PIL image, an array, bytes or a path."""
    images: list[LabeledImage] = []
    bad: list[BadImage] = []
    classes: list[str] = []
    for position, pair in enumerate(pairs):
        image, label, split = _parts(pair, position)
        classes.append(label)
        try:
            images.append(LabeledImage(str(position), label, _source(image), split))
        except ImageError as error:
            bad.append(BadImage(str(position), error.bad.reason))
        except TypeError as error:
            raise DataError(f"image {position}: {error}") from error
    return Dataset.unchecked(images, bad, classes)


def read_frame(frame: Any) -> Dataset:
    """Take a data frame with the columns path or image, label, and perhaps split."""
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
    if _is_tensor(image):
        return _from_array(_pixels_of_tensor(image))
    if hasattr(image, "__array__"):
        return _from_array(np.asarray(image))
    raise TypeError(f"{a_type(image)} is not a PIL image, an array, bytes or a path")


def _is_tensor(value: Any) -> bool:
    """Tell a torch tensor without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def _array_of_tensor(tensor: Any) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16.
    return np.asarray(tensor.float() if tensor.is_floating_point() else tensor)


def _pixels_of_tensor(tensor: Any) -> NDArray[Any]:
    if tensor.ndim != 3 or tensor.shape[0] not in _CHANNELS:
        raise TypeError(
            f"a tensor of shape {tuple(tensor.shape)} is not an image: it must be (channels, height, "
            "width) with 1, 3 or 4 channels"
        )
    pixels = _array_of_tensor(tensor)
    if pixels.dtype.kind == "f" and pixels.size and (pixels.min() < 0.0 or pixels.max() > 1.0):
        raise TypeError(
            "a tensor of floats must hold values from 0 to 1; give it as it was before it was "
            "normalized"
        )
    return np.moveaxis(pixels, 0, -1)


def _from_array(array: NDArray[Any]) -> "Image":
    from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
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
    """Tell images, one or many, from rows of numbers.

    Images are paths, PIL images, bytes of files, arrays of pixels and tensors. What has more than two
    dimensions is taken for images; whether it can be is for :func:`as_images` to check.
    """
    if _is_one(X) or isinstance(X, Dataset):
        return True
    if getattr(X, "ndim", 1) != 1:  # an array, a tensor, a sparse matrix or a data frame
        return bool(X.ndim > 2)
    if not hasattr(X, "__len__") or len(X) == 0:
        return False
    first = next(iter(X))
    if _is_one(first) or isinstance(first, LabeledImage):
        return True
    return (isinstance(first, np.ndarray) or _is_tensor(first)) and first.ndim > 1


def _is_one(value: Any) -> bool:
    """Tell whether a value is one image that is no array."""
    if isinstance(value, str | bytes | os.PathLike):
        return True
    from PIL.Image import Image

    return isinstance(value, Image)


def as_images(X: Any) -> tuple[LabeledImage, ...]:
    """Make images of what :func:`holds_images`; a file is called by its path, if all are files.

    One image gives one: a path, a PIL image, bytes, an H × W × 3 array of uint8, a C × H × W tensor.
    """
    if isinstance(X, Dataset):
        return X.images
    items = _items(X)
    if items and all(isinstance(item, LabeledImage) for item in items):
        return tuple(items)
    listing = read_pairs((item, "not known") for item in items)
    if listing.bad:
        raise ImageError(listing.bad[0])
    paths = [os.fspath(item) for item in items if isinstance(item, str | os.PathLike)]
    if len(paths) < len(items) or len(set(paths)) < len(paths):
        return listing.images
    named = zip(listing.images, paths, strict=True)
    return tuple(replace(image, id=str(path)) for image, path in named)


def _items(X: Any) -> list[Any]:
    """List the images one by one."""
    if _is_one(X):
        return [X]
    if _is_tensor(X):
        return [X] if X.ndim == 3 else list(X)
    if not isinstance(X, np.ndarray) or X.ndim == 1:
        return list(X)
    last_first = f"put the channels last with numpy.moveaxis(images, {X.ndim - 3}, -1)"
    if X.ndim == 3 and X.dtype.kind == "f":
        raise DataError(
            f"an array of floats of shape {X.shape} may be one image or many rows of numbers: for one "
            "image give (255 * image).astype('uint8'), for embeddings an array of shape (n, D)"
        )
    if X.ndim > 4 or X.shape[-1] not in _CHANNELS:
        channels_first = X.ndim in (3, 4) and X.shape[-3] in _CHANNELS
        raise DataError(
            f"an array of shape {X.shape} is neither one image (H, W, 3) nor many (n, H, W, 3): "
            + (last_first if channels_first else "give many grey images as a list of arrays (H, W)")
        )
    return [X] if X.ndim == 3 else list(X)


def as_embeddings(X: Any, dim: int) -> NDArray[np.floating]:
    """Make a matrix of what does not :func:`holds_images`: embeddings, one a row."""
    if isinstance(X, list | tuple) and X and _is_tensor(X[0]):
        X = [_array_of_tensor(item) for item in X]
    try:
        rows = _array_of_tensor(X) if _is_tensor(X) else np.asarray(X)
    except ValueError as error:
        raise EmbeddingError(f"these are neither images nor rows of one length: {error}") from error
    if rows.size == 0 and rows.ndim < 2:
        raise EmbeddingError("there is nothing to look at: give at least one image")
    if rows.ndim not in (1, 2) or rows.dtype.kind != "f":
        what = f"{rows.dtype} of shape {rows.shape}" if rows.ndim else a_type(X)
        raise EmbeddingError(
            f"{what} is neither images nor embeddings: give one grey image as [image], an image in "
            "color as uint8 (H, W, 3), embeddings as floats (n, D)"
        )
    if rows.shape[-1] != dim:
        raise EmbeddingError(
            f"the embeddings have {rows.shape[-1]} numbers each, and the encoder makes {dim}: embed "
            "the images with the encoder of this classifier, or give the images themselves"
        )
    return rows[None] if rows.ndim == 1 else rows
