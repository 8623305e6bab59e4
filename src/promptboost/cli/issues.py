"""``promptboost issues``: images with probable problems."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import (
    Output,
    csv_line,
    echo,
    json_line,
    percent,
    plain,
    table,
    with_output,
)

if TYPE_CHECKING:
    from promptboost.run.findings import Finding, Issues

_EXAMPLES = """
\b
promptboost issues run
promptboost issues run --format csv > look.csv
promptboost issues run moved/photos --limit 10
"""
_SPLITS = {"learned": "training", "held-out": "held-out"}
_COLUMNS = ("kind", "image", "split", "label", "suggested", "probability", "score", "other", "why")


@click.command(name="issues", epilog=_EXAMPLES)
@opt.run_argument
@click.argument("data", required=False, type=click.Path())
@opt.layout_option
@click.option(
    "--limit",
    type=opt.COUNT,
    metavar="N",
    help="Number of images of each kind. Default: those worth looking at.",
)
@opt.opening_options
@with_output
def issues(
    out: Output,
    run: Path,
    data: str | None,
    layout: str,
    limit: int | None,
    opening: dict[str, Any],
) -> None:
    """List images to review: labels that are probably wrong, copies, outliers.

    Training images and held-out images are checked alike, each without its own label, with the text and
    with the other images. The most suspicious of each kind come first, and only those worth looking at
    are listed, unless --limit is given. Give DATA if the images were moved. The report of the run shows
    the first ones.
    """
    from promptboost.errors import RunError
    from promptboost.progress import no_progress
    from promptboost.quality.issues import inspect_issues, write_issues

    if layout != "table":
        opening["progress"] = no_progress
    all_issues, task = inspect_issues(run, data, limit=limit, **opening)
    shown = all_issues.first(limit)
    try:
        write_issues(run, all_issues, task)
    except (OSError, RunError) as error:  # such as a read-only disk
        out.note(f"the run could not be updated: {error}")
    if out.json:
        import msgspec

        out.result({**msgspec.to_builtins(all_issues), "findings": shown}, "")
    elif layout == "jsonl":
        for finding in shown:
            echo(json_line(finding))
    elif layout == "csv":
        csv_line(_COLUMNS)
        for finding in shown:
            csv_line([_cell(getattr(finding, column)) for column in _COLUMNS])
    else:
        echo(_text(run, all_issues, shown))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _text(run: Path, all_issues: "Issues", shown: "tuple[Finding, ...]") -> str:
    from promptboost.quality.issues import summary_line
    from promptboost.run.findings import KINDS

    parts = [summary_line(all_issues)]
    for kind, title in KINDS.items():
        findings = [finding for finding in shown if finding.kind == kind]
        if not findings:
            continue
        total = all_issues.to_look_at[kind]
        more = f"; {total - len(findings):,} more without --limit" if total > len(findings) else ""
        headers = ["image", "split", "label", "suggested", "probability", "why"]
        rows = [
            [
                *(f.image, _SPLITS[f.split], f.label, f.suggested or ""),
                "" if f.probability is None else percent(f.probability),
                f.why,
            ]
            for f in findings
        ]
        parts.append(
            f"{title}: {total:,} to review{more}\n{table(headers, rows, left=(0, 1, 2, 3, 5))}"
        )
    parts.append(f"report  {plain(str(run / 'report.html'))}" if shown else "nothing to review")
    return "\n\n".join(parts)
