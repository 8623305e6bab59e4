"""Images in memory: PIL images, arrays, bytes of files, and the containers of other libraries.

No library is imported: Hugging Face datasets, datasets of torch, tensors and data frames are known by
their methods.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptboost.data.dataset import Dataset, LabeledImage, is_missing
from promptboost.data.decode import BadImage, ImageError, ImageSource, read_image
from promptboost.data.manifest import check_columns, images_of_rows, split_of
from promptboost.errors import (
    DataError,
    EmbeddingError,
    EmbeddingLengthWarning,
    a_type,
    without_content,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_CHANNELS = (1, 3, 4)
# Embeddings of other lengths may be of another model.
_USUAL_LENGTHS = (0.9, 1.1)
_ROUNDING = 1e-6  # of the length of a row in single precision


def read_pairs(pairs: Iterable[Any]) -> Dataset:
    """Read (image, label) pairs; an image is a PIL image, an array, bytes or a path."""
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


def read_container(
    container: Any, image_column: str | None = None, label_column: str | None = None
) -> Dataset:
    """Read pairs, or labeled images in a container of another library."""
    if hasattr(container, "columns") and hasattr(container, "iloc"):
        names = {image_column: "image", label_column: "label"}
        columns = [str(names.get(column, column)).strip().lower() for column in container.columns]
        if "path" in columns and image_column is None:
            return _read_paths(container, columns)
        check_columns(columns, ["image", "label"], "the data frame")
        container = container.set_axis(columns, axis=1)
        image_column, label_column = "image", "label"
    unpacked = unpack(container, image_column, label_column)
    if unpacked is None:
        return read_pairs(container)
    images, labels, splits = unpacked
    if labels is None:
        raise DataError("the images have no labels: call their column label, or name it")
    return read_pairs(zip(images, labels, splits or [None] * len(images), strict=True))


def _read_paths(frame: Any, columns: list[str]) -> Dataset:
    check_columns(columns, ["path", "label"], "the data frame")
    cells = (frame.iloc[:, number].tolist() for number in range(len(columns)))
    rows = zip(frame.index.tolist(), zip(*cells, strict=True), strict=True)
    named = ((f"row {i!r}", dict(zip(columns, row, strict=True))) for i, row in rows)
    return images_of_rows(named, Path.cwd())


def _parts(pair: Any, position: int) -> tuple[Any, str, str | None]:
    if isinstance(pair, str | bytes) or not hasattr(pair, "__len__") or len(pair) not in (2, 3):
        raise DataError(f"item {position} is not a pair of an image and its label")
    image, label, *more = pair
    split = split_of(more[0], f"image {position}") if more else None
    if is_missing(label):
        raise DataError(f"the label of image {position} is missing ({label!r}); give it a class")
    if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
        raise DataError(
            f"the label of image {position} is {without_content(label)}; it must be a text"
        )
    return image, str(label).strip(), split


def _source(image: Any) -> ImageSource:
    from PIL import Image

    if is_record(image):
        image = image["bytes"] or image.get("path")
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
    """Return whether a value is a torch tensor, without importing torch."""
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
    return np.moveaxis(_array_of_tensor(tensor), 0, -1)


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
            raise TypeError(
                "an image of floats must hold values from 0 to 1: give it as it was before it was "
                "normalized, or as uint8"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise TypeError(f"an array of {array.dtype} is not an image: use uint8, or floats 0 to 1")
    return read_image(Image.fromarray(np.ascontiguousarray(array)))


#: Columns of images, by priority: paths, images, bytes of files, or records of bytes and path.
IMAGE_COLUMNS = (
    *("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "content", "path", "file_name"),
)
_LABEL_COLUMNS = ("label", "labels", "cls", "fine_label")


class Unpacked(NamedTuple):
    """Images, with labels and splits where the container has some."""

    images: list[Any]
    labels: list[Any] | None = None
    splits: list[str | None] | None = None


_Reader = Callable[[Any, str | None, str | None], Unpacked]


def unpack(
    container: Any, image_column: str | None = None, label_column: str | None = None
) -> Unpacked | None:
    """Return the images of a container of another library; None for anything else.

    That is a Hugging Face ``Dataset`` or ``DatasetDict``, some of its rows or a slice of them, a dataset of
    torchvision, or a data frame with a column of images. Columns are recognized by their type in a Hugging
    Face dataset, else by name: ``image``, ``path`` and so on, and ``label``.
    """
    reader = _reader(container, image_column)
    return None if reader is None else reader(container, image_column, label_column)


def _reader(container: Any, image_column: str | None) -> _Reader | None:
    if hasattr(container, "cast_column") and hasattr(container, "features"):
        return _hugging_face
    if isinstance(container, Mapping) and not hasattr(container, "ndim"):  # no sparse matrix
        splits = container and all(hasattr(value, "cast_column") for value in container.values())
        return None if is_record(container) else _hugging_face_splits if splits else _columns
    if hasattr(container, "columns") and hasattr(container, "iloc"):
        return _frame if image_column or _has_images(container) else None
    if any(kind.__module__.startswith("torch.utils.data") for kind in type(container).__mro__):
        return _torch
    is_list = hasattr(container, "__getitem__") and not hasattr(container, "ndim")
    first = next(iter(container), None) if is_list and len(container) else None
    return _rows if isinstance(first, Mapping) and not is_record(first) else None


def _has_images(frame: Any) -> bool:
    """Return whether a data frame has a column of images, not of numbers called so."""
    columns = {str(name): i for i, name in enumerate(frame.columns)}
    name = _column(columns, None, IMAGE_COLUMNS, "images")
    return name is not None and getattr(frame.dtypes.iloc[columns[name]], "kind", "O") not in "fiub"


def is_record(value: Any) -> bool:
    """Return whether a value is an image of a Hugging Face dataset that is not decoded."""
    return isinstance(value, Mapping) and "bytes" in value and set(value) <= {"bytes", "path"}


def _column(
    names: Iterable[str], column: str | None, known: Sequence[str], what: str
) -> str | None:
    """Return the name of a column: the given one, which must exist, or one of the known names."""
    names = list(names)
    if column is None:
        return next((name for name in known if name in names), None)
    if column not in names:
        raise DataError(f"there is no column {column!r} of {what}; there is {', '.join(names)}")
    return column


def _columns(
    columns: Mapping[str, Any], image_column: str | None, label_column: str | None
) -> Unpacked:
    image = _column(columns, image_column, IMAGE_COLUMNS, "images")
    image = image or next((name for name in columns if _is_image(columns[name])), None)
    if image is None:
        raise DataError(
            f"no column of images among {', '.join(map(str, columns)) or 'no columns'}: call it image, "
            "or name it with image_column"
        )
    label = _column(columns, label_column, _LABEL_COLUMNS, "labels")
    splits = list(columns["split"]) if "split" in columns else None
    return Unpacked(list(columns[image]), None if label is None else list(columns[label]), splits)


def _is_image(values: Any) -> bool:
    """Return whether a column begins with an image of Pillow or a record of bytes and path."""
    first = next(iter(values), None)
    return is_record(first) or type(first).__module__.startswith("PIL.")


def _frame(frame: Any, image_column: str | None, label_column: str | None) -> Unpacked:
    columns = {str(name): frame.iloc[:, i] for i, name in enumerate(frame.columns)}
    return _columns(columns, image_column, label_column)


def _rows(
    rows: Sequence[Mapping[str, Any]], image_column: str | None, label_column: str | None
) -> Unpacked:
    names = [name for name in next(iter(rows)) if all(name in row for row in rows)]
    columns = {name: [row[name] for row in rows] for name in names}
    return _columns(columns, image_column, label_column)


def _hugging_face(dataset: Any, image_column: str | None, label_column: str | None) -> Unpacked:
    features = dataset.features or dict.fromkeys(next(iter(dataset), {}))
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    image = image_column or next((name for name in kinds if kinds[name] == "Image"), None)
    label = label_column or next((name for name in kinds if kinds[name] == "ClassLabel"), None)
    image = _column(kinds, image, IMAGE_COLUMNS, "images")
    label = _column(kinds, label, _LABEL_COLUMNS, "labels")
    if image is None:
        return _columns(kinds, None, None)  # raises
    dataset = dataset.select_columns([name for name in (image, label) if name is not None])
    if kinds[image] == "Image":
        from datasets import Image

        dataset = dataset.cast_column(image, Image(decode=False))  # bytes, smaller than pixels
    rows = list(dataset)
    labels = None if label is None else [row[label] for row in rows]
    names = getattr(features[label], "names", None) if label is not None else None
    if labels is not None and names is not None:
        labels = [None if number is None else names[number] for number in labels]
    return Unpacked([row[image] for row in rows], labels)


def _hugging_face_splits(
    datasets: Mapping[str, Any], image_column: str | None, label_column: str | None
) -> Unpacked:
    images: list[Any] = []
    labels: list[Any] = []
    splits: list[str | None] = []
    for split, dataset in datasets.items():
        read = _hugging_face(dataset, image_column, label_column)
        images += read.images
        labels += read.labels or [None] * len(read.images)
        splits += [split] * len(read.images)
    return Unpacked(images, labels, splits)


def _torch(dataset: Any, *_: str | None) -> Unpacked:
    pairs = dataset
    if hasattr(dataset, "samples") and getattr(dataset, "transform", None) is None:
        pairs = dataset.samples  # paths, which take no memory
    pairs = list(islice(iter(pairs), len(dataset)))
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise DataError(
            f"the items of {type(dataset).__name__} are not pairs of an image and a label"
        )
    images, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    names = getattr(dataset, "classes", None)
    if names is not None and all(isinstance(label, int) for label in labels):
        labels = [str(names[label]) for label in labels]
    return Unpacked(images, labels)


def holds_images(X: Any) -> bool:
    """Return whether a value is one or many images rather than embeddings.

    Anything with more than two dimensions counts as images; :func:`as_images` checks it.
    """
    if is_single_image(X) or isinstance(X, Dataset) or _reader(X, None) is not None:
        return True
    if getattr(X, "ndim", 1) != 1:  # an array, a tensor, a sparse matrix or a data frame
        return bool(X.ndim > 2)
    if not hasattr(X, "__len__") or len(X) == 0:
        return False
    first = next(iter(X))
    if is_single_image(first) or isinstance(first, LabeledImage):
        return True
    return (isinstance(first, np.ndarray) or _is_tensor(first)) and first.ndim > 1


def is_single_image(value: Any) -> bool:
    """Return whether a value is one image, but not an array."""
    if isinstance(value, str | bytes | os.PathLike) or is_record(value):
        return True
    from PIL.Image import Image

    return isinstance(value, Image)


def as_images(X: Any) -> tuple[LabeledImage, ...]:
    """Convert anything that :func:`holds_images` to images; files are named by their paths.

    One image gives one: a path, a PIL image, bytes, an H × W × 3 array of uint8, a C × H × W tensor.
    """
    if isinstance(X, Dataset):
        return X.images
    images = _as_list(X)
    if images and all(isinstance(image, LabeledImage) for image in images):
        return tuple(images)
    listing = read_pairs((image, "not known") for image in images)
    if listing.bad:
        raise ImageError(listing.bad[0])
    paths = [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]
    if len(paths) < len(images) or len(set(paths)) < len(paths):
        return listing.images
    named = zip(listing.images, paths, strict=True)
    return tuple(replace(image, id=str(path)) for image, path in named)


def _as_list(X: Any) -> list[Any]:
    """List the images one by one."""
    if is_single_image(X):
        return [X]
    if (unpacked := unpack(X)) is not None:
        return unpacked.images
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
    """Convert anything that is not images to a matrix of embeddings of length one.

    Warn if lengths were far from one; raise for embeddings that are all zero or not finite.
    """
    if isinstance(X, list | tuple) and X and _is_tensor(X[0]):
        X = [_array_of_tensor(tensor) for tensor in X]
    try:
        rows = _array_of_tensor(X) if _is_tensor(X) else np.asarray(X)
    except ValueError as error:
        raise EmbeddingError(f"these are neither images nor rows of one length: {error}") from error
    if rows.size == 0 and rows.ndim < 2:
        raise EmbeddingError("there are no images: give at least one")
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
    return unit_embeddings(rows[None] if rows.ndim == 1 else rows)


def unit_embeddings(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """Scale embeddings, (n, D) or (n, V, D), to length one; warn if their lengths are far from it.

    Rows of length one are not changed, to the last digit.

    Examples
    --------
    >>> unit_embeddings(np.array([[0.6, 0.8], [0.63, 0.84]]))
    array([[0.6, 0.8],
           [0.6, 0.8]])
    """
    unit, warning = scale_embeddings(rows)
    if warning is not None:
        warnings.warn(warning, EmbeddingLengthWarning, stacklevel=2)
    return unit


def scale_embeddings(rows: NDArray[np.floating]) -> tuple[NDArray[np.floating], str | None]:
    """Return what :func:`unit_embeddings` returns, and its warning as a text."""
    rows = rows.astype(np.result_type(rows, np.float32), copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows, dtype=np.float64))
    off = ~(np.abs(lengths - 1) <= _ROUNDING)  # of NaN, no comparison holds
    if not off.any():
        return rows, None
    largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
    for bad, problem in ((~np.isfinite(largest), "not finite"), (largest == 0, "all zero")):
        if bad.any():
            first = int(np.argwhere(bad)[0, 0])
            raise EmbeddingError(
                f"{int(bad.sum()):,} of {bad.size:,} embeddings are {problem}, the first is row {first}: "
                "leave these images out or embed them again"
            )
    # Divided by its largest value first, no row has squares that overflow or vanish.
    scaled = rows / largest.astype(np.float64)
    unit = scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)
    unit = np.where(off[..., None], unit, rows).astype(rows.dtype)
    low, high = _USUAL_LENGTHS
    if low <= lengths.min() and lengths.max() <= high:
        return unit, None
    # The same text for all batches, so that Python shows it once.
    return unit, (
        f"the lengths of some embeddings are not between {low} and {high}; they were scaled to one: check "
        "that the encoder of the classifier made them"
    )
