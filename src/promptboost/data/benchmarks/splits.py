"""Which images a benchmark has and where they are, from its split file or its own lists."""

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from promptboost.data.benchmarks.registry import Benchmark
from promptboost.data.dataset import split_name
from promptboost.errors import DataError, few
from promptboost.io import check_values, parse_json, read_text

_CLASS_LAST = re.compile(r"_n\d{8}(?=\.\w+$)")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".xz", ".bz2")


@dataclass(frozen=True)
class Place:
    """An image folder and the folders in which its lists may lie."""

    images: Path  # where the paths of a split file start
    own_layout: bool  # the protocol's; else images are looked for by their file names
    lists: tuple[Path, ...]  # nearest first

    def list_named(self, name: str) -> Path | None:
        """Find a file that belongs to the benchmark."""
        return next((place / name for place in self.lists if (place / name).is_file()), None)


def find_place(benchmark: Benchmark, folder: Path) -> Place:
    """Find the images of a benchmark in its folder, or in the folder that holds all benchmarks."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder of {benchmark.title}")
    for base in (folder, *(folder / name for name in benchmark.folders)):
        for sub in benchmark.images:
            images = base / sub
            if images.is_dir() and all((images / mark).is_dir() for mark in benchmark.marks):
                return Place(images, True, _lists(images, folder))
    named = (folder / name for name in benchmark.folders)
    images = next((place for place in named if place.is_dir()), folder)
    return Place(images, False, _lists(images, folder))


def _lists(images: Path, folder: Path) -> tuple[Path, ...]:
    """Return the image folder and those above it up to where the user pointed, or one above that."""
    above = [images, *images.parents]
    last = above.index(folder) + 1
    return tuple(above[: last + 1])


class ImageIndex:
    """The files of an image folder, found by the paths of a split file.

    A path is looked up as it is written. Copies that sort images otherwise, like ``train/`` and
    ``test/`` with a folder for each class, keep the file names: there an image is found by its
    name if no other has it, else by its name and the folder it is in.
    """

    def __init__(self, place: Place, prefix: str = "") -> None:
        self._root = place.images
        self._prefix = prefix
        self.paths = set(_files(place.images))

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        # Only where paths are not as written: for a million files this is not free.
        by_name: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            by_name.setdefault(_file_name(path), []).append(path)
        return by_name

    def located(self, paths: Iterable[str]) -> dict[str, Path]:
        """Find files by their paths in a split file; those that are not there are left out."""
        paths = list(paths)
        places = {path: path for path in paths if path in self.paths}
        if len(places) < len(paths):
            places |= self._searched(paths, set(places))
        return {path: self._root / places[path] for path in paths if path in places}

    def _searched(self, paths: Sequence[str], known: Set[str]) -> dict[str, str]:
        written = Counter(map(_file_name, paths))
        places = {}
        for path in paths:
            if path not in known:
                file = self._find(path, alone=written[_file_name(path)] == 1)
                if file is not None and file not in known:
                    places[path] = file
        # One file cannot be two images: which of them it is would be a guess.
        times = Counter(places.values())
        return {path: file for path, file in places.items() if times[file] == 1}

    def _find(self, path: str, *, alone: bool) -> str | None:
        paths = self._by_name.get(_file_name(path), [])
        if alone and len(paths) == 1:
            return paths[0]
        last = path.rpartition("/")[0].rpartition("/")[2]
        if not last:
            return None
        known = {last, last.removeprefix(self._prefix)}
        near = [other for other in paths if known & set(other.split("/")[:-1])]
        return near[0] if len(near) == 1 else None


def _file_name(path: str) -> str:
    # Hugging Face's copy of ImageNet writes the class at the end of each name once more.
    return _CLASS_LAST.sub("", path.rpartition("/")[2])


def unpacked_first(benchmark: Benchmark, folder: Path) -> list[str]:
    """Name what was downloaded but is not images yet: archives, parquet files, videos."""
    base = next((folder / name for name in benchmark.folders if (folder / name).is_dir()), folder)
    files = list(_files(base, depth=3))
    if base != folder:
        # Beside the folder lies what was downloaded, perhaps for the other benchmarks as well.
        files += _files(folder, depth=0)
    archives = [path for path in files if path.lower().endswith(_ARCHIVES)]
    advice = []
    if archives:
        advice.append(f"{few(archives, 3)} {'is' if len(archives) == 1 else 'are'} not unpacked")
    if parquet := _first_ending(files, (".parquet", ".arrow")):
        advice.append(
            f"the images are inside files like {parquet}; write each to a file of the name "
            "that is stored with it"
        )
    if video := _first_ending(files, (".avi",)):
        advice.append(f"there are videos like {video}, not the images of {benchmark.title}")
    return advice


def _first_ending(paths: Iterable[str], endings: tuple[str, ...]) -> str | None:
    return next((path for path in paths if path.lower().endswith(endings)), None)


def _files(root: Path, depth: int | None = None) -> Iterator[str]:
    """Return the files below a folder as paths from it; links are followed, never in circles."""
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        below = Path(folder).relative_to(root).as_posix()
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if depth is not None and len(Path(below).parts) >= depth:
            names.clear()
        names.sort()
        start = "" if below == "." else f"{below}/"
        yield from (f"{start}{name}" for name in sorted(files) if not name.startswith("."))


class Item(NamedTuple):
    """One image of a split: its path below the image folder, the number and name of its class."""

    path: str
    label: int
    name: str


SplitItems: TypeAlias = dict[str, list[Item]]

_SHAPE = '{"train": [["path", 0, "class"], …], "val": …, "test": …}'


def read_split(path: Path) -> SplitItems:
    """Read a split file, in the order in which it lists images.

    Two shapes are read: lists of ``[path, number, class]``, as the protocol has them, and objects
    ``{path: class}``, in which lists of drawn shots are often released. In the second, classes are
    numbered in order of appearance.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "shots.json"
    ...     _ = file.write_text('{"train": {"a/1.jpg": "cat", "a/2.jpg": "dog"}}')
    ...     read_split(file)
    {'train': [Item(path='a/1.jpg', label=0, name='cat'), Item(path='a/2.jpg', label=1, name='dog')]}
    """
    text = read_text(path, error=DataError)
    try:
        content = parse_json(text)
        check_values(content)
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} is not a split file; it should be {_SHAPE}")
    numbers: dict[str, int] = {}
    items: SplitItems = {}
    for key, listed in content.items():
        split = split_name(key)
        if split is None or split in items:
            raise DataError(f"{path}: {key!r} is not one of train, val and test, once each")
        items[split] = _items(listed, numbers, f"{path}, {key}")
    _check_names(items, path)
    check_apart(items, str(path))
    return items


def check_apart(items: Mapping[str, Sequence[Item]], where: str) -> None:
    """Raise if an image is listed twice: to learn from what is measured on would be a leak."""
    seen: dict[str, str] = {}
    for split, listed in items.items():
        for item in listed:
            if item.path in seen:
                first = seen[item.path]
                twice = f"twice in {split}" if first == split else f"in {first} and in {split}"
                raise DataError(f"{where}: {item.path} is {twice}; an image belongs in one place")
            seen[item.path] = split


def digest(items: Mapping[str, Sequence[Item]]) -> str:
    """Return one word for which images are in which split, as far as it changes a figure.

    The order counts where shots are drawn, not in ``test``. Names of classes do not count: copies
    of a list spell them in their own way.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for split in ("train", "val", "test"):
        paths = [item.path for item in items.get(split, ())]
        hasher.update(
            "\n".join([split, *(sorted(paths) if split == "test" else paths), ""]).encode()
        )
    return hasher.hexdigest()


