"""ImageNet: one folder for each class below train and val; val is the test split."""

import re

from promptboost.data.benchmarks.places import Place, Shelf
from promptboost.data.benchmarks.split import Item, SplitItems, text_of
from promptboost.data.names import split_name
from promptboost.errors import DataError

__all__ = ["read_imagenet"]

_CLASSES = "classnames.txt"
_WNID = re.compile(r"n\d{8}")
_SPLITS = {"train": "train", "val": "test"}  # the test pictures' own labels were never published


def read_imagenet(place: Place, shelf: Shelf) -> SplitItems:
    """List the pictures of all classes in ``classnames.txt`` that are there, in sorted order.

    A line of it is the number of a class in WordNet and its name: ``n01440764 tench``. Classes with
    equal names are one class for a method that knows them by their names.
    """
    classes = _classes(place)
    numbers = {wnid: number for number, wnid in enumerate(sorted(classes))}
    items: SplitItems = {"train": [], "test": []}
    for path in sorted(shelf.paths):
        top, _, inside = path.partition("/")
        wnid, _, name = inside.partition("/")
        split = _SPLITS.get(split_name(top) or "")
        if split is not None and wnid in classes and name:
            items[split].append(Item(path, numbers[wnid], classes[wnid]))
    if not items["test"]:
        raise DataError(
            "there are no validation pictures in folders of classes like val/n01440764; they come in "
            "one heap: sort them by the official labels first"
        )
    return items


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
