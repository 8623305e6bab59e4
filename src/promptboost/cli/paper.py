"""``promptboost paper``."""

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import UNUSABLE, Output, echo, part_lines, plain, table, with_output
from promptboost.errors import command_name, few, human_bytes

if TYPE_CHECKING:
    from promptboost.paper.needs import Needs
    from promptboost.paper.plans import PaperPlan
    from promptboost.paper.runner import PaperRequest
    from promptboost.paper.sheet import Sheet


@click.group(name="paper", invoke_without_command=True)
@click.pass_context
def paper(ctx: click.Context) -> None:
    """Reproduce the tables and figures of the paper.

    All commands take --json and --quiet.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


def _folder(name: str, text: str, **options: Any) -> Callable[[Any], Any]:
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option(name, type=kind, metavar="DIR", help=text, **options)


def _choice(names: str, kind: Any, text: str) -> Callable[[Any], Any]:
    return click.option(*names.split(), type=kind, default="", help=text)


_choice_options = opt.with_options(
    [
        _folder(
            "--data", "Folder with one folder for each data set; see the reproduce-the-paper page."
        ),
        _folder("--pools", "Folder with a file or folder of sentences for each data set."),
        _choice("--datasets", opt.Names(), "Restrict to these, or add others."),
        _choice("--shots", opt.Numbers(), "Restrict to these, or add others."),
        _choice("--seeds", opt.Numbers(), "Random draws. Default: 1,2,3."),
        _choice(
            "--methods",
            opt.Methods(),
            "Restrict to these, named as here or as in the paper, possibly with settings.",
        ),
        _choice("--encoder", str, "Fit with another encoder, without comparison to the paper."),
        _choice(
            "--transfer transfers",
            opt.Names(),
            "Transfer to these encoders, without comparison to the paper.",
        ),
        click.option(
            "--views",
            type=click.IntRange(min=0),
            help="Stored crops per image, from which a round draws its own. Default: 32, or the number per "
            "round; 8 with --encoder.",
        ),
    ]
)
_results_option = opt.output_option(
    "Folder of the results. Existing results are not computed again.", metavar="FOLDER"
)


@paper.command(name="list")
@with_output
def list_(out: Output) -> None:
    """List every table and figure."""
    from promptboost.paper.published import entries

    records = [
        {"name": entry.name, "title": entry.title, "kind": entry.kind, "place": entry.place}
        for entry in entries()
    ]
    rows = [[record["name"], record["place"], record["title"]] for record in records]
    out.result({"entries": records}, table(["name", "in the paper", "title"], rows, (0, 1, 2)))


@paper.command(name="pools")
@click.argument("releases", nargs=-1, required=True, type=opt.PATH, metavar="FOLDER...")
@_folder("--data", "Folder of the data sets, for the names of the classes.", required=True)
@_choice("--datasets", opt.Names(), "Restrict to these. Default: all eleven.")
@opt.output_option("Folder of the pools, for --pools.", metavar="POOLS")
@with_output
def pools(
    out: Output, releases: tuple[Path, ...], data: Path, datasets: tuple[str, ...], output: Path
) -> int:
    """Build the paper's pool of each data set from released files.

    FOLDER is a release as its authors published it, such as a clone of its repository: CuPL, DCLIP,
    GPT4Vis, AdaptCLIPZS, AWT or ProAPO. Each pool has CLIP's 80 templates, the sentences, and each sentence
    behind the plain template. Exit code 2 means that none could be built.
    """
    from promptboost.data.benchmarks import benchmark_named
    from promptboost.paper.pools import build_paper_pools

    for folder in (data, *releases):
        if not folder.is_dir():
            raise click.UsageError(f"there is no folder {folder}")
    names = [benchmark_named(name).name for name in datasets]
    records = list(build_paper_pools(releases, data, output, names))
    rows = [
        [record["dataset"], plain(record["consists_of"] or record["reason"])] for record in records
    ]
    out.result({"pools": records}, table(["data set", "pool"], rows, (0, 1)))
    return 0 if any(record["file"] for record in records) else UNUSABLE


@paper.command(name="doctor")
@click.argument("name")
@opt.output_option(
    "Folder of existing results.", required=False, metavar="FOLDER", default=Path("paper")
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure encoders that are on this machine, for about a minute, instead of predicting.",
)
@_choice_options
@opt.embedding_options
@with_output
def doctor(out: Output, name: str, calibrate: bool, **options: Any) -> int:
    """Check data, pools, weights, device, disk and time for a table or figure.

    NAME is one of 'paper list', or all. Exit code 2 means that something is missing; 'paper run' measures
    what it can. Times are predicted from the published operations of the towers at 25 TFLOP/s, the speed
    of the paper's RTX 3090, without decoding of images and without the search for prompts on the CPU.
    """
    from promptboost.paper.needs import find_needs

    request, plans = _request(out, name, options)
    needs = find_needs(plans, request, calibrate=calibrate)
    checks = _checks(needs, request)
    reasons: dict[str, list[str]] = {}  # each once, with the data sets that it concerns
    for need in needs.data:
        for reason in filter(None, (need.data, need.sentences)):
            reasons.setdefault(reason.replace(need.name, "NAME"), []).append(need.name)
    lines = [
        table(
            ["", "state", "to do"],
            [[what, *map(plain, row)] for what, row in checks.items()],
            (0, 1, 2),
        )
    ]
    for reason, names in reasons.items():
        reason = reason.removeprefix("NAME: ")
        reason = reason.replace("NAME", names[0]) if len(names) == 1 else reason
        lines.append(plain(f"{few(names, 3)}: {reason}"))
    record = {what: dict(zip(("state", "to_do"), row, strict=True)) for what, row in checks.items()}
    out.result({"checks": record, **asdict(needs)}, "\n".join(lines))
    return UNUSABLE if any(to_do for _, to_do in checks.values()) else 0


def _checks(needs: "Needs", request: "PaperRequest") -> dict[str, tuple[str, str]]:
    """Return the state of each requirement, and what to do about it."""
    import shutil

    from promptboost.encoders.runtime import pick_device
    from promptboost.io import cache_folder

    command, data = command_name(), request.data or "DATA"
    total = len(needs.data)
    lacking = {
        "data": (total, [need.name for need in needs.data if need.data]),
        "pools": (total, [need.name for need in needs.data if need.sentences]),
        "weights": (len(needs.encoders), [need.name for need in needs.encoders if need.missing]),
    }
    advice = {
        "data": f"{command} data prepare NAME {data}",
        "pools": f"{command} paper pools RELEASES --data {data} -o {request.pools or 'POOLS'}",
        "weights": "downloaded from the model hub when they are first needed, if it can be reached",
    }
    checks = {
        "fits": (f"{needs.fits:,}, in {needs.cells:,} cells, {needs.done:,} of them done", "")
    }
    for what, (wanted, names) in lacking.items():
        state = f"{wanted - len(names)} of {wanted}"
        state += f"; missing: {few(names, 3)}" if names else ""
        checks[what] = state, advice[what] if names else ""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    device = str(pick_device(request.device))
    slow = "" if device != "cpu" else "a GPU, or --datasets, --shots and --encoder for a part"
    checks["device"] = device, slow
    room = f"{human_bytes(needs.bytes)} of embeddings, {human_bytes(free)} free in {folder}"
    checks["disk"] = room, "" if needs.bytes < free else "make room, or set PROMPTBOOST_CACHE"
    embedding = [need.seconds for need in needs.encoders if need.seconds is not None]
    times = {"to embed": sum(embedding)} if embedding else {}
    times |= {f"for {method}": seconds for method, seconds in sorted(needs.training.items())}
    predicted = ", ".join(f"{_duration(seconds)} {what}" for what, seconds in times.items())
    if measured := sum(need.measured for need in needs.encoders):
        predicted += f" ({measured} of {len(needs.encoders)} encoders measured here)"
    unknown = "unknown for these encoders; --calibrate measures them"
    checks["time"] = predicted or unknown, ""
    return checks


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


@paper.command(name="run")
@click.argument("name")
@_results_option
@_choice_options
@opt.embedding_options
@opt.on_options
@with_output
def run(out: Output, name: str, **options: Any) -> None:
    """Run a table or figure, and compare the results with the paper's.

    NAME is one of 'paper list', or all. Existing results in FOLDER are not computed again, even those of
    other tables: the same command resumes an interrupted one. With --on ray, many processes share the
    fits, on all machines of a cluster, which must share the data and FOLDER.
    """
    from promptboost.errors import RunError, SettingError
    from promptboost.io import writing
    from promptboost.paper.runner import PlanRunner
    from promptboost.paper.sheet import make_sheet, write_sheet

    placement = opt.placement(options)
    share = None if placement is None else placement.share
    request, plans = _request(out, name, options)
    for option, folder in (("--data", request.data), ("--pools", request.pools)):
        if folder is not None and not folder.is_dir():
            raise SettingError(f"{option}: there is no folder {folder}")
    runner = PlanRunner(request, out.note, placement)
    records, sheets = [], []
    # Parts run at the same time and write no tables.
    lock = writing(request.out, "paper", say=out.note) if share is None else nullcontext()
    try:
        with opt.resumable(), lock:
            for plan in plans:
                sheet = make_sheet(plan, runner.run(plan))
                write = share is None and bool(sheet.measured.lines)
                files = write_sheet(sheet, request) if write else []
                sheets.append(sheet)
                records.append(_record(sheet, files))
                if not out.json and share is None:
                    echo(_sheet_text(sheet, files))
    finally:
        runner.close()
    if out.json:
        out.result({"entries": records}, "")
    elif share is not None:
        done = sum(record["measured_now"] for record in records)
        missing = dict.fromkeys(line for record in records for line in record["missing"])
        lines = part_lines(share, f"{done} new cells", (f"missing  {line}" for line in missing))
        echo("\n".join(map(plain, lines)))
    if not any(sheet.measured.lines for sheet in sheets):
        reason, *more = sheets[-1].measured.reason_lines() or ["the choice is empty"]
        also = f"; {len(more)} more reasons are listed above" if more else ""
        raise RunError(f"nothing could be run: {reason}{also}")


@paper.command(name="claims")
@_results_option
@with_output
def claims(out: Output, output: Path) -> None:
    """Check the paper's nine claims with the results in FOLDER."""
    from promptboost.compare.cells import ResultLog
    from promptboost.errors import RunError
    from promptboost.paper.claims import judge_claims
    from promptboost.paper.runner import CELLS, PaperCell

    log = ResultLog(output / CELLS, PaperCell) if output.is_dir() else None
    lines = [] if log is None else log.results(log)
    if not lines:
        raise RunError(
            f"{output} contains no results; compute some first: "
            f"{command_name()} paper run main -o {shlex.quote(str(output))} …"
        )
    judged = judge_claims(lines)
    rows = [[claim.claim, str(claim)] for claim in judged]
    record = {"claims": [asdict(claim) for claim in judged]}
    out.result(record, table(["claim", "result"], rows, (0, 1)))


