"""Sources of labeled images: folders, manifests, benchmarks, data frames and pairs."""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from promptboost.config import OnBad
from promptboost.data.dataset import Dataset, LabeledImage, check_images, split_name
from promptboost.data.decode import BadImage, reason_for
from promptboost.data.manifest import MANIFEST_ENDINGS, images_of_rows, manifest_rows, read_manifest
from promptboost.data.webdataset import ARCHIVE, read_archives
from promptboost.errors import DataError, SettingError, a_type, count
from promptboost.io import read_text, write_bytes, write_text
from promptboost.progress import Progress, no_progress

if TYPE_CHECKING:
    from promptboost.data.benchmarks.registry import Benchmark

#: Endings of files in image folders that are ignored. Any other file that is not hidden must be readable
# or is reported: an unknown ending may be that of 500 images.
COMPANIONS = {
    *(".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".yaml", ".yml"),
    *(".toml", ".ini", ".db", ".mat", ".npy", ".npz", ".py", ".log", ".pdf"),
}

#: Reason for a file next to the class folders.
NO_CLASS = "not in the folder of a class"

_SHOWN = 5
# Columns at the end of the name of a manifest, and what they are called in it.
_COLUMNS = re.compile(r"\?((?:(?:image|label)=[^&?]*&?)+)$")
_TARGETS = {"image": "path", "label": "label"}


@dataclass(frozen=True)
class DataSource:
    """A source of images on the command line: a folder, a manifest, ``emoji`` or a benchmark."""

    text: str  # as given, with a benchmark's canonical name
    path: Path | None  # the folder or manifest, or the folder of the benchmark; None for the emoji
    benchmark: "Benchmark | None" = None
    split: Path | None = None  # the split file of a benchmark, if given
    columns: tuple[tuple[str, str], ...] = ()  # of a manifest: other names of path and label

    @classmethod
    def parse(cls, text: str) -> "DataSource":
        """Parse a folder, a manifest, ``emoji``, ``NAME:FOLDER`` or ``NAME:FOLDER@SPLIT-FILE``.

        The columns of a manifest may follow, as in ``list.csv?image=photo&label=breed``.
        Nothing is read. For the spelling of benchmarks see ``data.benchmarks.benchmark_named``.
        """
        if text == "emoji":
            return cls(text, None)
        if query := _COLUMNS.search(text):
            columns = tuple((name.lower(), _TARGETS[kind]) for kind, name in parse_qsl(query[1]))
            return cls(text, Path(text[: query.start()]), columns=columns)
        name, _, location = text.partition(":")
        if not location:
            return cls(text, Path(text))
        from promptboost.data.benchmarks.registry import find_benchmark

        benchmark = find_benchmark(name)
        if benchmark is None:
            return cls(text, Path(text))
        folder, split = Path(location).expanduser(), None  # a shell does not do so inside a word
        if "@" in location and not folder.is_dir():
            root, _, file = location.rpartition("@")
            folder, split = Path(root).expanduser(), Path(file).expanduser()
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
        """Whether it is the emoji dataset."""
        return self.path is None

    @property
    def folder(self) -> Path | None:
        """The folder of the images; None for the emoji and for manifests."""
        return self.path if self.path is not None and self.path.is_dir() else None

    @property
    def lasting(self) -> "DataSource":
        """The same source with absolute paths; a missing path is left as it is."""
        if self.path is None:
            return self
        if self.benchmark is not None:
            split = None if self.split is None else self.split.absolute()
            return self._of_benchmark(self.benchmark, self.path.absolute(), split)
        if not self.path.exists():
            return self
        path, query = self.path.absolute(), _COLUMNS.search(self.text)
        return replace(self, text=f"{path}{query[0] if query else ''}", path=path)

    def load(
        self, *, on_bad: OnBad = "skip", check: bool = True, progress: Progress = no_progress
    ) -> Dataset:
        """Read the images; see :func:`load_data`."""
        if self.path is None:
            from promptboost.data.emoji import load_emoji

            return load_emoji()
        if self.benchmark is None:
            listing = _read_path(self.path, dict(self.columns))
            return _usable(listing, on_bad, check=check, progress=progress)
        from promptboost.data.benchmarks.survey import read_benchmark

        # Not decoded here: most images of a benchmark are never used, and there may be a million.
        return read_benchmark(self.benchmark, self.path, self.split)


def load_data(
    source: Any,
    *,
    on_bad: OnBad = "skip",
    check: bool = True,
    progress: Progress = no_progress,
    image_column: str | None = None,
    label_column: str | None = None,
) -> Dataset:
    """Read labeled images.

    Parameters
    ----------
    source : str, path, DataSource, container, sequence of (image, label), or Dataset
        A folder (``class/image.jpg``, perhaps below ``train/``, ``val/`` and ``test/``, or with a
        ``metadata.csv``); a CSV or JSON Lines manifest (path, label, perhaps split); a tar of WebDataset
        or a folder of them; a data frame, a Hugging Face dataset or rows of it, a dataset of torchvision;
        pairs in memory; a benchmark as ``"dtd:folder"`` or ``"dtd:folder@split-file"`` (see
        :mod:`promptboost.data.benchmarks`), of which all must be good; or the word ``"emoji"`` for
        the images that come with the package (a folder of that name is ``"./emoji"``).
    on_bad : {"skip", "stop"}, default="skip"
        What to do about files that cannot be used: leave them out (they are listed in the dataset's
        ``bad``), or raise.
    check : bool, default=True
        Decode every image now to find the bad ones; without, and in benchmarks, a bad one is an
        error later.
    progress : callable, optional
        Called as ``progress(stage, done, total)``; see :class:`~promptboost.progress.ProgressBars`.
    image_column, label_column : str, optional
        Names of the columns of a manifest, data frame or dataset, if they are not the usual ones.

    Examples
    --------
    >>> from PIL import Image
    >>> pairs = [(Image.new("RGB", (8, 8), color), color) for color in ("red", "blue")]
    >>> load_data(pairs).class_names
    ('blue', 'red')
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, os.PathLike):
        source = DataSource(os.fspath(source), Path(source))
    if isinstance(source, str | DataSource):
        parsed = DataSource.parse(with_columns(str(source), image_column, label_column))
        return parsed.load(on_bad=on_bad, check=check, progress=progress)
    if not (isinstance(source, Iterable) or hasattr(source, "__getitem__")):
        raise DataError(
            f"{a_type(source)} is not a source of images; give a folder, a CSV or JSONL file, a data "
            "frame, a dataset, or (image, label) pairs"
        )
    from promptboost.data.memory import read_container

    listing = read_container(source, image_column, label_column)
    return _usable(listing, on_bad, check=check, progress=progress)


def with_columns(source: str, image_column: str | None, label_column: str | None) -> str:
    """Return a source whose columns of images and labels have these names.

    Examples
    --------
    >>> with_columns("list.csv", None, "breed")
    'list.csv?label=breed'
    """
    names = {"image": image_column, "label": label_column}
    query = urlencode({kind: name for kind, name in names.items() if name is not None})
    return f"{source}?{query}" if query else source


def without_bad(listing: Dataset, bad: Sequence[BadImage], on_bad: OnBad) -> Dataset:
    """Make a dataset of the images that can be used; raise if a class has none left of some."""
    if on_bad not in ("skip", "stop"):
        raise SettingError(f"on_bad is {on_bad!r}, but must be 'skip' or 'stop'")
    every_bad = (*listing.bad, *bad)
    if every_bad and on_bad == "stop":
        raise DataError(f"{count(len(every_bad), 'file')} cannot be used:\n{_listed(every_bad)}")
    unusable = {problem.path for problem in bad}
    images = [image for image in listing.images if image.name not in unusable]
    for name in sorted(set(listing.class_names) - {image.label for image in images}):
        members = {image.name for image in listing.images if image.label == name}
        # The class of files that a reader left out is not known: it may be this one.
        shown = [problem for problem in bad if problem.path in members] or listing.bad
        if shown:
            raise DataError(f"the class {name!r} has no images that can be used:\n{_listed(shown)}")
    if not images:
        raise DataError("there are no images; give at least one for each class")
    return Dataset.of(images, every_bad, listing.class_names)


def _listed(bad: Sequence[BadImage]) -> str:
    lines = [f"  {problem}" for problem in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  … and {len(bad) - _SHOWN} more")
    return "\n".join(lines)


def _usable(listing: Dataset, on_bad: OnBad, *, check: bool, progress: Progress) -> Dataset:
    bad = check_images(listing.images, progress=progress) if check else []
    return without_bad(listing, bad, on_bad)


def _read_path(path: Path, columns: Mapping[str, str]) -> Dataset:
    if path.is_dir():
        return read_folder(path, columns)
    if path.suffix.lower() == ARCHIVE and path.exists():
        return read_archives([path], path.parent)
    if not path.exists():
        name, colon, location = str(path).partition(":")
        folder = Path(location.partition("@")[0]).expanduser()
        if colon and "/" not in name and "\\" not in name and len(name) > 1 and folder.is_dir():
            from promptboost.data.benchmarks.registry import benchmark_named

            benchmark_named(name)  # raises: it looks like a benchmark
        raise DataError(
            f"{path} does not exist; give a folder, a CSV or JSONL file, the word emoji, or a "
            "benchmark as NAME:DIR"
        )
    if path.suffix.lower() not in MANIFEST_ENDINGS:
        raise DataError(
            f"{path} is neither a folder nor a manifest ({', '.join(MANIFEST_ENDINGS)})"
        )
    return read_manifest(path, columns)


# Device and inode of the folders above one.
_Above = tuple[tuple[int, int], ...]


def _files(folder: Path, bad: list[BadImage], above: _Above = ()) -> Iterator[Path]:
    """List the files below a folder in sorted order; links are followed, but never in circles."""
    for entry in _entries(folder, bad, above):
        if entry.is_dir():
            yield from _files(entry, bad, (*above, _identity(folder)))
        elif entry.suffix.lower() not in COMPANIONS:
            yield entry


def _entries(folder: Path, bad: list[BadImage], above: _Above = ()) -> list[Path]:
    try:
        if _identity(folder) not in above:
            return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        bad.append(BadImage(str(folder), "a link back to a folder above it"))
    except OSError as error:
        bad.append(BadImage(str(folder), reason_for(error, folder)))
    return []


def read_folder(root: Path, columns: Mapping[str, str] | None = None) -> Dataset:
    """List the images of a folder that has one folder for each class.

    If all top folders are called like splits (``train``, ``val``, ``test``), the classes are the
    folders in them. Images may lie at any depth below the folder of their class. Instead of class
    folders, there may be a ``metadata.csv`` with labels, as in Hugging Face's ``imagefolder``, or tars.
    """
    tops = (root, *(path for path in sorted(root.glob("*")) if split_name(path.name)))
    if (listing := _read_metadata(tops, columns or {})) is not None:
        return listing
    if archives := [file for top in tops for file in sorted(top.glob(f"*{ARCHIVE}"))]:
        return read_archives(archives, root)
    images: list[LabeledImage] = []
    bad: list[BadImage] = []
    classes: dict[str, None] = {}
    for split, top in _tops(root, bad):
        for entry in _entries(top, bad):
            if entry.is_dir():
                classes[entry.name] = None
                for path in _files(entry, bad, (_identity(top),)):
                    name = path.relative_to(root).as_posix()
                    images.append(LabeledImage(name, entry.name, path, split))
            elif entry.suffix.lower() not in COMPANIONS:
                bad.append(BadImage(str(entry), NO_CLASS))
    if not classes:
        raise DataError(
            f"{root} has no class folders; put images in one folder for each class, "
            "like cat/1.jpg and dog/1.jpg"
        )
    return Dataset.unchecked(images, bad, classes)


def _read_metadata(tops: Sequence[Path], columns: Mapping[str, str]) -> Dataset | None:
    """Read the metadata of an image folder and of its splits; None if there are no labels in them."""
    images: list[LabeledImage] = []
    bad: list[BadImage] = []
    root = tops[0]
    for top in tops:
        for file in filter(Path.is_file, (top / f"metadata{end}" for end in MANIFEST_ENDINGS)):
            lines = io.StringIO(read_text(file, error=DataError), newline="")
            rows = manifest_rows(lines, file.name, ("path",), columns=columns)
            first: tuple[str, dict[str, Any]] = ("", {})
            with suppress(DataError):  # it is about something else
                first = next(rows, first)
            if "label" in first[1]:
                split = None if top == root else split_name(top.name)
                for image in (listing := images_of_rows(chain([first], rows), file.parent)).images:
                    name = os.path.relpath(str(image.source), root)
                    images.append(
                        replace(image, id=Path(name).as_posix(), split=image.split or split)
                    )
                bad += listing.bad
    return Dataset.unchecked(images, bad) if images else None


def save_images(data: Dataset, folder: Path) -> None:
    """Write images that are in memory into a folder, with a ``metadata.csv`` that lists all.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> pairs = [(Image.new("RGB", (8, 8), color), color) for color in ("red", "blue")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_images(load_data(pairs), Path(folder))
    ...     [(image.id, image.label) for image in load_data(folder).images]
    [('0.png', 'red'), ('1.png', 'blue')]
    """
    from PIL import Image

    rows = []
    for number, image in enumerate(data.images):
        content, name = image.source, os.path.abspath(str(image.source))
        if not isinstance(content, Path):
            if isinstance(content, bytes):
                ending = (Image.open(io.BytesIO(content)).format or "image").lower()
            else:
                ending, stream = "png", io.BytesIO()
                content.save(stream, "PNG")
                content = stream.getvalue()
            name = f"{number}.{ending}"
            write_bytes(folder / name, content)
        rows.append((name, image.label, image.split or ""))
    table = io.StringIO()
    csv.writer(table).writerows([("file_name", "label", "split"), *rows])
    write_text(folder / "metadata.csv", table.getvalue())


def find_images(paths: Iterable[str | Path]) -> Dataset:
    """List images without labels: files as given, and all files below the folders given."""
    bad: list[BadImage] = []
    images: dict[str, LabeledImage] = {}
    for path in map(Path, paths):
        for file in _files(path, bad) if path.is_dir() else [path]:
            images.setdefault(file.as_posix(), LabeledImage(file.as_posix(), "", file))
    return Dataset.unchecked(images.values(), bad, ())


def _tops(root: Path, bad: list[BadImage]) -> list[tuple[str | None, Path]]:
    """Return the folders whose entries are classes, each with its split."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    folders = [path for path in _entries(root, bad) if path.is_dir()]
    named = [(split, path) for path in folders if (split := split_name(path.name)) is not None]
    # A folder "train" among others may well hold images of trains.
    layered = [pair for pair in named if any(path.is_dir() for path in _entries(pair[1], bad))]
    if layered and len(layered) == len(folders):
        return list(layered)
    if len({split for split, _ in layered}) > 1:
        others = [path.name for path in folders if path not in dict(layered).values()]
        raise DataError(
            f"{root} has folders named like splits among others ({', '.join(others[:3])}), so "
            "the classes are unclear; keep only train, val and test there"
        )
    return [(None, root)]


def _identity(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
