"""``promptboost evaluate``, ``transfer`` and ``refit``: a run on other images, encoders or text."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, percent, plain, table, typed, with_output
from promptboost.errors import count


@click.command(name="evaluate")
@opt.run_argument
@click.argument("data", required=False, type=click.Path())
@click.option(
    "--held-out",
    is_flag=True,
    help="Measure on the held-out images of the fit, except the third that is kept back.",
)
@click.option(
    "--final",
    is_flag=True,
    help="With --held-out: measure on the third that was kept back. Use it once, at the end.",
)
@click.option(
    "-o",
    "output",
    metavar="FILE|URL",
    help="Write the prediction for each image into a .jsonl or .parquet file.",
)
@opt.shard_options
@opt.encoder_options
@opt.min_probability_option
@opt.opening_options
@with_output
def evaluate(
    out: Output,
    run: Path,
    data: str | None,
    held_out: bool,
    final: bool,
    output: str | None,
    opening: dict[str, Any],
    **options: Any,
) -> None:
    """Measure a run on other labeled images.

    DATA is as for fit; its test split is used if there is one, otherwise all of it. On training images,
    results are too good. With --held-out, give DATA only if the images of the fit were moved. The number
    of measurements on held-out images is recorded, because repeated editing against the same images
    overfits to them.

    With --on ray, --shard or --storage, images are read and embedded in shards, and DATA may also be a
    Parquet file, a tar, a folder of those, or a URL.
    """
    from promptboost.errors import SettingError

    if data is None and not held_out:
        raise SettingError("give images to measure on, or --held-out for those of the fit")
    if final and not held_out:
        raise SettingError("--final needs --held-out")
    opt.check_encoders(options)
    placement = opt.placement(options)
    options |= opening
    if output is not None:
        from promptboost.distributed.answer_shards import check_output, write_predictions

        check_output(output)
        options["write"] = partial(write_predictions, output)
    if placement is not None and placement.in_shards:
        from promptboost.distributed.answer_shards import evaluate_in_shards

        if held_out or data is None:
            raise SettingError("--held-out cannot be combined with --on and --storage")
        with opt.resumable_shards(placement):
            results = evaluate_in_shards(run, data, placement, say=out.note, **options)
    else:
        from promptboost.run.evaluate import evaluate_run

        results = evaluate_run(run, data, held_out=held_out, final=final, **options)
    if "share" in results:
        from promptboost.distributed.embed import part_done

        out.result(results, lambda: plain(part_done(results)))
        return
    out.note_bad_images(results["bad_images"])
    if results["learned_from"] is None:
        out.note(
            "the training images of the run are unknown; results on training images are too good"
        )
    for line in results["remarks"]:
        out.note(line)
    out.result(results, lambda: _evaluation_text(results))


def _evaluation_text(figures: Mapping[str, Any]) -> str:
    """Format the result of :func:`~promptboost.run.evaluate.evaluate_run`."""
    methods: Sequence[Mapping[str, Any]] = figures["methods"]
    accuracies = [
        [m["label"], percent(m["accuracy"]), percent(m["class_accuracy"])] for m in methods
    ]
    parts = [table(["", "accuracy", "mean of classes"], accuracies)]
    learned = figures["learned_from"]
    for method in methods:
        if method["unseen_accuracy"] is not None:
            images = "image" if learned == 1 else "images"
            unseen = f"{percent(method['unseen_accuracy'])} without the {learned} held-out {images}"
            parts[0] += f"\n{method['label']} {unseen} in the training set"
    if sure := figures.get("sure"):
        unsure = figures["images"] - sure["answered"]
        parts.append(
            f"boosted at {sure['min_probability']:g}: {percent(sure['accuracy'])} accuracy on "
            f"{percent(sure['coverage'])} of images (predicted {sure['answered']}, unsure {unsure})"
        )
    per_class = [
        [
            row["class"],
            str(row["count"]),
            *(percent(row["accuracy"][method["name"]]) for method in methods),
        ]
        for row in figures["per_class"]
    ]
    parts.append(table(["class", "images", *(method["label"] for method in methods)], per_class))
    heading = f"{figures['images']} images, "
    if held_out := figures.get("held_out"):
        final = held_out["part"] == "final"
        looks = held_out["final_looks" if final else "looks"]
        heading += "held out and kept back, " if final else "part of those held out, "
        heading += f"measured {count(looks, 'time')}, "
    return "\n\n".join([f"{heading}encoder {plain(figures['encoder'])}", *parts])


@click.command(name="transfer")
@opt.run_argument
@click.argument("data", required=False, type=click.Path())
@click.option("--encoder", required=True, help="The other encoder; see 'promptboost models'.")
@click.option("--text-only", is_flag=True, help="Learn no residual on the other encoder.")
@opt.embedding_options
@with_output
def transfer(
    out: Output, run: Path, data: str | None, encoder: str, text_only: bool, opening: dict[str, Any]
) -> None:
    """Move a run to another encoder: the same text with other vectors.

    The residual is learned again from the images of the fit if they have not changed; otherwise there is
    none. The result is measured on the held-out images of the run. Give DATA if they were moved, or to
    measure on others; copies of training images are left out.
    """
    from promptboost.run.transfer import transfer_run

    moved = transfer_run(run, encoder, data, text_only=text_only, **opening)
    out.result(moved, lambda: _transfer_text(run, moved))


def _transfer_text(run: Path, moved: Mapping[str, Any]) -> str:
    """Format the result of :func:`~promptboost.run.transfer.transfer_run`."""
    heading = f"encoder {plain(moved['encoder'])}"
    if moved["images"]:
        heading += f", {moved['images']} images, {moved['images_are']}"
    if moved["note"]:
        heading += f"\n{plain(moved['note'])}"
    accuracy, text = moved["accuracy"], "boosted text of this run"
    labels = {
        "zero-shot": "zero-shot, one template",
        "template-mean": "mean of the templates",
        "pool-mean": "mean of the whole pool",
        "text": text,
        "promptboost": "the same with a residual" if "text" in accuracy else text,
    }
    rows = [[label, percent(accuracy[name])] for name, label in labels.items() if name in accuracy]
    command = typed("predict", str(run), "IMAGES", "--encoder", moved["encoder"])
    return f"{heading}\n\n{table(['', 'accuracy'], rows)}\n\npredict  {command}"


@click.command(name="refit")
@opt.run_argument
@opt.output_option("Folder to write. Default: RUN itself.", required=False, metavar="RUN2")
@click.option("--data", help="Other images, or those of the fit if they were moved.")
@opt.opening_options
@with_output
def refit(
    out: Output, run: Path, output: Path | None, data: str | None, opening: dict[str, Any]
) -> None:
    """Learn residual and calibration again after the text was edited, and measure the run.

    The text of RUN is not changed. The images of the fit are used for the residual, the scale of
    probabilities, the results and the report.
    """
    from promptboost.cli.fit import summary
    from promptboost.distributed.pool_folder import PoolExecutor
    from promptboost.run.refit import refit_run

    results = refit_run(
        run,
        output,
        data,
        executor=PoolExecutor(),
        say=out.note,
        **opening,
    )
    target = output or run
    out.result({"run": target, **results.record()}, lambda: summary(target, results))
