"""``promptboost embed``."""

import click

from promptboost.cli.output import Output, device_option, speaks
from promptboost.config import DEFAULT_ENCODER, FitConfig


@click.command(name="embed")
@click.argument("data")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True)
@click.option(
    "--views",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help=f"Crops of each image; fit uses {FitConfig().views} of those it learns from.",
)
@device_option
@speaks
def command(out: Output, data: str, encoder: str, views: int, device: str | None) -> None:
    """Embed images ahead of time, so that later commands find the vectors in the store."""
    from promptboost.runs.fit import embed_data

    found = embed_data(data, encoder, views=views, progress=out.progress, device=device)
    for bad in found["bad_images"]:
        out.note(f"left out {bad['path']}: {bad['reason']}")
    out.result(
        found,
        f"{found['images']:,} images, {found['rows']:,} vectors, {found['seconds']:.1f} s",
    )
