"""``promptboost paper``, and ``data``: the benchmarks that it runs on."""

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import (
    Methods,
    Names,
    Numbers,
    embeds,
    on_options,
    placement,
    with_options,
)
from promptboost.cli.output import UNUSABLE, Interrupted, Output, echo, plain, speaks, table
from promptboost.errors import command_name

if TYPE_CHECKING:
    from promptboost.data.benchmarks import Survey
    from promptboost.distributed.engine import Share
    from promptboost.paper.needs import Needs
    from promptboost.paper.plans import PaperPlan
    from promptboost.paper.runner import PaperRequest
    from promptboost.paper.sheet import Sheet


@click.group(name="paper", invoke_without_command=True)
@click.pass_context
def paper(ctx: click.Context) -> None:
    """Reproduce the paper, table by table and figure by figure.

    Its commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


def _folder(name: str, text: str, **options: Any) -> Callable[[Any], Any]:
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option(name, type=kind, metavar="DIR", help=text, **options)


_CHOICE = with_options(
    [
        _folder("--data", "Holds a folder for each data set, see the reproduce-the-paper page."),
        _folder("--pools", "Holds a file or folder of sentences for each data set."),
        click.option("--datasets", type=Names(), default="", help="Only these, or others."),
        click.option("--shots", type=Numbers(), default="", help="Only these, or others."),
        click.option("--seeds", type=Numbers(), default="", help="Draws. Default: 1,2,3."),
        click.option(
            "--methods",
            type=Methods(),
            default="",
            help="Only these, as here or as in the paper, perhaps with settings.",
        ),
        click.option(
            "--encoder", default="", help="Learn with another model; nothing is compared then."
        ),
        click.option(
            "--transfer",
            type=Names(),
            default="",
            help="Carry to these models instead of the paper's; nothing is compared then.",
        ),
        click.option(
            "--views",
            type=click.IntRange(min=0),
            help="Crops of each image that a round draws its own among. Default: 32, or as many as a "
            "round sees; 8 with --encoder.",
        ),
    ]
)
_OUTPUT = click.option(
    *("-o", "--output", "out_folder"),
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    required=True,
    help="Where cells, tables and figures are kept, and found again.",
)


@paper.command(name="list")
@speaks
def list_(out: Output) -> None:
    """List every table and figure."""
    from promptboost.paper.published import entries

    records = [
        {"name": one.name, "title": one.title, "kind": one.kind, "place": one.place}
        for one in entries()
    ]
    rows = [[one["name"], one["place"], one["title"]] for one in records]
    out.result(
        {"entries": records}, lambda: table(["name", "in the paper", "title"], rows, (0, 1, 2))
    )


@paper.command(name="show")
@click.argument("name")
@click.option(
    *("-o", "--output", "out_folder"),
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path("paper"),
    help="Where cells are kept, to see which are there.",
)
@click.option("--no-probe", is_flag=True, help="Open no encoder to see how fast it is here.")
@_CHOICE
@embeds
@speaks
def show(out: Output, name: str, no_probe: bool, **options: Any) -> None:
    """Show what a table or figure needs, and how long it takes.

    NAME is one of 'paper list', or all.
    """
    from promptboost.paper.needs import find_needs

    request, plans = _asked(out, name, options)
    needs = find_needs(plans, request, probe=not no_probe)
    out.result(needs.record(), lambda: _needs_text(needs, plans))


@paper.command(name="run")
@click.argument("name")
@_OUTPUT
@_CHOICE
@embeds
@on_options
@speaks
def run(out: Output, name: str, **options: Any) -> None:
    """Run a table or figure, and see the paper's numbers beside yours.

    NAME is one of 'paper list', or all. What is in FOLDER already is not measured again, whichever
    table it was measured for: stop it at any time, and the same command goes on. With --on ray the fits
    are done by many processes, on all machines of a cluster, which must share the data and FOLDER.
    """
    from promptboost.errors import RunError, SettingError
    from promptboost.io import writing
    from promptboost.paper.runner import PlanRunner
    from promptboost.paper.sheet import make_sheet, write_sheet

    share = None if (place := placement(options)) is None else place.share
    request, plans = _asked(out, name, options)
    for option, folder in (("--data", request.data), ("--pools", request.pools)):
        if folder is not None and not folder.is_dir():
            raise SettingError(f"{option} is {folder}, and there is no such folder")
    runner = PlanRunner(request, out.note, place)
    records, sheet, any_line = [], None, False
    # Several parts write at the same time, each its own cells.
    alone = share is None
    try:
        with writing(request.out, "paper", say=out.note) if alone else nullcontext():
            for plan in plans:
                sheet = make_sheet(plan, runner.run(plan))
                files = write_sheet(sheet, request) if alone and sheet.measured.lines else []
                any_line = any_line or bool(sheet.measured.lines)
                records.append(_record(sheet, files))
                if not out.json and alone:
                    echo(_sheet_text(sheet, files))
    except KeyboardInterrupt:
        raise Interrupted("the same command again; what is done is kept") from None
    finally:
        runner.close()
    if out.json:
        out.result({"entries": records}, "")
    elif not alone:
        echo(_part_text(share, records))
    if not any_line and sheet is not None:
        first, *more = sheet.measured.reason_lines() or ["nothing was asked for"]
        also = f"; {len(more)} more reasons are above" if more else ""
        raise RunError(f"nothing could be run: {first}{also}")


def _part_text(share: "Share | None", records: list[dict[str, Any]]) -> str:
    done = sum(record["measured_now"] for record in records)
    reasons = dict.fromkeys(line for record in records for line in record["missing"])
    return "\n".join(
        [
            f"part {share} is done: {done} new cells",
            *(f"missing  {plain(line)}" for line in reasons),
            "when all parts are done, the same command with --merge in place of --shard writes the tables",
        ]
    )


@paper.command(name="claims")
@_OUTPUT
@speaks
def claims(out: Output, out_folder: Path) -> None:
    """Judge the paper's nine claims from the cells in FOLDER."""
    from promptboost.compare.cells import ResultLog
    from promptboost.errors import RunError
    from promptboost.paper.claims import judge_claims
    from promptboost.paper.runner import CELLS, PaperCell

    log = ResultLog(out_folder / CELLS, PaperCell) if out_folder.is_dir() else None
    lines = [] if log is None else log.results(log)
    if not lines:
        raise RunError(
            f"{out_folder} holds no cells of the paper; run some first: "
            f"{command_name()} paper run main -o {shlex.quote(str(out_folder))} …"
        )
    judged = judge_claims(lines)
    rows = [[one.claim, str(one)] for one in judged]
    out.result(
        {"claims": [one.record() for one in judged]},
        lambda: table(["claim", "judged"], rows, (0, 1)),
    )


