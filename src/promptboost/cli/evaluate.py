"""``promptboost evaluate``."""

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

_LABELS = {"zero_shot": "zero-shot", "boosted": "boosted"}


@click.command(name="evaluate")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("data")
@click.option("--encoder", help="See with another encoder than the run was fitted on.")
@no_cache_option
@device_option
@speaks
def command(
    out: Output, run: Path, data: str, encoder: str | None, no_cache: bool, device: str | None
) -> None:
    """Measure a run on other labelled images.

    DATA is as for fit. If it has a split called test, that is used, else all of it: images that
    the run learnt from would flatter it.
    """
    from promptboost.runs.evaluate import evaluate_run

    found = evaluate_run(
        run, data, encoder=encoder, cache=not no_cache, progress=out.progress, device=device
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
