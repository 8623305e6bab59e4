"""A benchmark as pictures to learn from and to test on, or an error that says what is wrong."""

import shlex
from pathlib import Path
from typing import NamedTuple

from promptboost.data.benchmarks.registry import Benchmark, find_benchmark
from promptboost.data.benchmarks.survey import Survey, survey_benchmark
from promptboost.data.dataset import Picture
from promptboost.data.listing import Listing
from promptboost.errors import DataError

__all__ = ["BenchmarkSource", "benchmark_source", "read_benchmark"]


class BenchmarkSource(NamedTuple):
    """A benchmark and where it is, as typed in one word."""

    benchmark: Benchmark
    folder: Path
    split: Path | None

    def __str__(self) -> str:
        """Write it as it is typed."""
        at = "" if self.split is None else f"@{self.split}"
        return f"{self.benchmark.name}:{self.folder}{at}"

    def absolute(self) -> "BenchmarkSource":
        """Give the same source in words that hold in any folder."""
        split = None if self.split is None else self.split.absolute()
        return self._replace(folder=self.folder.absolute(), split=split)


def benchmark_source(text: str) -> BenchmarkSource | None:
    """Understand ``NAME:FOLDER`` and ``NAME:FOLDER@SPLIT-FILE``; None if it is something else.

    The name may be spelled in any way that :func:`benchmark_named` knows.

    Examples
    --------
    >>> source = benchmark_source("oxford_pets:data/pets@lists/split.json")
    >>> source.benchmark.title, source.folder.name, source.split.name
    ('OxfordPets', 'pets', 'split.json')
    >>> benchmark_source("holiday/pictures") is None
    True
    """
    name, _, rest = text.partition(":")
    benchmark = find_benchmark(name)
    if benchmark is None or not rest:
        return None
    folder = Path(rest).expanduser()  # a shell does not do so in the middle of a word
    if "@" in rest and not folder.is_dir():
        before, _, after = rest.rpartition("@")
        return BenchmarkSource(benchmark, Path(before).expanduser(), Path(after).expanduser())
    return BenchmarkSource(benchmark, folder, None)


def read_benchmark(
    benchmark: Benchmark | str, folder: str | Path, split: str | Path | None = None
) -> Listing:
    """List the pictures of a benchmark in the order of its split file.

    Parameters
    ----------
    benchmark : Benchmark or str
        Which one, or its name.
    folder : str or Path
        Its folder, or the folder that holds all benchmarks.
    split : str or Path, optional
        The split file, if it is not beside the pictures, or a list of drawn shots.

    Returns
    -------
    Listing
        The pictures, each with its split and named by its path in the split file.

    Raises
    ------
    DataError
        If anything is missing or not as published: figures on a part of a benchmark look like
        those on all of it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     read_benchmark("food101", empty)
    Traceback (most recent call last):
        ...
    promptboost.errors.DataError: Food101 in ... cannot be used:
      1. split_zhou_Food101.json is missing, ...
    """
    survey = survey_benchmark(benchmark, folder, split)
    if survey.lists is None or not survey.complete:
        raise DataError(_refusal(survey, split))
    pictures = [
        Picture(item.path, item.name, survey.files[item.path], name)
        for name, listed in survey.lists.items.items()
        for item in listed
    ]
    return Listing.of(pictures, ())


def _refusal(survey: Survey, split: str | Path | None) -> str:
    words = ["promptboost", "data", "check", survey.benchmark.name, str(survey.folder)]
    words += [] if split is None else ["--split", str(split)]
    return "\n".join(
        [
            f"{survey.benchmark.title} in {survey.folder} cannot be used:",
            *(f"  {number}. {text}" for number, text in enumerate(survey.problems, start=1)),
            f"for more, type: {shlex.join(words)}",
        ]
    )
