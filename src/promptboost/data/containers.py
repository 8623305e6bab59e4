"""Images in the containers of other libraries: Hugging Face datasets, torchvision, pandas, rows.

No library is imported: a container is known by its methods.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from promptboost.errors import DataError

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


def is_container(value: Any) -> bool:
    """Return whether :func:`unpack` finds images in a value, without reading them."""
    return _reader(value, None) is not None


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
