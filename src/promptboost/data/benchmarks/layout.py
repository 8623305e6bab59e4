"""Where a benchmark's images are: the protocol's layout, torchvision's, or folders of classes."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptboost.data.benchmarks.registry import Benchmark
from promptboost.errors import DataError, few

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
