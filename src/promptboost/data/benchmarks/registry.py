"""Facts about the eleven benchmarks: what they are called, how large they are, where to get them.

The facts are in ``benchmarks.toml``. Class names and splits are not: they are read from the files that come
with the images.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from types import MappingProxyType

import msgspec

from promptboost.errors import DataError

# Words, and no path: "./dtd" is a folder.
_NAME = re.compile(r"[\w -]+")
_SPLIT_PAGE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of the CoOp protocol: a table of ``benchmarks.toml``."""

    name: str  # what to type
    title: str  # what papers call it
    folders: tuple[str, ...]  # what its folder is called, the protocol's own name first
    images: tuple[str, ...]  # where the images are in that folder; empty for the folder itself
    sizes: Mapping[str, int]  # published number of images of each split
    classes: int
    page: str  # of the project
    template: str = "a photo of a {}."  # the protocol's one prompt for it
    split_file: str | None = None  # None where the layout itself says which images there are
    marks: tuple[str, ...] = ()  # folders by which an image folder is known
    prefix: str = ""  # what the split file writes before the name of a split in its paths
    split_digest: str | None = None  # of what the split file says, where it is known
    advice: str = ""  # what else to know when getting it

    def how_to_get(self) -> list[str]:
        """Return, in words, where the images and the split file come from."""
        place = "/".join(part for part in (self.folders[0], self.images[0]) if part)
        lines = [f"images: {self.page} → {place}"]
        if self.split_file is not None:
            lines.append(f"{self.split_file}: {_SPLIT_PAGE} → {self.folders[0]}")
        return [*lines, self.advice] if self.advice else lines


def _read() -> dict[str, Benchmark]:
    text = (resources.files(__package__) / "benchmarks.toml").read_text(encoding="utf-8")
    listed = msgspec.convert(tomllib.loads(text)["benchmark"], list[Benchmark])
    return {one.name: replace(one, sizes=MappingProxyType(one.sizes)) for one in listed}


#: The eleven benchmarks by the name to type, in the order of the papers' tables.
BENCHMARKS = _read()


def benchmark_named(text: str) -> Benchmark:
    """Find a benchmark by its name, its title or the name of its folder.

    Case, hyphens and underscores do not matter.

    Examples
    --------
    >>> benchmark_named("Oxford-IIIT-Pet").name
    'oxford_pets'
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
