"""A benchmark as it is on disk: what is there, what is missing, what is wrong, and its images."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from promptboost.data.benchmarks.registry import Benchmark, benchmark_named
from promptboost.data.benchmarks.splits import (
    ImageIndex,
    Item,
    Lists,
    Place,
    find_place,
    read_lists,
    unpacked_first,
)
from promptboost.data.dataset import Dataset, LabeledImage
from promptboost.data.decode import cut_off
from promptboost.errors import DataError, count, few
from promptboost.progress import Progress, no_progress


@dataclass(frozen=True)
class Survey:
    """A benchmark as it is on disk."""

    benchmark: Benchmark
    folder: Path
    place: Place
    lists: Lists | None  # what should be there; None if that is not known
    files: dict[str, Path]  # the listed images that are there, by their path in the list
    problems: tuple[str, ...]  # why it cannot be used
    notes: tuple[str, ...]  # what else to know

    @property
    def complete(self) -> bool:
        """Whether all of it is there and as published."""
        return not self.problems

    def counts(self) -> dict[str, dict[str, int | None]]:
        """Count the images of each split, and the classes: published, listed, there.

        None stands for what is not known.
        """
        if self.lists is None:  # what should be there is not known
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
                "there": sum(item.path in self.files for item in listed),
            }
        every = [item for listed in items.values() for item in listed]
        rows["classes"] = {
            "published": self.benchmark.classes,
            "listed": len({item.label for item in every}),
            "there": len({item.label for item in every if item.path in self.files}),
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
    """Look at a benchmark without decoding its images; what is wrong is in ``problems``.

    `folder` is its folder, or the one that holds all benchmarks. `split` is the split file, if it is
    not beside the images, or a list of drawn shots. `look` also looks at both ends of each file for
    images that are cut off.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     survey = survey_benchmark("dtd", empty)
    >>> survey.complete, survey.counts()["test"]
    (False, {'published': 1692, 'listed': None, 'there': None})
    """
    if isinstance(benchmark, str):
        benchmark = benchmark_named(benchmark)
    folder = Path(folder).expanduser()
    place = find_place(benchmark, folder)
    index = ImageIndex(place, benchmark.prefix)
    try:
        split_file = None if split is None else Path(split).expanduser()
        lists = read_lists(benchmark, place, index, split_file)
    except DataError as error:
        problems = (str(error), *unpacked_first(benchmark, folder))
        files, published = count(len(index.paths), "file"), sum(benchmark.sizes.values())
        note = f"{files} there; {benchmark.title} is published with {published:,} images"
        return Survey(benchmark, folder, place, None, {}, problems, (*_layout(place), note))
    survey = _compared(benchmark, folder, place, index, lists)
    bad = cut_off(list(survey.files.values()), progress=progress) if look else []
    if not bad:
        return survey
    paths = few([os.path.relpath(image.path, place.images) for image in bad], 3)
    damaged = f"{count(len(bad), 'file')} cut off or damaged: {paths}; get them again"
    return replace(survey, problems=(*survey.problems, damaged))


def _compared(
    benchmark: Benchmark, folder: Path, place: Place, index: ImageIndex, lists: Lists
) -> Survey:
    items = [item for listed in lists.items.values() for item in listed]
    # A link to nothing is listed by its folder, but is not there.
    located = index.located(item.path for item in items)
    sizes = {path: _size(file) for path, file in located.items()}
    on_disk = {path: file for path, file in located.items() if sizes[path] is not None}
    files = {path: file for path, file in on_disk.items() if sizes[path]}
    problems = [
        *_wrong_lists(benchmark, lists),
        *_missing(items, on_disk, index),
    ]
    if empty := [path for path in on_disk if path not in files]:
        problems.append(
            f"{count(len(empty), 'file')} of no length, from a broken download: {few(empty, 3)}"
        )
    if len(on_disk) < len(items):
        problems += unpacked_first(benchmark, folder)
    notes = (*_layout(place), *_notes(benchmark, lists, len(index.paths) - len(on_disk)))
    return Survey(benchmark, folder, place, lists, files, tuple(problems), notes)


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
    names = {item.label: item.name for listed in lists.items.values() for item in listed}
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
        listed_labels = {item.label for item in lists.items[split]}
        none = [name for label, name in names.items() if label not in listed_labels]
        if none:
            yield f"{split} has no image of {count(len(none), 'class', 'classes')} ({few(none, 3)})"


def _missing(items: list[Item], on_disk: dict[str, Path], index: ImageIndex) -> Iterator[str]:
    missing = [item for item in items if item.path not in on_disk]
    if not missing:
        return
    if len(missing) == len(items):
        holds = f"other files, like {min(index.paths)}" if index.paths else "no files"
        yield f"none of the {len(items):,} listed images is there; the folder holds {holds}"
        return
    seen = {item.label for item in items if item.path in on_disk}
    gone = list(dict.fromkeys(item.name for item in missing if item.label not in seen))
    whole = (
        f", among them all of {count(len(gone), 'class', 'classes')} ({few(gone, 3)})"
        if gone
        else ""
    )
    yield (
        f"{len(missing):,} of {len(items):,} listed images are missing{whole}; "
        f"for example {few([item.path for item in missing], 3)}"
    )


def _layout(place: Place) -> tuple[str, ...]:
    if place.own_layout:
        return ()
    return ("another layout than the protocol's; images are looked up by their file names",)


def _notes(benchmark: Benchmark, lists: Lists, unused: int) -> Iterator[str]:
    every = [item for listed in lists.items.values() for item in listed]
    labels, names = {item.label for item in every}, {item.name for item in every}
    if len(names) < len(labels):
        yield (
            f"{len(labels):,} classes have {count(len(names), 'name')}; classes of one name are one class, "
            "as no sentence can tell them apart by it"
        )
    if lists.shots:
        test = f"; test images are those of {lists.whole}" if lists.whole else ""
        yield f"the split file is a list of drawn shots: what to learn from is what it lists{test}"
    elif benchmark.name == "imagenet":
        yield (
            "published draws of shots cannot be repeated from a seed, as they depend on the order in "
            "which files were listed; give a list of shots instead"
        )
    if unused > 0:
        yield f"{count(unused, 'other file')} not in the split, and not used"


def read_benchmark(
    benchmark: Benchmark | str, folder: str | Path, split: str | Path | None = None
) -> Dataset:
    """List the images of a benchmark in the order of its split file.

    Anything missing or not as published is an error: figures on a part look like those on all of it.

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
    images = [
        LabeledImage(item.path, item.name, survey.files[item.path], name)
        for name, listed in survey.lists.items.items()
        for item in listed
    ]
    return Dataset.unchecked(images, ())


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
