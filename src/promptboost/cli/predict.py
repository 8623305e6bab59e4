"""``promptboost predict``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import (
    allow_download_option,
    check_seen_with,
    embeds,
    layout_option,
    min_probability_option,
    placement,
    run_argument,
    seen_with_options,
    shard_options,
    shards_are_kept,
)
from promptboost.cli.output import (
    UNUSABLE,
    Output,
    csv_line,
    echo,
    on_terminal,
    plain,
    prediction_table,
    speaks,
)

if TYPE_CHECKING:
    from promptboost.distributed.answer_shards import Answering
    from promptboost.distributed.engine import Placement
    from promptboost.model.prediction import Prediction

_EXAMPLES = """
\b
promptboost predict run holiday/*.jpg --top-k 3
promptboost predict run holiday/ --format csv > predictions.csv
promptboost predict run holiday/ --min-probability 0.6
promptboost predict run s3://bucket/photos -o predictions.parquet --on ray --storage s3://bucket/work
"""


@click.command(name="predict", epilog=_EXAMPLES)
@run_argument
@click.argument("images", nargs=-1, required=True)
@click.option("--top-k", type=click.IntRange(min=1), default=1, help="Classes to list per image.")
@min_probability_option
@layout_option
@click.option(
    "-o",
    "output",
    metavar="FILE|URL",
    help="Write predictions into a .jsonl or .parquet file, in shards: for many images.",
)
@shard_options
@seen_with_options
@allow_download_option
@embeds
@speaks
def predict(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    top_k: int,
    min_probability: float | None,
    layout: str,
    encoders: tuple[str, ...],
    average: bool,
    text_only: bool,
    opening: dict[str, Any],
    output: str | None,
    **options: Any,
) -> int:
    """Predict the class of images.

    IMAGES are files and folders; with -o also manifests, Parquet files, tars and URLs. An image that
    cannot be read has an `error`; the exit code is 2 only if none can be read. The scale of
    probabilities was chosen on images not used for training. With --min-probability, predictions below
    it are "unsure": `predicted` is null (empty in CSV); `top` still lists the most probable classes.

    With -o, the work is done in shards, one file each: on Ray with --on ray, in parts with --shard. An
    interrupted command continues where it stopped, and FILE is the same wherever the work was done.
    """
    from promptboost.errors import count
    from promptboost.model.prediction import csv_columns
    from promptboost.progress import no_progress
    from promptboost.run.predict import open_classifier, predict_paths

    check_seen_with(encoders, average)
    place = placement(options)
    if output is not None or (place is not None and place.in_shards):
        from promptboost.distributed.answer_shards import Answering

        return _in_shards(
            *(out, run, images, output, place),
            Answering(
                encoders=list(encoders),
                average=average,
                text_only=text_only,
                device=opening["device"],
                allow_download=opening["allow_download"],
                top_k=top_k,
                min_probability=min_probability,
            ),
        )
    # A bar would stand among lines that are shown as they come.
    if layout != "table" and on_terminal():
        opening["progress"] = no_progress
    classifier = open_classifier(
        run,
        encoder=encoders or None,
        average=average,
        text_only=text_only,
        **opening,
    )
    read, unsure = 0, 0
    abstain = min_probability is not None

    def counted() -> "Iterator[Prediction]":
        nonlocal read, unsure
        for prediction in predict_paths(classifier, images, top_k, min_probability or 0.0):
            read += prediction.error is None
            unsure += prediction.unsure
            yield prediction

    if out.json:
        records = [prediction.record() for prediction in counted()]
        record: dict[str, Any] = {"run": str(run), "predictions": records}
        if abstain:
            record |= {"min_probability": min_probability, "unsure": unsure}
        out.result(record, "")
    elif layout == "jsonl":
        for prediction in counted():
            echo(prediction.to_json())
    elif layout == "csv":
        columns = csv_columns(min(top_k, len(classifier.class_names)), abstain=abstain)
        csv_line(columns)
        for prediction in counted():
            csv_line(prediction.cells(columns))
    else:
        echo(prediction_table(counted(), abstain=abstain))
    if abstain and not out.json:
        # Not among the results, which other programs read line by line.
        out.note(f"{unsure} of {count(read, 'image')} unsure")
    return 0 if read else UNUSABLE


def _in_shards(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    output: str | None,
    place: "Placement | None",
    answering: "Answering",
) -> int:
    from promptboost.distributed.answer_shards import predict_in_shards
    from promptboost.distributed.embed import part_done
    from promptboost.distributed.engine import Placement
    from promptboost.errors import SettingError, count

    if output is None:
        raise SettingError(
            "predictions in shards go into a file: add -o FILE.jsonl or -o FILE.parquet"
        )
    with shards_are_kept(Placement(storage=output)):
        record = predict_in_shards(
            run,
            images,
            output,
            answering,
            place or Placement(),
            progress=out.progress,
            say=out.note,
        )
    if record["share"]:
        text = part_done(record)
    else:
        predicted = record["images"] - record["errors"]
        text = f"{predicted:,} of {count(record['images'], 'image')} predicted: {output}"
        if record["errors"]:
            text += f"; {record['errors']:,} could not be read, see their `error`"
    out.result(record, plain(text))
    return 0 if record["share"] or record["images"] > record["errors"] else UNUSABLE