def _asked(
    out: Output, name: str, options: dict[str, Any]
) -> "tuple[PaperRequest, list[PaperPlan]]":
    """Return what was asked for, and the plans as they are then."""
    from promptboost.data.benchmarks.registry import find_benchmark
    from promptboost.errors import SettingError
    from promptboost.paper.plans import PLANS, PaperChoice, chosen, find_plan
    from promptboost.paper.runner import PaperRequest

    found = {text: find_benchmark(text) for text in options["datasets"]}
    choice = PaperChoice(
        tuple(text if one is None else one.name for text, one in found.items()),
        options["shots"],
        options["seeds"],
        options["methods"],
        options["encoder"],
        options["transfer"],
        options["views"],
    )
    request = PaperRequest(
        options["out_folder"],
        options["data"],
        options["pools"],
        choice,
        options["opening"]["cache"],
        out.progress,
        options["opening"]["device"],
    )
    plans = list(PLANS.values()) if name == "all" else [find_plan(name)]
    asked = [plan for plan in (chosen(one, choice) for one in plans) if plan.slots]
    if not asked:
        raise SettingError(
            f"nothing is left of {name}: it has {', '.join(plans[0].methods)} at "
            f"{', '.join(map(str, plans[0].shots))} shots"
        )
    return request, asked