def _items(listed: Any, numbers: dict[str, int], where: str) -> list[Item]:
    if isinstance(listed, dict):
        rows: list[Any] = [
            [path, numbers.setdefault(name, len(numbers)) if isinstance(name, str) else None, name]
            for path, name in listed.items()
        ]
    elif isinstance(listed, list):
        rows = listed
    else:
        raise DataError(f"{where}: not a list of images; it should be {_SHAPE}")
    return [_item(row, f"{where}, image {number}") for number, row in enumerate(rows, start=1)]


def _item(row: Any, where: str) -> Item:
    match row:
        case [str(path), int(label), str(name)] if not isinstance(label, bool):
            pass
        case _:
            raise DataError(f'{where}: {row!r} is not ["path", number, "class"]')
    path = path.replace("\\", "/")
    # Absolute paths hold on one machine only, and ".." could lead out of the image folder.
    if not name.strip() or not path or path.startswith("/") or ".." in path.split("/"):
        raise DataError(f"{where}: {row!r} needs a path below the image folder and a class name")
    return Item(path, label, name)


def _check_names(items: SplitItems, path: Path) -> None:
    names: dict[int, str] = {}
    for item in (item for listed in items.values() for item in listed):
        if names.setdefault(item.label, item.name) != item.name:
            raise DataError(
                f"{path}: class {item.label} is called {names[item.label]!r} and {item.name!r}"
            )


