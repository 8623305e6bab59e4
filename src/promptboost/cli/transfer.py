"""``promptboost transfer``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.output import Output, percent, plain, speaks, table

_LABELS = {
    "zero_shot": "zero-shot, one template",
    "template_mean": "mean of the templates",
    "pool_mean": "mean of the whole pool",
    "boosted": "boosted text of this run",
}


@click.command(name="transfer")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("data", required=False)
@click.option("--encoder", required=True, help="Where to move it; see 'promptboost models'.")
@click.option("--no-cache", is_flag=True, help="Compute all embeddings, and keep none.")
@speaks
def command(out: Output, run: Path, data: str | None, encoder: str, no_cache: bool) -> None:
    """Move a run to another encoder: the same text, other vectors, nothing learnt anew.

    Measures it on the pictures the run held out, where they still are. Give DATA if they were moved,
    or to measure on others.
    """
    from promptboost.report import write_card, write_report
    from promptboost.runs.transfer import transfer_run

    found = transfer_run(run, encoder, data, cache=not no_cache, progress=out.progress)
    write_report(run)
    write_card(run)
    out.result(found, lambda: _summary(run, found))


def _summary(run: Path, found: dict[str, Any]) -> str:
    heading = f"encoder {found['encoder']}, {found['pictures']} pictures that the run did not see"
    figures = table(["", "accuracy"], [[_LABELS[name], percent(found[name])] for name in _LABELS])
    if found["note"]:
        heading = f"{heading}\n{plain(found['note'])}"
    ending = f"promptboost predict {plain(str(run))} PICTURES --encoder {plain(found['encoder'])}"
    return f"{heading}\n\n{figures}\n\npredict  {ending}"
