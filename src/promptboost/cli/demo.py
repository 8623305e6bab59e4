"""``promptboost demo``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import threads_option
from promptboost.cli.output import Output, percent, plain, speaks, table
from promptboost.errors import command_name

_ON_SOURCE = {
    "zero_shot": "zero-shot",
    "template_mean": "mean of the templates",
    "pool_mean": "mean of the whole pool",
    "probe": "logistic regression on the images",
    "text": "text",
    "boosted": "text + residual",
    "both_text": "text, learned on both",
    "both_boosted": "text + residual, learned on both",
}
_ON_TARGET = {
    "target_zero_shot": "zero-shot",
    "target_boosted": "text, learned on {source} and moved here",
    "target_both": "text, learned on both",
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
    """Fit emoji of 20 classes on one encoder and on two, move the text, print a table.

    Accuracy on emoji that were never learned from, at 1, 2, 4 and 8 shots, mean of three draws; on two
    encoders at once up to 4 shots. A few minutes the first time; the second time all vectors are in the
    store.
    """
    from promptboost.compare.demo import run_demo
    from promptboost.report import write_card, write_report

    figures = run_demo(
        folder, progress=out.progress, say=out.note, finish=(write_report, write_card)
    )
    out.result(figures, lambda: _summary(figures))


def _summary(figures: dict[str, Any]) -> str:
    from promptboost.compare.demo import VIEWS_ON_BOTH
    from promptboost.config import FitConfig

    source, target = figures["encoders"]
    name = plain(command_name())
    rows = figures["rows"]
    lines: list[list[str]] = []
    for encoder, labels in ((source, _ON_SOURCE), (target, _ON_TARGET)):
        lines.append([f"on {encoder}", *("" for _ in rows)])
        lines += [
            [f"  {label.format(source=source)}", *(percent(row[column]) for row in rows)]
            for column, label in labels.items()
        ]
    shots = [f"{row['shots']} shot{'s' * (row['shots'] > 1)}" for row in rows]
    return "\n".join(
        [
            f"accuracy on unseen {plain(figures['data'])}, mean of {len(figures['seeds'])} draws",
            "",
            table(["", *shots], lines),
            "",
            f"{plain(target)} has another image net and another sentence encoder. Text moves there as it",
            "is; a residual stays with its encoder. Learned on both, only wording that both understand",
            f"pays; to save time, with {VIEWS_ON_BOTH} crops of an image, not {FitConfig.views}, and few "
            "shots.",
            "",
            f"report   {plain(figures['report'])}",
            f"read it  {name} show {plain(figures['run'])}",
            f"yours    {name} fit FOLDER -o run    (one folder of images for each class)",
        ]
    )
