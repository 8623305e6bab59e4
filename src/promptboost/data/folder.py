"""Images in folders: ``class/image.jpg``, perhaps below ``train/``, ``val/`` and ``test/``."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from promptboost.data.dataset import Dataset, LabeledImage, split_name
from promptboost.data.decode import BadImage, reason_for
from promptboost.errors import DataError

#: What lies beside images without being meant as one. Anything else that is not hidden must be
# readable or is listed: an unknown ending may be 500 images that nobody would miss in silence.
COMPANIONS = {
    *(".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".yaml", ".yml"),
    *(".toml", ".ini", ".db", ".mat", ".npy", ".npz", ".py", ".log", ".pdf"),
}

#: Why a file beside the folders of classes is no image of any.
NO_CLASS = "not in the folder of a class"


@dataclass
class _Walk:
    """Files below a folder in sorted order; links are followed, but never in circles."""

    bad: list[BadImage] = field(default_factory=list)

    def files(self, folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
        for entry in self.entries(folder, above):
            if entry.is_dir():
                yield from self.files(entry, (*above, _identity(folder)))
            elif entry.suffix.lower() not in COMPANIONS:
                yield entry

    def entries(self, folder: Path, above: tuple[tuple[int, int], ...] = ()) -> list[Path]:
        try:
            if _identity(folder) in above:
                self.bad.append(BadImage(str(folder), "a link back to a folder above it"))
                return []
            return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self.bad.append(BadImage(str(folder), reason_for(error, folder)))
            return []


def read_folder(root: Path) -> Dataset:
    """List the images of a folder that has one folder for each class.

    If all top folders are called like splits (``train``, ``val``, ``test``), the classes are the
    folders in them. Images may lie at any depth below the folder of their class.
    """
    walk = _Walk()
    images: list[LabeledImage] = []
    classes: dict[str, None] = {}
    for split, top in _tops(root, walk):
        for entry in walk.entries(top):
            if entry.is_dir():
                classes[entry.name] = None
                for path in walk.files(entry, (_identity(top),)):
                    name = path.relative_to(root).as_posix()
                    images.append(LabeledImage(name, entry.name, path, split))
            elif entry.suffix.lower() not in COMPANIONS:
                walk.bad.append(BadImage(str(entry), NO_CLASS))
    if not classes:
        raise DataError(
            f"{root} has no class folders; put images in one folder for each class, "
            "like cat/1.jpg and dog/1.jpg"
        )
    return Dataset.unchecked(images, walk.bad, classes)


def find_images(paths: Iterable[str | Path]) -> Dataset:
    """List images without labels: files as given, and all files below the folders given.

    Examples
    --------
    >>> image = find_images(["holiday/1.jpg"]).images[0]
    >>> image.id, image.label
    ('holiday/1.jpg', '')
    """
    walk = _Walk()
    images: dict[str, LabeledImage] = {}
    for path in map(Path, paths):
        for file in walk.files(path) if path.is_dir() else [path]:
            images.setdefault(file.as_posix(), LabeledImage(file.as_posix(), "", file))
    return Dataset.unchecked(images.values(), walk.bad, ())


def _tops(root: Path, walk: _Walk) -> list[tuple[str | None, Path]]:
    """Return the folders whose entries are classes, each with its split."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    folders = [path for path in walk.entries(root) if path.is_dir()]
    named = [(split, path) for path in folders if (split := split_name(path.name)) is not None]
    # A folder "train" among others may well hold images of trains.
    layered = [pair for pair in named if any(path.is_dir() for path in walk.entries(pair[1]))]
    if layered and len(layered) == len(folders):
        return list(layered)
    if len({split for split, _ in layered}) > 1:
        others = [path.name for path in folders if path not in dict(layered).values()]
        raise DataError(
            f"{root} has folders called like splits beside others ({', '.join(others[:3])}), so "
            "what is a class is not clear; keep train, val and test there, and move the rest away"
        )
    return [(None, root)]


def _identity(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