_CLASSES = "variants.txt"


def read_aircraft(place: Place) -> SplitItems:
    """Read ``variants.txt`` (the classes in order) and ``images_variant_{train,val,test}.txt``.

    A line of the lists is the number of an image and its class: ``1025794 707-320``.
    """
    names = _lines(place, _CLASSES)
    numbers = {name: number for number, name in enumerate(names)}
    items: SplitItems = {"train": [], "val": [], "test": []}
    for split in items:
        file = f"images_variant_{split}.txt"
        for line in _lines(place, file):
            image, _, name = line.partition(" ")
            if name not in numbers:
                raise DataError(
                    f"{file}: {line!r} names no class of {_CLASSES}; download both again"
                )
            items[split].append(Item(f"{image}.jpg", numbers[name], name))
    return items


def _lines(place: Place, name: str) -> list[str]:
    path = place.list_named(name)
    if path is None:
        raise DataError(f"{name} is missing; it comes with the images and lies beside images/")
    return [line.strip() for line in read_text(path, error=DataError).splitlines() if line.strip()]


_CLASS_LIST = "classnames.txt"
_VAL_LABELS = "LOC_val_solution.csv"
_WNID = re.compile(r"n\d{8}")
_LAST_WNID = re.compile(r"_(n\d{8})\.\w+$")
_TOP = re.compile(r"([a-z]+)(_images(_\d+)?)?")  # train, and train_images_0 as archives are called
_SPLITS = {"train": "train", "val": "test"}  # the test images' own labels were never published


def read_imagenet(place: Place, index: ImageIndex) -> SplitItems:
    """List the images of all classes in ``classnames.txt`` that are there, in sorted order.

    A line of it is the number of a class in WordNet and its name: ``n01440764 tench``. Classes with
    equal names are one class for a method that knows them by their names.
    """
    classes = _classes(place)
    numbers = {wnid: number for number, wnid in enumerate(sorted(classes))}
    listed = _val_labels(place)
    items: SplitItems = {"train": [], "test": []}
    for path in sorted(index.paths):
        top, _, inside = path.partition("/")
        split = _split(top)
        wnid = _wnid(inside, listed if split == "test" else {})
        if split is not None and wnid in classes:
            items[split].append(Item(path, numbers[wnid], classes[wnid]))
    if not items["test"]:
        raise DataError(
            "there are no validation images in folders of classes like val/n01440764; where they "
            f"come in one heap, sort them by the official labels, or put {_VAL_LABELS} (Kaggle's "
            "list of them) beside the images' folder"
        )
    return items


def _split(top: str) -> str | None:
    word = _TOP.fullmatch(top.lower())
    return None if word is None else _SPLITS.get(split_name(word[1]) or "")


def _wnid(inside: str, listed: Mapping[str, str]) -> str:
    """Return the class of an image by its path below the folder of its split; empty if not known."""
    folder, _, name = inside.partition("/")
    if name:
        return folder
    named = _LAST_WNID.search(inside)
    return named[1] if named else listed.get(inside.partition(".")[0], "")


