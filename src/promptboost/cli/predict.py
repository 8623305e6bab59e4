"""``promptboost predict`` and ``suggest``."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import (
    UNUSABLE,
    Output,
    csv_line,
    echo,
    on_terminal,
    plain,
    prediction_table,
    with_output,
)

if TYPE_CHECKING:
    from promptboost.distributed.engine import Placement
    from promptboost.model.prediction import Prediction

_EXAMPLES = """
\b
promptboost predict run holiday/*.jpg --top-k 3
promptboost predict run holiday/ --format csv > predictions.csv
promptboost predict run holiday/ --min-probability 0.6
promptboost predict run holiday/ --reject --coverage 0.9
promptboost predict run holiday/ --class-priors estimate
promptboost predict run s3://bucket/photos -o predictions.parquet --on ray --storage s3://bucket/work
"""

#: Which predictions are counted under a rule.
_COUNTED = {"min_probability": "unsure", "accept": "rejected", "class_priors": "changed"}


@click.command(name="predict", epilog=_EXAMPLES)
@opt.run_argument
@click.argument("images", nargs=-1, required=True)
@click.option("--top-k", type=opt.COUNT, default=1, help="Classes to list per image.")
@opt.min_probability_option
@click.option("--reject", is_flag=True, help="Reject images that show none of the classes.")
@opt.share_option(
    "--accept", "With --reject: share of cross-validated training images to accept. Default: 0.95."
)
@opt.share_option(
    "--coverage", "Add the smallest set of classes that has the true one in this share of images."
)
@click.option(
    "--class-priors",
    metavar="equal|estimate|FILE",
    help="Adjust to the class frequencies of all IMAGES; FILE is JSON: {class: frequency}.",
)
@opt.layout_option
@click.option(
    "-o",
    "output",
    metavar="FILE|URL",
    help="Write predictions into a .jsonl or .parquet file, in shards, for many images.",
)
@opt.shard_options
@opt.encoder_options
@opt.opening_options
@with_output
def predict(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    top_k: int,
    layout: str,
    output: str | None,
    opening: dict[str, Any],
    **options: Any,
) -> int:
    """Predict the class of images.

    IMAGES are files and folders; with -o also manifests, Parquet files, tars and URLs. An image that
    cannot be read has an `error`; the exit code is 2 only if none can be read. The scale of
    probabilities was chosen on images not used for training. With --min-probability, predictions below
    it are "unsure": `predicted` is null (empty in CSV); `top` still lists the most probable classes.
    With --reject, so are images whose largest logit is smaller than that of most training images.

    With -o, the work is done in shards, one file each: on Ray with --on ray, in parts with --shard. An
    interrupted command continues where it stopped, and FILE is the same wherever the work was done.
    Class priors need all images at once: -o then works in one process, without shards.
    """
    from promptboost.progress import no_progress
    from promptboost.run.predict import open_classifier, predict_paths

    opt.check_encoders(options)
    rules = _rules(options)
    placement = opt.placement(options)
    if output is not None or (placement is not None and placement.in_shards):
        options |= {"top_k": top_k, "rules": rules}
        return _into_file(out, run, images, output, placement, **options, **opening)
    if layout != "table" and on_terminal():  # no bar between lines of output
        opening["progress"] = no_progress
    classifier = open_classifier(run, **options, **opening)
    counts: Counter[str] = Counter()

    def counted() -> "Iterator[Prediction]":
        for prediction in predict_paths(classifier, images, top_k, say=out.note, **rules):
            counts["read"] += prediction.error is None
            counts["unsure"] += prediction.unsure
            counts["rejected"] += prediction.rejected is True
            counts["changed"] += prediction.changed
            yield prediction

    counted_marks = [_COUNTED[name] for name in rules if name in _COUNTED]
    if out.json:
        record = {"run": str(run), "predictions": [each.record() for each in counted()], **rules}
        out.result(record | {mark: counts[mark] for mark in counted_marks}, "")
        return 0 if counts["read"] else UNUSABLE
    _print(counted(), layout, min(top_k, len(classifier.class_names)), rules)
    for mark in counted_marks:
        # Not on stdout, which other programs read line by line.
        out.note(f"{counts[mark]} of {counts['read']:,} images {mark}")
    return 0 if counts["read"] else UNUSABLE


def _rules(options: dict[str, Any]) -> dict[str, Any]:
    """Take the rules of decision that were given out of the options."""
    from promptboost.model.prediction import RULE_FIELDS

    reject = options.pop("reject")
    rules = {name: options.pop(name) for name in ("min_probability", *RULE_FIELDS)}
    if rules["accept"] is None and reject:
        rules["accept"] = 0.95
    rules["class_priors"] = _priors(rules["class_priors"])
    return {name: rule for name, rule in rules.items() if rule is not None}


def _print(
    predictions: "Iterator[Prediction]", layout: str, top_k: int, rules: dict[str, Any]
) -> None:
    """Print predictions as a table, CSV or JSON Lines."""
    from promptboost.model.prediction import RULE_FIELDS, csv_columns

    abstain = bool({"min_probability", "accept"} & rules.keys())
    if layout == "jsonl":
        for prediction in predictions:
            echo(prediction.to_json())
    elif layout == "csv":
        further = [field for rule, field in RULE_FIELDS.items() if rule in rules]
        columns = csv_columns(top_k, abstain=abstain, further=further)
        csv_line(columns)
        for prediction in predictions:
            csv_line(prediction.cells(columns))
    else:
        echo(prediction_table(predictions, abstain=abstain))


def _priors(text: str | None) -> Any:
    """Return class priors, read from a file unless they are named."""
    from promptboost.errors import SettingError
    from promptboost.io import read_json

    if text is None or text in ("equal", "estimate"):
        return text
    if not Path(text).exists():
        raise SettingError(
            f"--class-priors {text}: give equal, estimate, or a JSON file that exists"
        )
    priors = read_json(text)
    if not isinstance(priors, dict):
        raise SettingError(f"{text}: expected a JSON object of class names and their frequencies")
    return priors


def _into_file(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    output: str | None,
    placement: "Placement | None",
    **options: Any,
) -> int:
    from promptboost.distributed.answer_shards import predict_in_shards
    from promptboost.distributed.embed import part_done
    from promptboost.distributed.engine import Placement
    from promptboost.errors import SettingError, count

    if output is None:
        raise SettingError("predictions in shards need a file: add -o FILE.jsonl or FILE.parquet")
    adjusts = "class_priors" in options["rules"]
    if adjusts and placement is not None and placement.in_shards:
        raise SettingError("--class-priors needs all images at once, without shards")
    with opt.resumable_shards(Placement(storage=None if adjusts else output)):
        record = predict_in_shards(
            run, images, output, placement or Placement(), say=out.note, **options
        )
    if record["share"]:
        text = part_done(record)
    else:
        predicted = record["images"] - record["errors"]
        text = f"{predicted:,} of {count(record['images'], 'image')} predicted: {output}"
        if record["errors"]:
            text += f"; {record['errors']:,} could not be read, see their `error`"
        if adjusts:
            text += f"; adjusted to class priors: {record['changed']:,} changed, see `unadjusted`"
    out.result(record, plain(text))
    return 0 if record["share"] or record["images"] > record["errors"] else UNUSABLE


_SUGGEST_EXAMPLES = """
\b
promptboost suggest run unlabeled/ -n 20
promptboost suggest run unlabeled/ --json
"""


@click.command(name="suggest", epilog=_SUGGEST_EXAMPLES)
@opt.run_argument
@click.argument("images", nargs=-1, required=True)
@click.option("-n", "number", type=opt.COUNT, default=20, show_default=True, help="Images to list.")
@opt.data_option
@opt.opening_options
@with_output
def suggest(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    number: int,
    data: str | None,
    opening: dict[str, Any],
) -> None:
    """List the images to label next.

    IMAGES are files and folders. The list is balanced over the predicted classes and spread over the
    images; it leaves out the images of the run. Put each image into the folder of its class and fit
    again, or label them in the browser: workbench RUN --unlabeled FOLDER.
    """
    from promptboost.run.predict import open_classifier
    from promptboost.run.run_folder import RunFolder
    from promptboost.run.suggestion import suggest_images

    folder = RunFolder(run)
    folder.check_finished()
    classifier, progress = open_classifier(run, **opening), opening["progress"]
    chosen = suggest_images(folder, classifier, images, number, source=data, progress=progress)
    if out.json:
        out.result({"run": str(run), "images": [each.record() for each in chosen]}, "")
    elif chosen:
        echo(prediction_table(chosen, abstain=False))
    else:
        out.note("no images to label: the run has all of them, or they cannot be read")
