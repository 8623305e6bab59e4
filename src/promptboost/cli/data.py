"""``promptboost data``."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.output import UNUSABLE, Output, echo, plain, speaks, table
from promptboost.errors import command_name

if TYPE_CHECKING:
    from promptboost.data.benchmarks import Survey


@click.group(name="data", invoke_without_command=True)
@click.pass_context
def data(ctx: click.Context) -> None:
    """Look at the benchmarks of the papers.

    Its commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@data.command(name="check")
@click.argument("name")
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option(
    "--split",
    type=click.Path(),
    help="The split file, if it is not beside the images; or a list of drawn shots.",
)
@speaks
def check(out: Output, name: str, folder: str, split: str | None) -> int:
    """Show what of a benchmark is there, what is missing, and how to get it.

    NAME is one of imagenet, caltech101, oxford_pets, stanford_cars, flowers102, food101,
    fgvc_aircraft, sun397, dtd, eurosat and ucf101. DIR is its folder, or the folder that holds all
    benchmarks. What is complete can be given to the other commands as NAME:DIR, or as
    NAME:DIR@FILE with a split file from elsewhere. Exit code 2 means it cannot be used.
    """
    from promptboost.data.benchmarks import survey_benchmark

    survey = survey_benchmark(name, folder, split, look=True, progress=out.progress)
    out.result(_record(survey), lambda: _text(survey, split))
    return 0 if survey.complete else UNUSABLE


def _record(survey: "Survey") -> dict[str, Any]:
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
        "notes": list(survey.notes),
        "how_to_get": survey.benchmark.how_to_get(),
    }


def _text(survey: "Survey", split: str | None) -> str:
    record = _record(survey)
    rows = [
        [name, *("–" if number is None else f"{number:,}" for number in count.values())]
        for name, count in record["counts"].items()
    ]
    known = "the images' own lists" if survey.lists else "not known"
    lines = [
        f"{record['title']} in {record['folder']}",
        f"images  {record['images']}",
        f"split     {record['split_file'] or known}",
    ]
    wrong = [f"{number}. {text}" for number, text in enumerate(record["problems"], start=1)]
    source = f"{record['benchmark']}:{record['folder']}{f'@{split}' if split else ''}"
    ending = (
        [f"complete; to learn from it, type: {command_name()} fit {shlex.quote(source)} -o RUN"]
        if survey.complete
        else [*wrong, "", "how to get it", *(f"  {line}" for line in record["how_to_get"])]
    )
    laid_out = table(["", "published", "listed", "there"], rows)
    remarks = [*(f"note: {note}" for note in record["notes"]), *ending]
    return "\n".join([*map(plain, lines), "", laid_out, "", *map(plain, remarks)])
