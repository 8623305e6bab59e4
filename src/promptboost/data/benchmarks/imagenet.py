"""ImageNet: pictures sorted by class below train and val; val is the test split.

Three layouts are in use. The protocol and torchvision have a folder for each class, called by its
number in WordNet. Hugging Face's copy has all pictures of a split in one folder, with that number
at the end of each name. Kaggle's has the folders for ``train``, and one heap and a list for ``val``.
"""

import csv
import re
from collections.abc import Mapping

from promptboost.data.benchmarks.places import Place, Shelf
from promptboost.data.benchmarks.split import Item, SplitItems, text_of
from promptboost.data.names import split_name
from promptboost.errors import DataError

__all__ = ["read_imagenet"]

_CLASSES = "classnames.txt"
_VAL_LABELS = "LOC_val_solution.csv"
_WNID = re.compile(r"n\d{8}")
_LAST_WNID = re.compile(r"_(n\d{8})\.\w+$")
_TOP = re.compile(r"([a-z]+)(_images(_\d+)?)?")  # train, and train_images_0 as archives are called
_SPLITS = {"train": "train", "val": "test"}  # the test pictures' own labels were never published


def read_imagenet(place: Place, shelf: Shelf) -> SplitItems:
    """List the pictures of all classes in ``classnames.txt`` that are there, in sorted order.

    A line of it is the number of a class in WordNet and its name: ``n01440764 tench``. Classes with
    equal names are one class for a method that knows them by their names.
    """
    classes = _classes(place)
    numbers = {wnid: number for number, wnid in enumerate(sorted(classes))}
    listed = _val_labels(place)
    items: SplitItems = {"train": [], "test": []}
    for path in sorted(shelf.paths):
        top, _, inside = path.partition("/")
        split = _split(top)
        wnid = _wnid(inside, listed if split == "test" else {})
        if split is not None and wnid in classes:
            items[split].append(Item(path, numbers[wnid], classes[wnid]))
    if not items["test"]:
        raise DataError(
            "there are no validation pictures in folders of classes like val/n01440764; where they "
            f"come in one heap, sort them by the official labels, or put {_VAL_LABELS} (Kaggle's "
            "list of them) beside the pictures' folder"
        )
    return items


def _split(top: str) -> str | None:
    word = _TOP.fullmatch(top.lower())
    return None if word is None else _SPLITS.get(split_name(word[1]) or "")


def _wnid(inside: str, listed: Mapping[str, str]) -> str:
    """Give the class of a picture by its path below the folder of its split; empty if not known."""
    folder, _, name = inside.partition("/")
    if name:
        return folder
    named = _LAST_WNID.search(inside)
    return named[1] if named else listed.get(inside.partition(".")[0], "")


def _val_labels(place: Place) -> dict[str, str]:
    """Read the class of each validation picture from Kaggle's list, if it is there."""
    path = place.list_named(_VAL_LABELS)
    if path is None:
        return {}
    # ImageId,PredictionString: the latter is the class and a box, for each thing in the picture.
    rows = csv.reader(text_of(path).splitlines()[1:])
    return {row[0]: row[1].split(" ")[0] for row in rows if len(row) > 1}


def _classes(place: Place) -> dict[str, str]:
    path = place.list_named(_CLASSES)
    if path is None:
        raise DataError(f"{_CLASSES} is missing: the names of the classes are not known without it")
    classes: dict[str, str] = {}
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        wnid, _, name = line.strip().partition(" ")
        if not wnid:
            continue
        if not _WNID.fullmatch(wnid) or not name.strip() or wnid in classes:
            raise DataError(f"{path}, line {number}: {line!r} is not like 'n01440764 tench', once")
        classes[wnid] = name.strip()
    return classes
