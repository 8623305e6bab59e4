"""Which pictures a benchmark has: from its split file, its own lists, or a list of drawn shots."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from promptboost.data.benchmarks.aircraft import read_aircraft
from promptboost.data.benchmarks.imagenet import read_imagenet
from promptboost.data.benchmarks.places import Place, Shelf
from promptboost.data.benchmarks.registry import Benchmark
from promptboost.data.benchmarks.split import (
    Item,
    SplitItems,
    check_apart,
    digest,
    read_split,
)
from promptboost.errors import DataError

__all__ = ["Lists", "read_lists"]

_SAY_WHERE = "say where it is: --split FILE of data check, {}:DIR@FILE elsewhere"
_OWN_LISTS: dict[str, Callable[[Place, Shelf], SplitItems]] = {
    "imagenet": read_imagenet,
    "fgvc_aircraft": lambda place, _: read_aircraft(place),
}


@dataclass(frozen=True)
class Lists:
    """What is listed, and where.

    Attributes
    ----------
    items : dict of str to list of Item
        The pictures of each split, in the order of the file.
    file : Path or None
        The file that says so; None if the pictures' own layout does.
    shots : bool
        Whether what to learn from was drawn before, so that published sizes say nothing about it.
    whole : Path or None
        The file that the test pictures are from, where it is another one.
    foreign : bool
        Whether the split is known not to be the protocol's.
    """

    items: SplitItems
    file: Path | None
    shots: bool = False
    whole: Path | None = None
    foreign: bool = False


def read_lists(benchmark: Benchmark, place: Place, shelf: Shelf, given: Path | None) -> Lists:
    """Read which pictures are in which split.

    A given file without ``test`` is a list of drawn shots: its pictures are what to learn from, and
    the test pictures are those of the whole split, which must be there too.

    Raises
    ------
    DataError
        If there is no split file, or something in it is wrong.
    """
    if given is None:
        return _whole(benchmark, place, shelf, _SAY_WHERE.format(benchmark.name))
    listed = read_split(given)
    if "train" not in listed:
        raise DataError(f"{given} lists no pictures to learn from (train)")
    if "test" in listed:
        return Lists(listed, given, foreign=_is_foreign(benchmark, listed))
    # Shots are often released beside the split they were drawn from, or in a folder there.
    near = replace(place, lists=(*place.lists, given.parent, given.parent.parent))
    advice = f"beside {given.name}, which lists drawn shots and no test pictures"
    whole = _whole(benchmark, near, shelf, advice)
    shots = _of_shots(listed, whole.items, shelf, str(given))
    return Lists(shots, given, shots=True, whole=whole.file, foreign=whole.foreign)


def _whole(benchmark: Benchmark, place: Place, shelf: Shelf, advice: str) -> Lists:
    if benchmark.split_file is None:
        return Lists(_OWN_LISTS[benchmark.name](place, shelf), None)
    file = place.list_named(benchmark.split_file)
    if file is None:
        raise DataError(
            f"{benchmark.split_file} is missing, so which pictures are for learning and which for "
            f"testing is not known; put it beside the pictures' folder, or {advice}"
        )
    items = read_split(file)
    absent = [split for split in benchmark.sizes if split not in items]
    if absent:
        raise DataError(f"{file} has no list {', '.join(absent)}; download it again")
    return Lists(items, file, foreign=_is_foreign(benchmark, items))


def _is_foreign(benchmark: Benchmark, items: SplitItems) -> bool:
    return benchmark.split_digest is not None and digest(items) != benchmark.split_digest


def _of_shots(shots: SplitItems, whole: SplitItems, shelf: Shelf, where: str) -> SplitItems:
    """Look each drawn picture up in the whole split: released lists spell classes in their own way."""
    everything = [item for listed in whole.values() for item in listed]
    by_path = {item.path: item for item in everything}
    by_file = {file: by_path[path] for path, file in shelf.located(by_path).items()}
    numbers = {item.name: item.label for item in everything}
    result: SplitItems = {}
    for split, listed in shots.items():
        files = shelf.located(item.path for item in listed)
        result[split] = []
        for item in listed:
            known = by_path.get(item.path) or by_file.get(files.get(item.path, Path()))
            if known is None and item.name not in numbers:
                raise DataError(
                    f"{where}: {item.path} is of no class of this benchmark ({item.name!r})"
                )
            result[split].append(known or Item(item.path, numbers[item.name], item.name))
    result["test"] = whole["test"]
    check_apart(result, where)
    return result
