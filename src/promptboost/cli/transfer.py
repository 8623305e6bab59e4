"""``promptboost transfer``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.output import (
    Output,
    device_option,
    no_cache_option,
    percent,
    plain,
    speaks,
    table,
)
from promptboost.errors import command_name

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
@no_cache_option
@device_option
@speaks
def command(
    out: Output, run: Path, data: str | None, encoder: str, no_cache: bool, device: str | None
) -> None:
    """Move a run to another encoder: the same text, other vectors, nothing learnt anew.

    Measures it on the images the run held out, where they still are. Give DATA if they were moved,
    or to measure on others; those that the run learnt from are left out, whatever their names.
    """
    from promptboost.report import write_card, write_report
    from promptboost.runs.evaluate import transfer_run

    found = transfer_run(
        run, encoder, data, cache=not no_cache, progress=out.progress, device=device
    )
    write_report(run)
    write_card(run)
    out.result(found, lambda: _summary(run, found))


def _summary(run: Path, found: dict[str, Any]) -> str:
    heading = f"encoder {found['encoder']}"
    if found["images"]:
        heading += f", {found['images']} images, {found['images_are']}"
    figures = table(["", "accuracy"], [[_LABELS[name], percent(found[name])] for name in _LABELS])
    if found["note"]:
        heading = f"{heading}\n{plain(found['note'])}"
    ending = f"predict {plain(str(run))} PICTURES --encoder {plain(found['encoder'])}"
    return f"{heading}\n\n{figures}\n\npredict  {plain(command_name())} {ending}"
