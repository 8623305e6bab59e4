"""Which images a benchmark has and where they are, from its split file or its own lists."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import msgspec

from promptboost.data.benchmarks.registry import Benchmark
from promptboost.data.dataset import split_name
from promptboost.errors import DataError
from promptboost.io import read_text


@dataclass(frozen=True)
class BenchmarkFolder:
    """An image folder, whose files are found by the paths of a split file.

    In copies with other folders, an image is found by its name if no other has it, else by its name and
    the folder it is in.
    """

    images: Path  # the root of the paths in a split file
    lists: tuple[Path, ...]  # the folders in which lists may lie, nearest first
    prefix: str = ""  # of split names in the paths of the split file

    @classmethod
    def find(cls, benchmark: Benchmark, folder: Path, split: Path | None = None) -> Self:
        """Find the images of a benchmark in its folder, or in the folder that holds all benchmarks.

        The protocol's lists may also lie near a given `split` file.
        """
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give the folder of {benchmark.title}")
        named = [folder / name for name in benchmark.folders]
        images = next((path for path in named if path.is_dir()), folder)
        for path in (base / sub for base in (folder, *named) for sub in benchmark.images):
            if path.is_dir() and all((path / mark).is_dir() for mark in benchmark.marks):
                images = path
                break
        # Up to where the user pointed, or one above that.
        above = [images, *images.parents]
        near = () if split is None else (split.parent, split.parent.parent)
        return cls(images, (*above[: above.index(folder) + 2], *near), benchmark.prefix)

    def list_named(self, name: str) -> Path | None:
        """Find a file that belongs to the benchmark."""
        return next((path for folder in self.lists if (path := folder / name).is_file()), None)

    @cached_property
    def paths(self) -> set[str]:
        """The files below the folder as paths from it; links are followed, never in circles."""
        paths: set[str] = set()
        seen: set[tuple[int, int]] = set()
        for folder, names, files in os.walk(self.images, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                names.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            names.sort()
            below = Path(folder).relative_to(self.images)
            paths.update((below / name).as_posix() for name in files if not name.startswith("."))
        return paths

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
        return {path: self.images / places[path] for path in paths if path in places}

    def _searched(self, paths: Sequence[str], located: Set[str]) -> dict[str, str]:
        listed = Counter(map(_file_name, paths))
        files = {}
        for path in paths:
            candidates = self._by_name.get(_file_name(path), [])
            if listed[_file_name(path)] > 1 or len(candidates) > 1:
                folder = path.rpartition("/")[0].rpartition("/")[2]
                folders = {folder, folder.removeprefix(self.prefix)} - {""}
                candidates = [file for file in candidates if folders & {*file.split("/")[:-1]}]
            if path not in located and len(candidates) == 1 and candidates[0] not in located:
                files[path] = candidates[0]
        # One file cannot be two images: which of them it is would be a guess.
        times = Counter(files.values())
        return {path: file for path, file in files.items() if times[file] == 1}


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


class Item(NamedTuple):
    """One image of a split: its path below the image folder, the number and name of its class."""

    path: str
    label: int
    name: str


SplitItems: TypeAlias = dict[str, list[Item]]

_SplitFile: TypeAlias = dict[str, list[tuple[str, int, str]] | dict[str, str]]
_SHAPE = '{"train": [["path", 0, "class"], …], "val": …, "test": …}'


def read_split(path: Path) -> SplitItems:
    """Read a split file, in the order in which it lists images.

    Two shapes are read: lists of ``[path, number, class]``, as the protocol has them, and objects
    ``{path: class}``, in which lists of drawn shots are often released. In the second, classes are
    numbered in order of appearance.
    """
    text = read_text(path, error=DataError)
    try:
        content = msgspec.json.decode(text, type=_SplitFile)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path} is not a split file ({error}); it should be {_SHAPE}: download it again"
        ) from error
    if not content:
        raise DataError(f"{path} is not a split file; it should be {_SHAPE}")
    numbers: dict[str, int] = {}
    items: SplitItems = {}
    for key, listed in content.items():
        split = split_name(key)
        if split is None or split in items:
            raise DataError(f"{path}: {key!r} is not one of train, val and test, once each")
        if isinstance(listed, dict):
            listed = [
                (image, numbers.setdefault(name, len(numbers)), name)
                for image, name in listed.items()
            ]
        items[split] = [
            _item(*row, f"{path}, {key}, image {number}")
            for number, row in enumerate(listed, start=1)
        ]
    names: dict[int, str] = {}
    for image in chain.from_iterable(items.values()):
        if (name := names.setdefault(image.label, image.name)) != image.name:
            raise DataError(f"{path}: class {image.label} is called {name!r} and {image.name!r}")
    check_apart(items, str(path))
    return items


def check_apart(items: Mapping[str, Sequence[Item]], where: str) -> None:
    """Raise if an image is listed twice, in one split or in two."""
    seen: dict[str, str] = {}
    for split, listed in items.items():
        for image in listed:
            if image.path in seen:
                first = seen[image.path]
                twice = f"twice in {split}" if first == split else f"in {first} and in {split}"
                raise DataError(f"{where}: {image.path} is {twice}; an image belongs in one place")
            seen[image.path] = split


def digest(items: Mapping[str, Sequence[Item]]) -> str:
    """Hash the images of each split.

    Their order counts where shots are drawn, not in ``test``. Class names do not count: copies of a
    list spell them differently.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for split in ("train", "val", "test"):
        paths = [image.path for image in items.get(split, ())]
        hasher.update(
            "\n".join([split, *(sorted(paths) if split == "test" else paths), ""]).encode()
        )
    return hasher.hexdigest()


