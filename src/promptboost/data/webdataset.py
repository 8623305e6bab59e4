"""Images in tars of WebDataset: files with one stem and several endings."""

import json
import posixpath
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from promptboost.data.dataset import Dataset, LabeledImage, split_name
from promptboost.data.decode import MAX_BYTES
from promptboost.errors import DataError, human_bytes
from promptboost.io import open_regular, read_text

ARCHIVE = ".tar"
#: A file with the name of each class number, one line each, next to the tars or to their folder.
NAMES_FILE = "classnames.txt"
_LABEL_ENDINGS = ("cls", "txt")
_IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
_MEMBERS = (*_IMAGE_ENDINGS, *_LABEL_ENDINGS, "json")
_MOST_OF_LABEL = 2**20  # bytes


def read_archives(files: Sequence[Path], root: Path) -> Dataset:
    """Read the labeled images of tars below a folder into memory.

    The split of a tar is that of its folder, or the beginning of its name as in ``train-0000.tar``.
    Labels that are numbers are replaced by the lines of ``classnames.txt``, if there is one.
    """
    listed = [folder / NAMES_FILE for folder in (root, root.parent)]
    names_file = next((file for file in listed if file.is_file()), None)
    names = [] if names_file is None else read_text(names_file, error=DataError).splitlines()
    images = []
    for path in files:
        name = path.relative_to(root).as_posix()
        parts = (*Path(name).parts[:-1], path.stem.partition("-")[0])
        split = next(filter(None, map(split_name, parts)), None)
        with open_regular(path) as file:
            for image in archive_images(file, str(path), name):
                if not image.label:
                    raise DataError(
                        f"{image.id} has no label: it needs a file of the same name that ends in .cls, "
                        "or in .json with a field label"
                    )
                label = image.label
                if names and label.isdecimal():
                    if int(label) >= len(names):
                        raise DataError(f"{image.id}: {names_file} has no line for class {label}")
                    label = names[int(label)].strip()
                images.append(LabeledImage(image.id, label, image.source, split))
    return Dataset.unchecked(images, ())


def archive_images(file: Any, path: str, name: str) -> Iterator[LabeledImage]:
    """Read the images of an open tar.

    The label is in the file that ends in ``.cls`` or ``.txt``, or under ``"label"`` in the one that ends
    in ``.json``.
    """
    sample: dict[str, tuple[str, bytes]] = {}
    previous = ""
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                folder, file_name = posixpath.split(member.name)
                stem, _, ending = file_name.partition(".")
                if (key := posixpath.join(folder, stem)) != previous:
                    yield from _image_of_sample(sample, name)
                    sample, previous = {}, key
                ending = ending.lower()
                # A sparse file of a few bytes can be terabytes of zeros.
                if member.issparse() or member.size > MAX_BYTES:
                    size = human_bytes(member.size)
                    raise DataError(f"{path}: {member.name} is too large or sparse: {size}")
                if ending in _MEMBERS and (content := archive.extractfile(member)):
                    most = MAX_BYTES if ending in _IMAGE_ENDINGS else _MOST_OF_LABEL
                    sample[ending] = member.name, content.read(most)
    except tarfile.TarError as error:
        raise DataError(f"{path} is not a readable tar: {error}") from error
    yield from _image_of_sample(sample, name)


def _image_of_sample(sample: Mapping[str, tuple[str, bytes]], name: str) -> Iterator[LabeledImage]:
    pixels = next((sample[ending] for ending in _IMAGE_ENDINGS if ending in sample), None)
    if pixels is None:
        return
    content = next((sample[ending][1] for ending in _LABEL_ENDINGS if ending in sample), b"")
    label = content.decode("utf-8", "replace").strip()
    if not label and "json" in sample:
        with suppress(ValueError, AttributeError, RecursionError):  # not JSON, or no object
            label = str(json.loads(sample["json"][1]).get("label", ""))
    yield LabeledImage(f"{name}/{pixels[0]}", label, pixels[1])
