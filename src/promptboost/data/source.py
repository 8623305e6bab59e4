"""Where labeled images come from: one word that is typed, parsed once, and one door for the rest."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from promptboost.data.dataset import Dataset, LabeledImage, split_name
from promptboost.data.decode import BadImage, cut_off, reason_for
from promptboost.data.manifest import MANIFEST_ENDINGS, read_manifest
from promptboost.errors import DataError, SettingError, a_type, count
from promptboost.progress import Progress, no_progress, stage
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from promptboost.data.benchmarks.registry import Benchmark

OnBad = Literal["skip", "stop"]

#: What lies beside images without being meant as one. Anything else that is not hidden must be
# readable or is listed: an unknown ending may be 500 images that nobody would miss in silence.
COMPANIONS = {
    *(".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".yaml", ".yml"),
    *(".toml", ".ini", ".db", ".mat", ".npy", ".npz", ".py", ".log", ".pdf"),
}

#: Why a file beside the folders of classes is no image of any.
NO_CLASS = "not in the folder of a class"

_SHOWN = 5


@dataclass(frozen=True)
class DataSource:
    """A source of images as it is typed: a folder, a manifest, ``emoji`` or a benchmark.

    Examples
    --------
    >>> source = DataSource.parse("Oxford-IIIT-Pet:data/pets@lists/split.json")
    >>> str(source), source.benchmark.title, source.split.name
    ('oxford_pets:data/pets@lists/split.json', 'OxfordPets', 'split.json')
    >>> DataSource.parse("holiday/images").benchmark is None
    True
    """

    text: str  # the words that were typed, with a benchmark's usual name
    path: Path | None  # the folder or manifest, or the folder of the benchmark; None for the emoji
    benchmark: "Benchmark | None" = None
    split: Path | None = None  # the split file of a benchmark, where it was named

    @classmethod
    def parse(cls, text: str) -> "DataSource":
        """Understand a folder, a manifest, ``emoji``, ``NAME:FOLDER`` or ``NAME:FOLDER@SPLIT-FILE``.

        Nothing is read. The name of a benchmark may be spelled in any way that
        ``data.benchmarks.benchmark_named`` knows.
        """
        if text == "emoji":
            return cls(text, None)
        name, _, rest = text.partition(":")
        if not rest:
            return cls(text, Path(text))
        from promptboost.data.benchmarks.registry import find_benchmark

        benchmark = find_benchmark(name)
        if benchmark is None:
            return cls(text, Path(text))
        folder, split = Path(rest).expanduser(), None  # a shell does not do so inside a word
        if "@" in rest and not folder.is_dir():
            before, _, after = rest.rpartition("@")
            folder, split = Path(before).expanduser(), Path(after).expanduser()
        return cls._of_benchmark(benchmark, folder, split)

    @classmethod
    def _of_benchmark(
        cls, benchmark: "Benchmark", folder: Path, split: Path | None
    ) -> "DataSource":
        at = "" if split is None else f"@{split}"
        return cls(f"{benchmark.name}:{folder}{at}", folder, benchmark, split)

    def __str__(self) -> str:
        return self.text

    @property
    def is_emoji(self) -> bool:
        """Whether it is the images that come with the package."""
        return self.path is None

    @property
    def folder(self) -> Path | None:
        """The folder that holds the images; None for the emoji, and for what is no folder."""
        return self.path if self.path is not None and self.path.is_dir() else None

    @property
    def lasting(self) -> "DataSource":
        """The same source in words that hold in any folder; a path that is not there stays."""
        if self.path is None:
            return self
        if self.benchmark is not None:
            split = None if self.split is None else self.split.absolute()
            return self._of_benchmark(self.benchmark, self.path.absolute(), split)
        path = self.path.absolute() if self.path.exists() else self.path
        return DataSource(str(path) if self.path.exists() else self.text, path)

    def load(
        self,
        *,
        on_bad: OnBad = "skip",
        check: bool = True,
        workers: int | None = None,
        progress: Progress = no_progress,
    ) -> Dataset:
        """Read the images; see :func:`load_data`."""
        if self.path is None:
            from promptboost.data.emoji import load_emoji

            return load_emoji()
        if self.benchmark is None:
            listing = _read_path(self.path)
            return _usable(listing, on_bad, check=check, workers=workers, progress=progress)
        from promptboost.data.benchmarks.survey import read_benchmark

        listing = read_benchmark(self.benchmark, self.path, self.split)
        bad: list[BadImage] = []
        if check:
            # Most images of a benchmark are never used, and there may be a million.
            files = [image.source for image in listing.images if isinstance(image.source, Path)]
            bad = cut_off(files, workers=workers, progress=progress)
        # Figures on a part of a benchmark would look like those on all of it.
        return without_bad(listing, bad, "stop")


def load_data(
    source: Any,
    *,
    on_bad: OnBad = "skip",
    check: bool = True,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Read labeled images from wherever they are.

    Parameters
    ----------
    source : str, path, DataSource, pandas.DataFrame, sequence of (image, label), or Dataset
        A folder (``class/image.jpg``, perhaps below ``train/``, ``val/`` and ``test/``); a CSV or
        JSON Lines manifest (path, label, perhaps split); a data frame with the same columns; pairs
        in memory; a benchmark as ``"dtd:folder"`` or ``"dtd:folder@split-file"`` (see
        :mod:`promptboost.data.benchmarks`), of which all must be good; or the word ``"emoji"`` for
        the images that come with the package (a folder of that name is ``"./emoji"``).
    on_bad : {"skip", "stop"}, default="skip"
        What to do about files that cannot be used: go on without them (they are listed in the
        dataset's ``bad``), or raise.
    check : bool, default=True
        Decode every image now, on so many `workers` (by default the threads of the process), to find
        the bad ones; without, a bad one is an error later. Of a benchmark only both ends of each file
        are looked at.
    progress : callable, optional
        Called as ``progress(stage, done, total)``; see :class:`~promptboost.progress.ProgressBars`.

    Examples
    --------
    >>> from PIL import Image
    >>> pairs = [(Image.new("RGB", (8, 8), color), color) for color in ("red", "blue")]
    >>> load_data(pairs).class_names
    ('blue', 'red')
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, str):
        source = DataSource.parse(source)
    elif isinstance(source, os.PathLike):
        source = DataSource(os.fspath(source), Path(source))
    if isinstance(source, DataSource):
        return source.load(on_bad=on_bad, check=check, workers=workers, progress=progress)
    listing = _read_memory(source)
    return _usable(listing, on_bad, check=check, workers=workers, progress=progress)


def check_images(
    images: Dataset | Sequence[LabeledImage],
    *,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> list[BadImage]:
    """Decode every image and list those that cannot be used, in order.

    Examples
    --------
    >>> from promptboost.data import LabeledImage
    >>> for bad in check_images([LabeledImage("7", "cat", b"not an image")]):
    ...     print(bad)
    7: not an image of a known kind
    """
    items = images.images if isinstance(images, Dataset) else images
    bad: list[BadImage] = []
    with (
        ThreadPoolExecutor(workers or thread_count()) as threads,
        stage(progress, "checking images", len(items)) as advance,
    ):
        for problem in threads.map(LabeledImage.check, items):
            advance()
            if problem is not None:
                bad.append(problem)
    return bad


def without_bad(listing: Dataset, bad: Sequence[BadImage], on_bad: OnBad) -> Dataset:
    """Make a dataset of the images that can be used; raise if a class has none left."""
    if on_bad not in ("skip", "stop"):
        raise SettingError(f"on_bad is {on_bad!r}, but must be 'skip' or 'stop'")
    every_bad = (*listing.bad, *bad)
    if every_bad and on_bad == "stop":
        raise DataError(f"{count(len(every_bad), 'file')} cannot be used:\n{_listed(every_bad)}")
    unusable = {item.path for item in bad}
    kept = [image for image in listing.images if image.name not in unusable]
    empty = set(listing.class_names) - {image.label for image in kept}
    if empty:
        name = min(empty)
        members = {image.name for image in listing.images if image.label == name}
        lost = [item for item in bad if item.path in members]
        # Of what a reader left out the class is not known: it may be one of these.
        shown = lost or listing.bad
        why = f" that can be used:\n{_listed(shown)}" if shown else "; add some, or remove it"
        raise DataError(f"the class {name!r} has no images{why}")
    return Dataset.of(kept, every_bad)


def _listed(bad: Sequence[BadImage]) -> str:
    lines = [f"  {item}" for item in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  … and {len(bad) - _SHOWN} more")
    return "\n".join(lines)


def _usable(
    listing: Dataset, on_bad: OnBad, *, check: bool, workers: int | None, progress: Progress
) -> Dataset:
    bad = check_images(listing.images, workers=workers, progress=progress) if check else []
    if not listing.class_names:
        raise DataError("there are no images; give at least one for each class")
    return without_bad(listing, bad, on_bad)


def _read_memory(source: Any) -> Dataset:
    from promptboost.data.memory import read_frame, read_pairs

    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return read_frame(source)
    if isinstance(source, Iterable):
        return read_pairs(source)
    raise DataError(
        f"{a_type(source)} is not a source of images; give a folder, a CSV or JSONL "
        "file, a data frame, or (image, label) pairs"
    )


def _read_path(path: Path) -> Dataset:
    if path.is_dir():
        return read_folder(path)
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
    """Raise if a word looks like a benchmark and its name is none."""
    name, colon, rest = text.partition(":")
    folder = Path(rest.partition("@")[0]).expanduser()
    if colon and "/" not in name and "\\" not in name and len(name) > 1 and folder.is_dir():
        from promptboost.data.benchmarks.registry import benchmark_named

        benchmark_named(name)


@dataclass
class _Walk:
    """Files below a folder in sorted order; links are followed, but never in circles."""

    bad: list[BadImage] = field(default_factory=list)

    def files(self, folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
        for entry in self.entries(folder, above):
            if entry.is_dir():
                yield from self.files(entry, (*above, _identity(folder)))
            elif entry.suffix.lower() not in COMPANIONS:
                yield entry

    def entries(self, folder: Path, above: tuple[tuple[int, int], ...] = ()) -> list[Path]:
        try:
            if _identity(folder) in above:
                self.bad.append(BadImage(str(folder), "a link back to a folder above it"))
                return []
            return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self.bad.append(BadImage(str(folder), reason_for(error, folder)))
            return []


def read_folder(root: Path) -> Dataset:
    """List the images of a folder that has one folder for each class.

    If all top folders are called like splits (``train``, ``val``, ``test``), the classes are the
    folders in them. Images may lie at any depth below the folder of their class.
    """
    walk = _Walk()
    images: list[LabeledImage] = []
    classes: dict[str, None] = {}
    for split, top in _tops(root, walk):
        for entry in walk.entries(top):
            if entry.is_dir():
                classes[entry.name] = None
                for path in walk.files(entry, (_identity(top),)):
                    name = path.relative_to(root).as_posix()
                    images.append(LabeledImage(name, entry.name, path, split))
            elif entry.suffix.lower() not in COMPANIONS:
                walk.bad.append(BadImage(str(entry), NO_CLASS))
    if not classes:
        raise DataError(
            f"{root} has no class folders; put images in one folder for each class, "
            "like cat/1.jpg and dog/1.jpg"
        )
    return Dataset.unchecked(images, walk.bad, classes)


def find_images(paths: Iterable[str | Path]) -> Dataset:
    """List images without labels: files as given, and all files below the folders given.

    Examples
    --------
    >>> image = find_images(["holiday/1.jpg"]).images[0]
    >>> image.id, image.label
    ('holiday/1.jpg', '')
    """
    walk = _Walk()
    images: dict[str, LabeledImage] = {}
    for path in map(Path, paths):
        for file in walk.files(path) if path.is_dir() else [path]:
            images.setdefault(file.as_posix(), LabeledImage(file.as_posix(), "", file))
    return Dataset.unchecked(images.values(), walk.bad, ())


def _tops(root: Path, walk: _Walk) -> list[tuple[str | None, Path]]:
    """Return the folders whose entries are classes, each with its split."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    folders = [path for path in walk.entries(root) if path.is_dir()]
    named = [(split, path) for path in folders if (split := split_name(path.name)) is not None]
    # A folder "train" among others may well hold images of trains.
    layered = [pair for pair in named if any(path.is_dir() for path in walk.entries(pair[1]))]
    if layered and len(layered) == len(folders):
        return list(layered)
    if len({split for split, _ in layered}) > 1:
        others = [path.name for path in folders if path not in dict(layered).values()]
        raise DataError(
            f"{root} has folders called like splits beside others ({', '.join(others[:3])}), so "
            "what is a class is not clear; keep train, val and test there, and move the rest away"
        )
    return [(None, root)]


def _identity(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