def _item(path: str, label: int, name: str, where: str) -> Item:
    path = path.replace("\\", "/")
    # Absolute paths hold on one machine only, and ".." could lead out of the image folder.
    if not name.strip() or not path or path.startswith("/") or ".." in path.split("/"):
        raise DataError(f"{where}: {path!r} needs a path below the image folder and a class name")
    return Item(path, label, name)


_CLASSES = "variants.txt"


def read_aircraft(place: BenchmarkFolder) -> SplitItems:
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


def _lines(place: BenchmarkFolder, name: str) -> list[str]:
    path = place.list_named(name)
    if path is None:
        raise DataError(f"{name} is missing; it comes with the images and belongs next to images/")
    return [line.strip() for line in read_text(path, error=DataError).splitlines() if line.strip()]


_CLASS_LIST = "classnames.txt"
#: A WordNet number.
WNID = re.compile(r"n\d{8}")
# Labels of the official test images were never published.
_IMAGENET_SPLITS = {"train": "train", "val": "test"}


def read_imagenet(place: BenchmarkFolder) -> SplitItems:
    """List the images of all classes in ``classnames.txt`` that are there, in sorted order.

    A line of it is the WordNet number of a class and its name: ``n01440764 tench``. Where two classes
    have one name, the number is added to both: ``missile (n04008634)``.
    """
    classes = imagenet_classes(place)
    numbers = {wnid: number for number, wnid in enumerate(sorted(classes))}
    items: SplitItems = {"train": [], "test": []}
    for path in sorted(place.paths):
        top, _, inside = path.partition("/")
        split, wnid = _IMAGENET_SPLITS.get(split_name(top) or ""), inside.partition("/")[0]
        if split is not None and wnid in classes:
            items[split].append(Item(path, numbers[wnid], classes[wnid]))
    if not items["test"]:
        raise DataError(
            "there are no validation images in class folders such as val/n01440764; if they are all "
            "in one folder, sort them by the official labels"
        )
    return items


def imagenet_classes(place: BenchmarkFolder) -> dict[str, str]:
    """Return the distinct names of the classes in ``classnames.txt``, by their WordNet numbers."""
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
        if not WNID.fullmatch(wnid) or not name.strip() or wnid in classes:
            raise DataError(f"{path}, line {number}: {line!r} is not like 'n01440764 tench', once")
        classes[wnid] = name.strip()
    times = Counter(classes.values())
    return {n: f"{name} ({n})" if times[name] > 1 else name for n, name in classes.items()}


_GIVE_PATH = "give its path: --split FILE of data check, {}:DIR@FILE elsewhere"
_OWN_LISTS = {"imagenet": read_imagenet, "fgvc_aircraft": read_aircraft}


@dataclass(frozen=True)
class Lists:
    """The images of each split, and the file that lists them."""

    items: SplitItems  # in the order of the file
    file: Path | None  # None if the folders are the split
    shots: bool = False  # what to learn from was drawn before
    whole: Path | None = None  # where the test images are from, if elsewhere
    foreign: bool = False  # known not to be the protocol's split


def read_lists(benchmark: Benchmark, place: BenchmarkFolder, split_file: Path | None) -> Lists:
    """Read which images are in which split.

    A given file without ``test`` is a list of drawn shots: its images are what to learn from, and
    the test images are those of the whole split, which must be there too.
    """
    if split_file is None:
        return _whole(benchmark, place, _GIVE_PATH.format(benchmark.name))
    listed = read_split(split_file)
    if "train" not in listed:
        raise DataError(f"{split_file} lists no training images (train)")
    if "test" in listed:
        return Lists(listed, split_file, foreign=_is_foreign(benchmark, listed))
    # Shots are often released next to the split they were drawn from, or in a folder there.
    advice = f"next to {split_file.name}, which lists drawn shots and no test images"
    whole = _whole(benchmark, place, advice)
    shots = _of_shots(listed, whole.items, place, str(split_file))
    return Lists(shots, split_file, shots=True, whole=whole.file, foreign=whole.foreign)


def _whole(benchmark: Benchmark, place: BenchmarkFolder, advice: str) -> Lists:
    if benchmark.split_file is None:
        return Lists(_OWN_LISTS[benchmark.name](place), None)
    file = place.list_named(benchmark.split_file)
    if file is None:
        raise DataError(
            f"{benchmark.split_file} is missing, so the training and test images are unknown; put it "
            f"next to the image folder, or {advice}"
        )
    items = read_split(file)
    absent = [split for split in benchmark.sizes if split not in items]
    if absent:
        raise DataError(f"{file} has no list {', '.join(absent)}; download it again")
    return Lists(items, file, foreign=_is_foreign(benchmark, items))


def _is_foreign(benchmark: Benchmark, items: SplitItems) -> bool:
    return benchmark.split_digest is not None and digest(items) != benchmark.split_digest


def _of_shots(
    shots: SplitItems, whole: SplitItems, place: BenchmarkFolder, where: str
) -> SplitItems:
    """Find drawn images in the whole split: released lists spell classes differently."""
    everything = [*chain.from_iterable(whole.values())]
    by_path = {image.path: image for image in everything}
    by_file = {file: by_path[path] for path, file in place.located(by_path).items()}
    numbers = {image.name: image.label for image in everything}
    result: SplitItems = {}
    for split, listed in shots.items():
        files = place.located(image.path for image in listed)
        result[split] = []
        for image in listed:
            original = by_path.get(image.path) or by_file.get(files.get(image.path, Path()))
            if original is None and image.name not in numbers:
                raise DataError(
                    f"{where}: {image.path} is of no class of this benchmark ({image.name!r})"
                )
            result[split].append(original or Item(image.path, numbers[image.name], image.name))
    result["test"] = whole["test"]
    check_apart(result, where)
    return result
