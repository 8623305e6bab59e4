"""FGVCAircraft: the split comes with the pictures, as lists of numbers and names."""

from promptboost.data.benchmarks.places import Place
from promptboost.data.benchmarks.split import Item, SplitItems, text_of
from promptboost.errors import DataError

__all__ = ["read_aircraft"]

_CLASSES = "variants.txt"


def read_aircraft(place: Place) -> SplitItems:
    """Read ``variants.txt`` (the classes in order) and ``images_variant_{train,val,test}.txt``.

    A line of the lists is the number of a picture and its class: ``1025794 707-320``.
    """
    names = _lines(place, _CLASSES)
    numbers = {name: number for number, name in enumerate(names)}
    items: SplitItems = {}
    for split in ("train", "val", "test"):
        file = f"images_variant_{split}.txt"
        items[split] = []
        for line in _lines(place, file):
            picture, _, name = line.partition(" ")
            if name not in numbers:
                raise DataError(
                    f"{file}: {line!r} names no class of {_CLASSES}; download both again"
                )
            items[split].append(Item(f"{picture}.jpg", numbers[name], name))
    return items


def _lines(place: Place, name: str) -> list[str]:
    path = place.list_named(name)
    if path is None:
        raise DataError(f"{name} is missing; it comes with the pictures and lies beside images/")
    return [line.strip() for line in text_of(path).splitlines() if line.strip()]
