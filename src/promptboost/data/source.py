"""One door for every source of images."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.data.dataset import Dataset, Listing
from promptboost.data.decode import BadImage
from promptboost.data.folder import read_folder
from promptboost.data.integrity import OnBad, check_images, without_bad
from promptboost.data.manifest import MANIFEST_ENDINGS, read_manifest
from promptboost.errors import DataError

if TYPE_CHECKING:
    from promptboost.data.benchmarks.survey import BenchmarkSource

__all__ = ["load_data"]


def load_data(
    source: Any,
    *,
    on_bad: OnBad = "skip",
    check: bool = True,
    workers: int = 2,
    progress: bool = True,
) -> Dataset:
    """Read labelled images from wherever they are.

    Parameters
    ----------
    source : str, path, pandas.DataFrame, sequence of (image, label), or Dataset
        A folder (``class/image.jpg``, perhaps below ``train/``, ``val/`` and ``test/``); a CSV or
        JSON Lines manifest (path, label, perhaps split); a data frame with the same columns; pairs
        in memory; a benchmark as ``"dtd:folder"`` or ``"dtd:folder@split-file"`` (see
        :mod:`promptboost.data.benchmarks`), of which all must be good; or the word ``"emoji"`` for
        the images that come with the package (a folder of that name is ``"./emoji"``).
    on_bad : {"skip", "stop"}, default="skip"
        What to do about files that cannot be used: go on without them (they are listed in the
        dataset's ``bad``), or raise.
    check : bool, default=True
        Decode every image now to find the bad ones; without, a bad one is an error later. Of a
        benchmark only the ends of each file are looked at, to find those that are cut off.
    workers : int, default=2
        Threads that decode.
    progress : bool, default=True
        Show a progress bar on a terminal.

    Returns
    -------
    Dataset
        The images that can be used.

    Raises
    ------
    DataError
        If the source cannot be read, a class is left without images, or as asked by ``on_bad``.

    Examples
    --------
    >>> from PIL import Image
    >>> pairs = [(Image.new("RGB", (8, 8), colour), colour) for colour in ("red", "blue")]
    >>> load_data(pairs).class_names
    ('blue', 'red')
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, str) and source == "emoji":
        from promptboost.data.emoji import load_emoji

        return load_emoji()
    if isinstance(source, str):
        from promptboost.data.benchmarks.survey import benchmark_source

        benchmark = benchmark_source(source)
        if benchmark is not None:
            return _load_benchmark(benchmark, check=check, workers=workers, progress=progress)
    listing = _read(source)
    bad: list[BadImage] = []
    if check:
        bad = check_images(listing.images, workers=workers, progress=progress)
    if not listing.classes:
        raise DataError("there are no images; give at least one for each class")
    return without_bad(listing, bad, on_bad)


def _load_benchmark(
    benchmark: "BenchmarkSource", *, check: bool, workers: int, progress: bool
) -> Dataset:
    from promptboost.data.benchmarks.survey import read_benchmark
    from promptboost.data.integrity import cut_off

    listing = read_benchmark(*benchmark)
    bad: list[BadImage] = []
    if check:
        # Most images of a benchmark are never used, and there may be a million.
        files = [image.source for image in listing.images if isinstance(image.source, Path)]
        bad = cut_off(files, workers=workers, progress=progress)
    # Figures on a part of a benchmark would look like those on all of it.
    return without_bad(listing, bad, "stop")


def _read(source: Any) -> Listing:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return read_folder(path) if path.is_dir() else _read_file(path)
    from promptboost.data.memory import read_frame, read_pairs

    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return read_frame(source)
    if isinstance(source, Iterable):
        return read_pairs(source)
    raise DataError(
        f"a {type(source).__name__} is not a source of images; give a folder, a CSV or JSONL "
        "file, a data frame, or (image, label) pairs"
    )


def _read_file(path: Path) -> Listing:
    if not path.exists():
        _check_no_benchmark(str(path))
        raise DataError(
            f"{path} does not exist; give a folder, a CSV or JSONL file, the word emoji, or a "
            "benchmark as NAME:DIR"
        )
    if path.suffix.lower() not in MANIFEST_ENDINGS:
        raise DataError(
            f"{path} is neither a folder nor a manifest ({', '.join(MANIFEST_ENDINGS)})"
        )
    return read_manifest(path)


def _check_no_benchmark(text: str) -> None:
    """Say so if a word looks like a benchmark and its name is none."""
    from promptboost.data.benchmarks.registry import benchmark_named

    name, colon, rest = text.partition(":")
    folder = Path(rest.partition("@")[0]).expanduser()
    if colon and "/" not in name and "\\" not in name and len(name) > 1 and folder.is_dir():
        benchmark_named(name)
