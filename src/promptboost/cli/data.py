"""``promptboost data``: the benchmarks of the papers."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.output import UNUSABLE, Output, echo, plain, table, with_output
from promptboost.errors import command_name

if TYPE_CHECKING:
    from promptboost.data.benchmarks import Survey


@click.group(name="data", invoke_without_command=True)
@click.pass_context
def data(ctx: click.Context) -> None:
    """Download and check the benchmarks of the papers.

    All commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@data.command(name="list")
@with_output
def list_(out: Output) -> None:
    """List the eleven benchmarks, and which of them can be downloaded."""
    from promptboost.data.benchmarks import BENCHMARKS

    records = [
        {
            "name": benchmark.name,
            "title": benchmark.title,
            "classes": benchmark.classes,
            "images": sum(benchmark.sizes.values()),
            "download": benchmark.is_public,
            "how_to_get": benchmark.how_to_get(),
        }
        for benchmark in BENCHMARKS.values()
    ]
    rows = [
        [
            str(record["name"]),
            str(record["title"]),
            f"{record['classes']:,}",
            f"{record['images']:,}",
            "data prepare" if record["download"] else "by hand, then data prepare",
        ]
        for record in records
    ]
    head = ["name", "title", "classes", "images", "download"]
    out.result({"benchmarks": records}, table(head, rows, (0, 1, 4)))


@data.command(name="check")
@click.argument("arguments", metavar="[NAME] DIR", nargs=-1, required=True)
@click.option(
    "--split",
    type=click.Path(),
    help="The split file, if it is not next to the images; or a list of drawn shots.",
)
@with_output
def check(out: Output, arguments: tuple[str, ...], split: str | None) -> int:
    """Check whether benchmarks are complete, and show how to get missing files.

    NAME is one of imagenet, caltech101, oxford_pets, stanford_cars, flowers102, food101,
    fgvc_aircraft, sun397, dtd, eurosat and ucf101. Without it, all of them are checked. DIR is the
    folder of the benchmark, or the folder that holds all benchmarks. Other commands read a complete
    benchmark as NAME:DIR, or as NAME:DIR@FILE with another split file. Exit code 2 means that one
    cannot be used.
    """
    from promptboost.data.benchmarks import BENCHMARKS, survey_benchmark

    *names, folder = arguments
    if len(names) > 1 or (split and not names):
        raise click.UsageError("give one NAME and DIR, or DIR alone without --split")
    if names:
        survey = survey_benchmark(names[0], folder, split, look=True, progress=out.progress)
        record = _survey_record(survey)
        out.result(record, lambda: _survey_text(survey, record, split))
        return 0 if survey.complete else UNUSABLE
    surveys = [
        survey_benchmark(name, folder, look=True, progress=out.progress) for name in BENCHMARKS
    ]
    rows = [
        [survey.benchmark.name, "complete" if survey.complete else plain(survey.problems[0])]
        for survey in surveys
    ]
    records = {"benchmarks": [_survey_record(survey) for survey in surveys]}
    out.result(records, table(["benchmark", "state"], rows, (0, 1)))
    return 0 if all(survey.complete for survey in surveys) else UNUSABLE


@data.command(name="prepare")
@click.argument("name")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--mirror", metavar="URL", help="Folder on a server with the files, under their own names."
)
@with_output
def prepare(out: Output, name: str, folder: Path, mirror: str | None) -> int:
    """Download a benchmark into DIR, the folder of all benchmarks, unpack it and check it.

    Files that are in its folder already are not downloaded. Without a public address, the command prints
    what to put where. It also sorts the validation images of ImageNet, and extracts the middle frames of
    the videos of UCF101.
    """
    from promptboost.data.benchmarks import benchmark_named
    from promptboost.data.benchmarks.prepare import prepare_benchmark

    survey = prepare_benchmark(
        benchmark_named(name), folder, mirror=mirror, say=out.note, progress=out.progress
    )
    record = _survey_record(survey)
    out.result(record, lambda: _survey_text(survey, record, None))
    return 0 if survey.complete else UNUSABLE


def _survey_record(survey: "Survey") -> dict[str, Any]:
    file = survey.lists.file if survey.lists else None
    return {
        "benchmark": survey.benchmark.name,
        "title": survey.benchmark.title,
        "template": survey.benchmark.template,
        "folder": str(survey.folder),
        "images": str(survey.place.images),
        "split_file": None if file is None else str(file),
        "complete": survey.complete,
        "counts": survey.counts(),
        "problems": list(survey.problems),
        "how_to_get": survey.benchmark.how_to_get(),
    }


def _survey_text(survey: "Survey", record: dict[str, Any], split: str | None) -> str:
    rows = [
        [name, *("–" if number is None else f"{number:,}" for number in count.values())]
        for name, count in record["counts"].items()
    ]
    lists = "the images' own lists" if survey.lists else "unknown"
    lines = [
        f"{record['title']} in {record['folder']}",
        f"images  {record['images']}",
        f"split   {record['split_file'] or lists}",
    ]
    remarks: list[str] = []
    if survey.complete:
        source = f"{record['benchmark']}:{record['folder']}{f'@{split}' if split else ''}"
        remarks.append(f"complete; to fit, type: {command_name()} fit {shlex.quote(source)} -o RUN")
    else:
        remarks += [f"{i}. {text}" for i, text in enumerate(record["problems"], start=1)]
        remarks += ["", "how to get it", *(f"  {line}" for line in record["how_to_get"])]
    counts = table(["", "published", "listed", "there"], rows)
    return "\n".join([*map(plain, lines), "", counts, "", *map(plain, remarks)])
