"""Where a benchmark's pictures are: its own layout, torchvision's, or folders of classes."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptboost.data.benchmarks.registry import Benchmark
from promptboost.errors import DataError

__all__ = ["Place", "Shelf", "find_place", "unpacked_first"]

_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".xz", ".bz2")


@dataclass(frozen=True)
class Place:
    """A picture folder and the folders in which its lists may lie.

    Attributes
    ----------
    images : Path
        Where the paths of a split file start.
    own_layout : bool
        Whether it is the protocol's layout; else pictures are looked for by their file names.
    lists : tuple of Path
        Folders to look for split files and class names in, nearest first.
    """

    images: Path
    own_layout: bool
    lists: tuple[Path, ...]

    def list_named(self, name: str) -> Path | None:
        """Find a file that belongs to the benchmark."""
        return next((place / name for place in self.lists if (place / name).is_file()), None)


def find_place(benchmark: Benchmark, folder: Path) -> Place:
    """Find the pictures of a benchmark in its folder, or in the folder that holds all benchmarks.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.data.benchmarks import BENCHMARKS
    >>> with tempfile.TemporaryDirectory() as name:
    ...     (Path(name) / "dtd" / "images").mkdir(parents=True)
    ...     place = find_place(BENCHMARKS["dtd"], Path(name))
    ...     place.images.relative_to(name).as_posix(), place.own_layout
    ('dtd/images', True)
    """
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
    """Give the picture folder and those above it up to where the user pointed, or one above that."""
    above = [images, *images.parents]
    last = above.index(folder) + 1
    return tuple(above[: last + 1])


class Shelf:
    """The files of a picture folder, found by the paths of a split file.

    A path is looked up as it is written. Copies that sort pictures otherwise, like ``train/`` and
    ``test/`` with a folder for each class, keep the file names: there a picture is found by its
    name if no other has it, else by its name and the folder it is in.

    Parameters
    ----------
    place : Place
        Where to look.
    prefix : str, default=""
        What the split file writes before the name of a split's folder.
    """

    def __init__(self, place: Place, prefix: str = "") -> None:
        self._root = place.images
        self._prefix = prefix
        self.paths = set(_files(place.images))

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        # Only where paths are not as written: for a million files this is not free.
        there: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            there.setdefault(path.rpartition("/")[2], []).append(path)
        return there

    def located(self, paths: Iterable[str]) -> dict[str, Path]:
        """Find files by their paths in a split file; those that are not there are left out."""
        paths = list(paths)
        written: dict[str, int] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            written[name] = written.get(name, 0) + 1
        found = {}
        for path in paths:
            there = self._find(path, alone=written[path.rpartition("/")[2]] == 1)
            if there is not None:
                found[path] = self._root / there
        return found

    def _find(self, path: str, *, alone: bool) -> str | None:
        if path in self.paths:
            return path
        folder, _, name = path.rpartition("/")
        there = self._by_name.get(name, [])
        if alone and len(there) == 1:
            return there[0]
        last = folder.rpartition("/")[2]
        if not last:
            return None
        known = {last, last.removeprefix(self._prefix)}
        near = [other for other in there if known & set(other.split("/")[:-1])]
        return near[0] if len(near) == 1 else None


def unpacked_first(benchmark: Benchmark, folder: Path) -> list[str]:
    """Name what was downloaded but is not pictures yet: archives, parquet files, videos.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.data.benchmarks import BENCHMARKS
    >>> with tempfile.TemporaryDirectory() as name:
    ...     _ = (Path(name) / "dtd-r1.0.1.tar.gz").write_bytes(b"")
    ...     unpacked_first(BENCHMARKS["dtd"], Path(name))
    ['dtd-r1.0.1.tar.gz is not unpacked']
    """
    said = []
    parquet = video = None
    for path in _files(folder, depth=3):
        if path.lower().endswith(_ARCHIVES):
            said.append(f"{path} is not unpacked")
        elif path.lower().endswith((".parquet", ".arrow")):
            parquet = parquet or path
        elif path.lower().endswith(".avi"):
            video = video or path
    if parquet:
        said.append(
            f"the pictures are inside files like {parquet}; write each to a file of the name "
            "that is stored with it"
        )
    if video:
        said.append(f"there are videos like {video}, not the pictures of {benchmark.title}")
    return said


def _files(root: Path, depth: int | None = None) -> Iterator[str]:
    """Give the files below a folder as paths from it; links are followed, never in circles."""
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        below = Path(folder).relative_to(root).as_posix()
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if depth is not None and below != "." and below.count("/") + 1 >= depth:
            names.clear()
        names.sort()
        start = "" if below == "." else f"{below}/"
        yield from (f"{start}{name}" for name in sorted(files) if not name.startswith("."))
