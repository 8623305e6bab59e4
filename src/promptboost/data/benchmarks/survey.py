"""A benchmark as it is on disk: its images and its problems."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from promptboost.data.benchmarks.registry import Benchmark, benchmark_named
from promptboost.data.benchmarks.splits import BenchmarkFolder, Item, Lists, read_lists
from promptboost.data.dataset import Dataset, LabeledImage, check_images
from promptboost.errors import DataError, count, few
from promptboost.progress import Progress, no_progress


@dataclass(frozen=True)
class Survey:
    """A benchmark as it is on disk."""

    benchmark: Benchmark
    folder: Path
    place: BenchmarkFolder
    lists: Lists | None  # None if they cannot be read
    files: dict[str, Path]  # the listed images on disk, by their path in the list
    problems: tuple[str, ...]  # why it cannot be used

    @property
    def complete(self) -> bool:
        """Whether all of it is there and as published."""
        return not self.problems

    def counts(self) -> dict[str, dict[str, int | None]]:
        """Count the images of each split, and the classes: published, listed, there.

        None where that is not known.
        """
        if self.lists is None:  # the list of images is not known
            published = {**self.benchmark.sizes, "classes": self.benchmark.classes}
            return {
                name: {"published": number, "listed": None, "there": None}
                for name, number in published.items()
            }
        items = self.lists.items
        rows: dict[str, dict[str, int | None]] = {}
        for split in dict.fromkeys([*self.benchmark.sizes, *items]):
            listed = items.get(split, [])
            rows[split] = {
                "published": self.benchmark.sizes.get(split),
                "listed": len(listed),
                "there": sum(entry.path in self.files for entry in listed),
            }
        every = [entry for listed in items.values() for entry in listed]
        rows["classes"] = {
            "published": self.benchmark.classes,
            "listed": len({entry.label for entry in every}),
            "there": len({entry.label for entry in every if entry.path in self.files}),
        }
        return rows


def survey_benchmark(
    benchmark: Benchmark | str,
    folder: str | Path,
    split: str | Path | None = None,
    *,
    look: bool = False,
    progress: Progress = no_progress,
) -> Survey:
    """Check a benchmark on disk; see ``problems``.

    `folder` is its folder, or the one that holds all benchmarks. `split` is the split file, if it is
    not next to the images, or a list of drawn shots. With `look`, every image is decoded.
    """
    if isinstance(benchmark, str):
        benchmark = benchmark_named(benchmark)
    folder = Path(folder).expanduser()
    split_file = None if split is None else Path(split).expanduser()
    place = BenchmarkFolder.find(benchmark, folder, split_file)
    try:
        lists = read_lists(benchmark, place, split_file)
    except DataError as error:
        return Survey(benchmark, folder, place, None, {}, (str(error),))
    items = [entry for listed in lists.items.values() for entry in listed]
    # A link to nothing is listed by its folder, but is not there.
    located = place.located(entry.path for entry in items)
    sizes = {path: _size(file) for path, file in located.items()}
    on_disk = {path: file for path, file in located.items() if sizes[path] is not None}
    files = {path: file for path, file in on_disk.items() if sizes[path]}
    problems = [*_wrong_lists(benchmark, lists), *_missing(items, on_disk, place)]
    if empty := [path for path in on_disk if path not in files]:
        problems.append(
            f"{count(len(empty), 'file')} of no length, from a broken download: {few(empty, 3)}"
        )
    images = [LabeledImage(path, "", file) for path, file in files.items()] if look else []
    if bad := check_images(images, progress=progress):
        paths = few([os.path.relpath(image.path, place.images) for image in bad], 3)
        problems.append(f"{count(len(bad), 'file')} cut off or damaged: {paths}; get them again")
    return Survey(benchmark, folder, place, lists, files, tuple(problems))


def _size(file: Path) -> int | None:
    try:
        return os.stat(file).st_size
    except OSError:
        return None


def _wrong_lists(benchmark: Benchmark, lists: Lists) -> Iterator[str]:
    right = True
    for split, published in benchmark.sizes.items():
        listed = len(lists.items.get(split, []))
        if listed != published and (split == "test" or not lists.shots):
            right = False
            yield (
                f"{split} has {count(listed, 'image')}, but {benchmark.title} is published with "
                f"{published:,}: this is another split, or a part of it"
            )
    names = {entry.label: entry.name for listed in lists.items.values() for entry in listed}
    if len(names) != benchmark.classes:
        yield (
            f"there are {count(len(names), 'class', 'classes')}, but {benchmark.title} is published "
            f"with {benchmark.classes:,}"
        )
    if lists.foreign and right:
        yield (
            f"{lists.whole or lists.file} is of the right size, but not the protocol's list: other "
            "images, or in another order. Programs that miss the list draw a new one of that name; "
            "download it. A split of your own goes into a CSV file: path,label,split"
        )
    for split in ("train", "test"):
        listed_labels = {entry.label for entry in lists.items[split]}
        none = [name for label, name in names.items() if label not in listed_labels]
        if none:
            yield f"{split} has no image of {count(len(none), 'class', 'classes')} ({few(none, 3)})"


def _missing(items: list[Item], on_disk: dict[str, Path], place: BenchmarkFolder) -> Iterator[str]:
    missing = [entry for entry in items if entry.path not in on_disk]
    if not missing:
        return
    if len(missing) == len(items):
        holds = f"other files, like {min(place.paths)}" if place.paths else "no files"
        yield f"none of the {len(items):,} listed images is there; the folder holds {holds}"
        return
    seen = {entry.label for entry in items if entry.path in on_disk}
    gone = list(dict.fromkeys(entry.name for entry in missing if entry.label not in seen))
    whole = f", among them all of {count(len(gone), 'class', 'classes')} ({few(gone, 3)})"
    yield (
        f"{len(missing):,} of {len(items):,} listed images are missing{whole if gone else ''}; "
        f"for example {few([entry.path for entry in missing], 3)}"
    )


def read_benchmark(
    benchmark: Benchmark | str, folder: str | Path, split: str | Path | None = None
) -> Dataset:
    """List the images of a benchmark in the order of its split file.

    Anything missing or not as published is an error: figures on a part look like those on all of it.
    """
    survey = survey_benchmark(benchmark, folder, split)
    if survey.lists is None or not survey.complete:
        raise DataError(_refusal(survey, split))
    images = [
        LabeledImage(entry.path, entry.name, survey.files[entry.path], name)
        for name, listed in survey.lists.items.items()
        for entry in listed
    ]
    return Dataset.of(images)


def _refusal(survey: Survey, split: str | Path | None) -> str:
    words = ["promptboost", "data", "check", survey.benchmark.name, str(survey.folder)]
    words += [] if split is None else ["--split", str(split)]
    problems = [f"  {number}. {text}" for number, text in enumerate(survey.problems, start=1)]
    title = f"{survey.benchmark.title} in {survey.folder} cannot be used:"
    return "\n".join([title, *problems, f"for more, type: {shlex.join(words)}"])