def _val_labels(place: Place) -> dict[str, str]:
    """Read the class of each validation image from Kaggle's list, if it is there."""
    path = place.list_named(_VAL_LABELS)
    if path is None:
        return {}
    # ImageId,PredictionString: the latter is the class and a box, for each thing in the image.
    rows = csv.reader(read_text(path, error=DataError).splitlines()[1:])
    return {row[0]: row[1].split(" ")[0] for row in rows if len(row) > 1}


def _classes(place: Place) -> dict[str, str]:
    path = place.list_named(_CLASS_LIST)
    if path is None:
        raise DataError(
            f"{_CLASS_LIST} is missing: the names of the classes are not known without it"
        )
    classes: dict[str, str] = {}
    for number, line in enumerate(read_text(path, error=DataError).splitlines(), start=1):
        wnid, _, name = line.strip().partition(" ")
        if not wnid:
            continue
        if not _WNID.fullmatch(wnid) or not name.strip() or wnid in classes:
            raise DataError(f"{path}, line {number}: {line!r} is not like 'n01440764 tench', once")
        classes[wnid] = name.strip()
    return classes


_SAY_WHERE = "say where it is: --split FILE of data check, {}:DIR@FILE elsewhere"
_OWN_LISTS: dict[str, Callable[[Place, ImageIndex], SplitItems]] = {
    "imagenet": read_imagenet,
    "fgvc_aircraft": lambda place, _: read_aircraft(place),
}


@dataclass(frozen=True)
class Lists:
    """Which images are in which split, and which file says so."""

    items: SplitItems  # in the order of the file
    file: Path | None  # None if the images' own layout says it
    shots: bool = False  # what to learn from was drawn before
    whole: Path | None = None  # where the test images are from, if elsewhere
    foreign: bool = False  # known not to be the protocol's split


def read_lists(
    benchmark: Benchmark, place: Place, index: ImageIndex, split_file: Path | None
) -> Lists:
    """Read which images are in which split.

    A given file without ``test`` is a list of drawn shots: its images are what to learn from, and
    the test images are those of the whole split, which must be there too.
    """
    if split_file is None:
        return _whole(benchmark, place, index, _SAY_WHERE.format(benchmark.name))
    listed = read_split(split_file)
    if "train" not in listed:
        raise DataError(f"{split_file} lists no images to learn from (train)")
    if "test" in listed:
        return Lists(listed, split_file, foreign=_is_foreign(benchmark, listed))
    # Shots are often released beside the split they were drawn from, or in a folder there.
    near = replace(place, lists=(*place.lists, split_file.parent, split_file.parent.parent))
    advice = f"beside {split_file.name}, which lists drawn shots and no test images"
    whole = _whole(benchmark, near, index, advice)
    shots = _of_shots(listed, whole.items, index, str(split_file))
    return Lists(shots, split_file, shots=True, whole=whole.file, foreign=whole.foreign)


def _whole(benchmark: Benchmark, place: Place, index: ImageIndex, advice: str) -> Lists:
    if benchmark.split_file is None:
        return Lists(_OWN_LISTS[benchmark.name](place, index), None)
    file = place.list_named(benchmark.split_file)
    if file is None:
        raise DataError(
            f"{benchmark.split_file} is missing, so which images are for learning and which for "
            f"testing is not known; put it beside the images' folder, or {advice}"
        )
    items = read_split(file)
    absent = [split for split in benchmark.sizes if split not in items]
    if absent:
        raise DataError(f"{file} has no list {', '.join(absent)}; download it again")
    return Lists(items, file, foreign=_is_foreign(benchmark, items))


def _is_foreign(benchmark: Benchmark, items: SplitItems) -> bool:
    return benchmark.split_digest is not None and digest(items) != benchmark.split_digest


def _of_shots(shots: SplitItems, whole: SplitItems, index: ImageIndex, where: str) -> SplitItems:
    """Look each drawn image up in the whole split: released lists spell classes in their own way."""
    everything = [item for listed in whole.values() for item in listed]
    by_path = {item.path: item for item in everything}
    by_file = {file: by_path[path] for path, file in index.located(by_path).items()}
    numbers = {item.name: item.label for item in everything}
    result: SplitItems = {}
    for split, listed in shots.items():
        files = index.located(item.path for item in listed)
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
