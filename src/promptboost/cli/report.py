"""``promptboost report``."""

from pathlib import Path

import click

from promptboost.cli.output import Output, plain, speaks


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@speaks
def command(out: Output, run: Path) -> None:
    """Write the report (report.html) and the model card (README.md) of a run again."""
    from promptboost.report import write_card, write_report
    from promptboost.runs.run_folder import RunFolder

    RunFolder(run).check_finished()
    report, card = write_report(run), write_card(run)
    out.result(
        {"report": str(report), "card": str(card)},
        f"report  {plain(str(report))}\ncard    {plain(str(card))}",
    )
