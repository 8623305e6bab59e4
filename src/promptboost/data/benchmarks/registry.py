"""Names, sizes and download pages of the eleven benchmarks, from ``benchmarks.toml``.

Class names and splits are read from the files that come with the images.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

import msgspec

from promptboost.errors import DataError

# Words, and no path: "./dtd" is a folder.
_NAME = re.compile(r"[\w -]+")


@dataclass(frozen=True)
class Archive:
    """An archive of a benchmark."""

    name: str  # of the file
    into: str  # the folder to unpack it in, below the folder of all benchmarks
    address: str = ""  # empty if there is no public one


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of the CoOp protocol: a table of ``benchmarks.toml``."""

    name: str  # on the command line
    title: str  # in papers
    folders: tuple[str, ...]  # names of its folder, the protocol's first
    images: tuple[str, ...]  # image folders in it; empty for the folder itself
    sizes: Mapping[str, int]  # published number of images of each split
    classes: int
    page: str  # of the project
    template: str = "a photo of a {}."  # of the protocol
    split_file: str | None = None  # None if the folders are the split
    marks: tuple[str, ...] = ()  # folders that an image folder must have
    prefix: str = ""  # of split names in the paths of the split file
    split_digest: str | None = None  # of the official split file, if known
    advice: str = ""  # for the download
    files: Mapping[str, str] = field(default_factory=dict)  # addresses of lists, by file name
    archives: tuple[Archive, ...] = ()

    def how_to_get(self) -> list[str]:
        """Return download instructions, one per line."""
        folder = "/".join(filter(None, (self.folders[0], self.images[0])))
        lines = [f"images: {self.page} → {folder}"]
        files = {archive.name: archive.address for archive in self.archives} | dict(self.files)
        lines += [f"{name}: {url} → {self.folders[0]}" for name, url in files.items() if url]
        return [*lines, self.advice] if self.advice else lines

    @property
    def is_public(self) -> bool:
        """Whether every archive has a public address."""
        return bool(self.archives) and all(archive.address for archive in self.archives)


def _read() -> dict[str, Benchmark]:
    text = (resources.files(__package__) / "benchmarks.toml").read_text(encoding="utf-8")
    listed = msgspec.convert(tomllib.loads(text)["benchmark"], list[Benchmark])
    return {benchmark.name: benchmark for benchmark in listed}


#: The eleven benchmarks by the name to type, in the order of the papers' tables.
BENCHMARKS = _read()


def benchmark_named(text: str) -> Benchmark:
    """Find a benchmark by its name, its title or the name of its folder.

    Case, hyphens and underscores do not matter.
    """
    benchmark = find_benchmark(text)
    if benchmark is None:
        raise DataError(f"there is no benchmark {text!r}; there are: {', '.join(BENCHMARKS)}")
    return benchmark


def find_benchmark(text: str) -> Benchmark | None:
    """Find a benchmark as :func:`benchmark_named` does; None if there is none of that name."""
    if _NAME.fullmatch(text) is None:
        return None
    for benchmark in BENCHMARKS.values():
        if _key(text) in map(_key, (benchmark.name, benchmark.title, *benchmark.folders)):
            return benchmark
    return None


def _key(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())
