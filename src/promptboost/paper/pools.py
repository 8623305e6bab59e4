"""The paper's pools: CLIP's templates, released sentences, and concatenations of both."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from promptboost.data.benchmarks import BENCHMARKS, Benchmark, survey_benchmark
from promptboost.data.benchmarks.splits import BenchmarkFolder, imagenet_classes
from promptboost.errors import DataError, MissingExtraError, PoolError
from promptboost.pool import PromptPool, save_pool
from promptboost.pool.pool import CONCAT, TEMPLATE
from promptboost.pool.readers import read_sources
from promptboost.pool.readers.released import AWT, CUPL, DCLIP, GPT4VIS
from promptboost.pool.sources import join_pool, match_classes
from promptboost.pool.templates import clip_templates

#: What the names of released files and folders have in common, for each data set.
_NAMES = {
    "imagenet": r"imagenet(?![-_ ]?(a|r|s|v2|sketch)\b)",
    "caltech101": r"caltech(?!-?256)|^cal_",
    "oxford_pets": r"pets",
    "stanford_cars": r"cars|car_",
    "flowers102": r"flower|^flo$",
    "food101": r"food",
    "fgvc_aircraft": r"aircraft|airplane",
    "sun397": r"sun397|^sun_",
    "dtd": r"dtd|texture",
    "eurosat": r"euro_?sat",
    "ucf101": r"ucf",
}
# AdaptCLIPZS has a second set of descriptions, of habitats.
_OTHERS = re.compile(r"location")


def released_files(benchmark: Benchmark, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files and folders of sentences about a benchmark, in folders as they were released."""
    pattern = re.compile(_NAMES[benchmark.name], re.IGNORECASE)
    for folder in folders:
        for path in sorted((folder, *folder.rglob("*"))):
            if pattern.search(path.name) and not _OTHERS.search(path.name) and _is_released(path):
                yield path


def _is_released(path: Path) -> bool:
    if path.is_dir():
        return (path / "category_description").is_dir() or next(
            path.glob("*.txt"), None
        ) is not None
    if path.suffix != ".json" or path.parent.name == "category_description":
        return False
    formats = CUPL, DCLIP, GPT4VIS, AWT
    return path.stem.startswith("cupl_") or any(form.recognizes(path) for form in formats)


def build_paper_pool(benchmark: Benchmark, folders: Sequence[Path], data: Path) -> PromptPool:
    """Build the paper's pool of a benchmark from released files.

    Class names are those of the split files in `data`, the folder of the data sets.
    """
    names = _class_names(benchmark, data)
    sources = [
        replace(source, name="cupl_full") if path.stem.startswith("cupl_") else source
        for path in released_files(benchmark, folders)
        for source in read_sources(path)
    ]
    if not sources:
        raise PoolError(
            f"no released file about {benchmark.name} is in {', '.join(map(str, folders))}"
        )
    matches = [match_classes(source, names) for source in sources]
    return join_pool(matches, names, templates=clip_templates(), concatenate="one")


def build_paper_pools(
    folders: Sequence[Path], data: Path, out: Path, names: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Build and save the pools of all benchmarks, or of some; yield a record of each."""
    for name in names or BENCHMARKS:
        record: dict[str, Any] = {"dataset": name, "file": None, "reason": "", "consists_of": ""}
        try:
            pool = build_paper_pool(BENCHMARKS[name], folders, data)
        except (DataError, PoolError) as error:
            record["reason"] = str(error)
        else:
            out.mkdir(parents=True, exist_ok=True)
            save_pool(pool, out / f"{name}.jsonl")
            record |= {"file": str(out / f"{name}.jsonl"), "consists_of": consists_of(pool)}
            record |= {"missing": list(pool.missing), **pool.prompts_by_source}
        yield record


def _class_names(benchmark: Benchmark, data: Path) -> tuple[str, ...]:
    if benchmark.name == "imagenet":  # also without images
        return tuple(imagenet_classes(BenchmarkFolder.find(benchmark, data)).values())
    survey = survey_benchmark(benchmark, data)
    if survey.lists is None:
        raise DataError(survey.problems[0])
    items = [entry for listed in survey.lists.items.values() for entry in listed]
    return tuple(dict.fromkeys(entry.name for entry in items))


def consists_of(pool: PromptPool) -> str:
    """Return what a pool consists of, in one line."""
    try:
        of_clip = len({*clip_templates()} & {*pool.templates})
    except MissingExtraError:
        of_clip = 0
    templates = f"{len(pool.templates)} templates"
    templates += f", {of_clip} of them CLIP's as published" if of_clip else ", none of them CLIP's"
    counts = dict(pool.prompts_by_source)
    concatenations = counts.pop(CONCAT, 0)
    counts.pop(TEMPLATE, None)
    sentences = ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
    return (
        f"{pool.size:,} prompts of {len(pool.class_names):,} classes: "
        f"{templates}; sentences: {sentences}; {concatenations:,} concatenations"
    )