def _record(sheet: "Sheet", files: list[Path]) -> dict[str, Any]:
    entry = sheet.plan.entry
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "at_hand": sheet.plan.at_hand,
        "numbers": [
            {
                "row": list(one.slot.row),
                "column": one.slot.column,
                "ours": one.mean,
                "deviation": one.deviation,
                "cells": one.cells,
                "of": one.of,
                "paper": None if one.paper is None else one.paper.value,
                "difference": one.difference,
                "within": one.within,
                "why_not": one.why_not,
            }
            for one in sheet.numbers
        ],
        "measured_now": sheet.measured.done,
        "missing": sheet.measured.reason_lines(),
        "files": [str(file) for file in files],
    }


def _sheet_text(sheet: "Sheet", files: list[Path]) -> str:
    head, rows = sheet.grid()
    entry = sheet.plan.entry
    lines = [
        f"{entry.name}: {entry.title} ({entry.place})",
        *([sheet.plan.at_hand] if sheet.plan.at_hand else []),
        "",
        table(head, rows, tuple(range(len(sheet.plan.head)))),
        "",
        *sheet.notes(),
        *(f"missing  {plain(line)}" for line in sheet.measured.reason_lines()),
        f"cells    {len(sheet.measured.lines)}, of which {sheet.measured.done} are new",
        f"files    {', '.join(plain(str(file)) for file in files) or 'none'}",
        "",
    ]
    return "\n".join(lines)


def _needs_text(needs: "Needs", plans: "list[PaperPlan]") -> str:
    from promptboost.errors import human_bytes

    title = plans[0].entry.title if len(plans) == 1 else f"{len(plans)} tables and figures"
    data = [
        [
            one.name,
            "–" if one.images is None else f"{one.images:,}",
            "–" if one.classes is None else str(one.classes),
            "there" if not one.data else "missing",
            "there" if not one.sentences else "missing",
        ]
        for one in needs.data
    ]
    encoders = [
        [
            one.name,
            f"{one.images:,}",
            f"{one.texts:,}" if one.texts else "–",
            "–" if one.bytes is None else human_bytes(one.bytes),
            f"{one.stored:,}",
            _duration(one.seconds) if not one.missing else "weights are not here",
        ]
        for one in needs.encoders
    ]
    # What is the same of several data sets is said once.
    reasons: dict[str, list[str]] = {}
    for one in needs.data:
        for text in filter(None, (one.data, one.sentences)):
            reasons.setdefault(text.replace(one.name, "NAME"), []).append(one.name)
    lines = [
        f"{title}",
        *([plans[0].at_hand] if plans[0].at_hand else []),
        "",
        f"methods  {', '.join(needs.methods)}",
        f"shots    {', '.join(map(str, needs.shots))}",
        f"draws    {', '.join(map(str, needs.seeds))}",
        f"views    {needs.views} of each image at most",
        f"fits     {needs.fits:,}, in {needs.cells:,} cells, of which {needs.kept:,} are there",
        f"time     {_time(needs)}",
        f"disk     {human_bytes(needs.bytes)} of embeddings",
        "",
        table(["data set", "images", "classes", "images are", "sentences are"], data),
        "",
        table(["encoder", "images", "texts", "at most", "in the store", "time here"], encoders),
        *([""] if reasons else []),
        *(plain(_told_once(text, names)) for text, names in reasons.items()),
    ]
    return "\n".join(lines)


def _told_once(text: str, names: list[str]) -> str:
    """Return what is missing of some data sets; NAME stands for each of several."""
    text = text.removeprefix("NAME: ")
    return f"{', '.join(names)}: {text.replace('NAME', names[0]) if len(names) == 1 else text}"


def _time(needs: "Needs") -> str:
    known = [one.seconds for one in needs.encoders if one.seconds is not None]
    unknown = len(needs.encoders) - len(known)
    embedding = f"{_duration(sum(known))} to embed" if known else "embedding cannot be timed here"
    if known and unknown:
        embedding += f", without {unknown} encoders whose weights are not here"
    fits = (
        "fits cannot be timed before one of each method is there"
        if needs.fit_seconds is None
        else f"{_duration(needs.fit_seconds)} to fit what is missing"
    )
    return f"{embedding}; {fits}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


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
    out.result(_survey_record(survey), lambda: _survey_text(survey, split))
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
        "notes": list(survey.notes),
        "how_to_get": survey.benchmark.how_to_get(),
    }


def _survey_text(survey: "Survey", split: str | None) -> str:
    record = _survey_record(survey)
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