def _request(
    out: Output, name: str, options: dict[str, Any]
) -> "tuple[PaperRequest, list[PaperPlan]]":
    """Return the request, and the plans with the choice applied."""
    from promptboost.data.benchmarks.registry import find_benchmark
    from promptboost.errors import SettingError
    from promptboost.paper.plans import PLANS, PaperChoice, chosen, find_plan
    from promptboost.paper.runner import PaperRequest

    output, data, pools, opening = map(options.pop, ("output", "data", "pools", "opening"))
    benchmarks = {text: find_benchmark(text) for text in options.pop("datasets")}
    datasets = tuple(text if b is None else b.name for text, b in benchmarks.items())
    choice = PaperChoice(datasets, **options)
    request = PaperRequest(output, data, pools, choice, **opening)
    plans = list(PLANS.values()) if name == "all" else [find_plan(name)]
    selected = [plan for plan in (chosen(plan, choice) for plan in plans) if plan.slots]
    if not selected:
        raise SettingError(
            f"nothing is left of {name}: it has {', '.join(plans[0].methods)} at "
            f"{', '.join(map(str, plans[0].shots))} shots"
        )
    return request, selected


def _record(sheet: "Sheet", files: list[Path]) -> dict[str, Any]:
    entry = sheet.plan.entry
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "at_hand": sheet.plan.at_hand,
        "numbers": [
            {"row": list(number.slot.row), "column": number.slot.column, **number.record()}
            for number in sheet.numbers
        ],
        "measured_now": sheet.measured.done,
        "missing": sheet.measured.reason_lines(),
        "files": files,
    }


def _sheet_text(sheet: "Sheet", files: list[Path]) -> str:
    head, rows = sheet.grid()
    entry = sheet.plan.entry
    lines = [
        f"{entry.name}: {entry.title} ({entry.place})",
        *([sheet.plan.at_hand] if sheet.plan.at_hand else []),
        "",
        table(head, rows, tuple(range(len(sheet.plan.entry.head)))),
        "",
        *sheet.notes(),
        *(f"missing  {plain(line)}" for line in sheet.measured.reason_lines()),
        f"cells    {len(sheet.measured.lines)}, {sheet.measured.done} of them new",
        f"files    {', '.join(plain(str(file)) for file in files) or 'none'}",
        "",
    ]
    return "\n".join(lines)
