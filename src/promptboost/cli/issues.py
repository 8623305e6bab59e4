"""``promptboost issues``: the images of a run that somebody should look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import (
    allow_download_option,
    embeds,
    image_sources,
    layout_option,
    run_argument,
)
from promptboost.cli.output import (
    Output,
    csv_line,
    echo,
    json_line,
    percent,
    plain,
    speaks,
    table,
)

if TYPE_CHECKING:
    from promptboost.run.findings import Finding, Issues

_EXAMPLES = """
\b
promptboost issues run
promptboost issues run --format csv > look.csv
promptboost issues run moved/photos --limit 10
"""
_COLUMNS = ("kind", "image", "split", "label", "suggested", "probability", "score", "other", "why")


@click.command(name="issues", epilog=_EXAMPLES)
@run_argument
@click.argument("data", required=False, shell_complete=image_sources)
@layout_option
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="The first N of each kind, fewer or more than should be looked at. Default: just those.",
)
@allow_download_option
@embeds
@speaks
def issues(
    out: Output,
    run: Path,
    data: str | None,
    layout: str,
    limit: int | None,
    opening: dict[str, Any],
) -> None:
    """List images to look at: labels that are probably wrong, copies, outliers.

    Images that the run learned from and those it held out are judged alike, each without its own label,
    by words and by the other images. Of each kind the most suspicious come first, and only as many as
    should be looked at, unless --limit asks for more. Give DATA if the images were moved. The report of
    the run shows the first ones.
    """
    import msgspec

    from promptboost.errors import RunError
    from promptboost.progress import no_progress
    from promptboost.quality.issues import inspect_issues, write_issues
    from promptboost.report import write_card, write_report

    inspected = inspect_issues(
        run,
        data,
        limit=limit,
        **opening | ({} if layout == "table" else {"progress": no_progress}),
    )
    found = inspected.issues
    shown = found.first(limit)
    try:
        write_issues(run, inspected, (write_report, write_card))
    except (OSError, RunError) as error:  # a run of somebody else, such as one on a read-only disk
        out.note(f"not written into the run: {error}")
    if out.json:
        out.result({**msgspec.to_builtins(found), "findings": msgspec.to_builtins(shown)}, "")
    elif layout == "jsonl":
        for item in shown:
            echo(json_line(msgspec.to_builtins(item)))
    elif layout == "csv":
        csv_line(_COLUMNS)
        for item in shown:
            csv_line([_cell(getattr(item, column)) for column in _COLUMNS])
    else:
        echo(_text(run, found, shown))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _text(run: Path, found: "Issues", shown: "tuple[Finding, ...]") -> str:
    from promptboost.quality.issues import summary_line
    from promptboost.run.findings import KINDS

    parts = [summary_line(found)]
    for kind, title in KINDS.items():
        items = [item for item in shown if item.kind == kind]
        if not items:
            continue
        left = found.to_look_at[kind] - len(items)
        more = f"; {left:,} more without --limit" if left > 0 else ""
        rows = [[item.image, item.split, item.label, *_verdict(item)] for item in items]
        heading = f"{title}: {found.to_look_at[kind]:,} to look at{more}"
        headers = ["image", "split", "label", "suggested", "probability", "why"]
        parts.append(f"{heading}\n" + table(headers, rows, left=(0, 1, 2, 3, 5)))
    if not shown:
        parts.append("nothing to look at")
    else:
        parts.append(f"report  {plain(str(run / 'report.html'))}")
    return "\n\n".join(parts)


def _verdict(item: "Finding") -> list[str]:
    chance = "" if item.probability is None else percent(item.probability)
    return [item.suggested or "", chance, item.why]
