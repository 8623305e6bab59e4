"""``promptboost evaluate``, ``transfer`` and ``refit``: a run on other images, encoders, or other words."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import (
    allow_download_option,
    check_seen_with,
    embeds,
    image_sources,
    min_probability_option,
    placement,
    run_argument,
    seen_with_options,
    shard_options,
    shards_are_kept,
)
from promptboost.cli.output import (
    Output,
    evaluation_summary,
    plain,
    speaks,
    transfer_summary,
)


@click.command(name="evaluate")
@run_argument
@click.argument("data", required=False, shell_complete=image_sources)
@click.option(
    "--held-out",
    is_flag=True,
    help="Measure on the images that the fit held out, except a third that is kept back.",
)
@click.option(
    "--final",
    is_flag=True,
    help="With --held-out: on the third that was kept back. Do it once, at the end.",
)
@click.option(
    "-o",
    "output",
    metavar="FILE|URL",
    help="Write the prediction for each image into a .jsonl or .parquet file.",
)
@shard_options
@seen_with_options
@min_probability_option
@allow_download_option
@embeds
@speaks
def evaluate(
    out: Output,
    run: Path,
    data: str | None,
    held_out: bool,
    final: bool,
    encoders: tuple[str, ...],
    average: bool,
    text_only: bool,
    min_probability: float | None,
    opening: dict[str, Any],
    output: str | None,
    **options: Any,
) -> None:
    """Measure a run on other labeled images.

    DATA is as for fit. If it has a split called test, that is used, else all of it: on training images,
    figures are too good. With --held-out, DATA need only be given if the images of the fit were moved.
    Each look at held-out images is counted: after edits that were chosen by looking at them, they no
    longer show how good the run is on new images.

    With --on ray, --shard or --storage, images are read and embedded in shards, and DATA may also be a
    Parquet file, a tar, a folder of those, or a URL.
    """
    from promptboost.errors import SettingError

    if data is None and not held_out:
        raise SettingError("give images to measure on, or --held-out for those of the fit")
    if final and not held_out:
        raise SettingError("--final goes with --held-out")
    check_seen_with(encoders, average)
    place = placement(options)
    write = None
    if output is not None:
        from promptboost.distributed.answer_shards import check_output, write_predictions

        check_output(output)
        write = partial(write_predictions, output)
    common: dict[str, Any] = {
        "encoder": encoders or None,
        "average": average,
        "text_only": text_only,
        "min_probability": min_probability,
        "write": write,
        **opening,
    }
    if place is not None and place.in_shards:
        from promptboost.distributed.evaluate_shards import evaluate_in_shards

        if held_out or data is None:
            raise SettingError(
                "images held out are few: measure on them without --on and --storage"
            )
        with shards_are_kept(place):
            figures = evaluate_in_shards(run, data, place, say=out.note, **common)
    else:
        from promptboost.run.evaluate import evaluate_run

        figures = evaluate_run(run, data, held_out=held_out, final=final, **common)
    if "share" in figures:
        from promptboost.distributed.embed import part_done

        out.result(figures, lambda: plain(part_done(figures)))
        return
    for bad in figures["bad_images"]:
        out.note(f"left out {bad['path']}: {bad['reason']}")
    if figures["learned_from"] is None:
        out.note(
            "the run does not say which images it learned from: if these are among them, the "
            "figures are too good"
        )
    for line in figures["remarks"]:
        out.note(line)
    out.result(figures, lambda: evaluation_summary(figures))


@click.command(name="transfer")
@run_argument
@click.argument("data", required=False, shell_complete=image_sources)
@click.option("--encoder", required=True, help="Where to move it; see 'promptboost models'.")
@click.option("--text-only", is_flag=True, help="Learn no residual on the other encoder.")
@embeds
@speaks
def transfer(
    out: Output,
    run: Path,
    data: str | None,
    encoder: str,
    text_only: bool,
    opening: dict[str, Any],
) -> None:
    """Move a run to another encoder: the same text, other vectors, no sentence chosen anew.

    The residual is learned again from the images of the fit if they have not changed; else the text answers
    alone. The result is measured on the images that the run held out. Give DATA if they were moved, or to
    measure on others; copies of images that the run learned from are left out.
    """
    from promptboost.report import write_card, write_report
    from promptboost.run.transfer import transfer_run

    moved = transfer_run(
        run,
        encoder,
        data,
        text_only=text_only,
        finish=(write_report, write_card),
        **opening,
    )
    out.result(moved, lambda: transfer_summary(run, moved))


@click.command(name="refit")
@run_argument
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path),
    metavar="RUN2",
    help="Folder to write. Default: RUN itself.",
)
@click.option("--data", help="Where the images are now, or others. Default: those of the fit.")
@allow_download_option
@embeds
@speaks
def refit(
    out: Output,
    run: Path,
    output: Path | None,
    data: str | None,
    opening: dict[str, Any],
) -> None:
    """Learn and measure again what belongs to the text, after the text was edited.

    The text of RUN stays byte for byte. From the images of the fit come the residual beside it, the scale
    of probabilities, the figures and the report.
    """
    from promptboost.cli.fit import summary
    from promptboost.distributed.pool_folder import PoolExecutor
    from promptboost.report import write_card, write_report
    from promptboost.run.refit import refit_run

    results = refit_run(
        run,
        output,
        data,
        finish=(write_report, write_card),
        executor=PoolExecutor(),
        say=out.note,
        **opening,
    )
    place = output or run
    out.result({"run": str(place), **results.record()}, lambda: summary(place, results))
