"""``promptboost evaluate`` and ``transfer``: a run on other images, or on another encoder."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import Output, percent, plain, speaks, table
from promptboost.errors import command_name

_LABELS = {"zero_shot": "zero-shot", "boosted": "boosted"}
_MOVED = {
    "zero_shot": "zero-shot, one template",
    "template_mean": "mean of the templates",
    "pool_mean": "mean of the whole pool",
    "boosted": "boosted text of this run",
}


@click.command(name="evaluate")
@run_argument
@click.argument("data")
@click.option("--encoder", help="See with another encoder than the run was fitted on.")
@allow_download_option
@embeds
@speaks
def evaluate(
    out: Output,
    run: Path,
    data: str,
    encoder: str | None,
    allow_download: bool,
    no_cache: bool,
    device: str | None,
) -> None:
    """Measure a run on other labelled images.

    DATA is as for fit. If it has a split called test, that is used, else all of it: images that
    the run learnt from would flatter it.
    """
    from promptboost.runs.evaluate import evaluate_run

    found = evaluate_run(
        run,
        data,
        encoder=encoder,
        cache=not no_cache,
        progress=out.progress,
        device=device,
        allow_download=allow_download,
    )
    for bad in found["bad_images"]:
        out.note(f"left out {bad['path']}: {bad['reason']}")
    if found["learnt_from"] is None:
        out.note(
            "the run does not say which images it learnt from: if these are among them, the "
            "figures flatter"
        )
    elif found["learnt_from"]:
        out.note(f"the run learnt from {found['learnt_from']} of these images: figures flatter")
    out.result(found, lambda: _summary(found))


def _summary(found: dict[str, Any]) -> str:
    methods = table(
        ["", "accuracy", "mean of classes"],
        [
            [_LABELS[m["name"]], percent(m["accuracy"]), percent(m["class_accuracy"])]
            for m in found["methods"]
        ],
    )
    classes = table(
        ["class", "images", "zero-shot", "boosted"],
        [
            [row["class"], str(row["count"]), percent(row["zero_shot"]), percent(row["boosted"])]
            for row in found["per_class"]
        ],
    )
    heading = f"{found['images']} images, encoder {plain(found['encoder'])}"
    return f"{heading}\n\n{methods}\n\n{classes}"


@click.command(name="transfer")
@run_argument
@click.argument("data", required=False)
@click.option("--encoder", required=True, help="Where to move it; see 'promptboost models'.")
@embeds
@speaks
def transfer(
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
    out.result(found, lambda: _moved_summary(run, found))


def _moved_summary(run: Path, found: dict[str, Any]) -> str:
    heading = f"encoder {plain(found['encoder'])}"
    if found["images"]:
        heading += f", {found['images']} images, {found['images_are']}"
    figures = table(["", "accuracy"], [[_MOVED[name], percent(found[name])] for name in _MOVED])
    if found["note"]:
        heading = f"{heading}\n{plain(found['note'])}"
    ending = f"predict {plain(str(run))} IMAGES --encoder {plain(found['encoder'])}"
    return f"{heading}\n\n{figures}\n\npredict  {plain(command_name())} {ending}"
