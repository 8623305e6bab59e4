"""``promptboost demo``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import threads_option
from promptboost.cli.output import Output, percent, plain, speaks, table
from promptboost.errors import command_name

_HEADS = {
    "zero_shot": "zero-shot",
    "template_mean": "templates",
    "pool_mean": "pool",
    "probe": "probe",
    "text": "text",
    "boosted": "text + residual",
    "target_zero_shot": "{} zero-shot",
    "target_boosted": "{} moved text",
}


@click.command(name="demo")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("promptboost-demo"),
    show_default=True,
    help="Folder of the run that is kept; an earlier one is replaced.",
)
@threads_option
@speaks
def demo(out: Output, folder: Path) -> None:
    """Fit emoji of 20 classes, move the text to another encoder, print a table.

    Accuracy on emoji that were never learnt from, at 1, 2, 4 and 8 shots, mean of three draws. A few
    minutes the first time; the second time all vectors are in the store.
    """
    from promptboost.report import write_card, write_report
    from promptboost.runs.demo import run_demo

    figures = run_demo(
        folder, progress=out.progress, say=out.note, finish=(write_report, write_card)
    )
    out.result(figures, lambda: _summary(figures))


def _summary(figures: dict[str, Any]) -> str:
    source, target = figures["encoders"]
    name = plain(command_name())
    rows = [
        [str(row["shots"]), *(percent(row[column]) for column in _HEADS)] for row in figures["rows"]
    ]
    return "\n".join(
        [
            f"accuracy on unseen {figures['data']}, mean of {len(figures['seeds'])} draws",
            f"learnt on {source}; moved: the same text on {target}, which learns nothing itself",
            "",
            table(["shots", *(head.format(target) for head in _HEADS.values())], rows),
            f"moved to {target}: another image net and another sentence encoder; docs/results.md "
            "says how much is kept and why",
            "",
            f"report   {plain(figures['report'])}",
            f"read it  {name} show {plain(figures['run'])}",
            f"yours    {name} fit FOLDER -o run    (one folder of images for each class)",
        ]
    )
