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
    json_line,
    on_terminal,
    percent,
    plain,
    speaks,
    table,
)

if TYPE_CHECKING:
    from promptboost.distributed.answer_shards import Answering
    from promptboost.distributed.engine import Placement
    from promptboost.run.predict import Prediction

_EXAMPLES = """
\b
promptboost predict run holiday/*.jpg --top-k 3
promptboost predict run holiday/ --format csv > answers.csv
promptboost predict run holiday/ --min-probability 0.6
promptboost predict run s3://bucket/photos -o answers.parquet --on ray --storage s3://bucket/work
"""


@click.command(name="predict", epilog=_EXAMPLES)
@run_argument
@click.argument("images", nargs=-1, required=True)
@click.option("--top-k", type=click.IntRange(min=1), default=1, help="Answers for each image.")
@min_probability_option
@layout_option
@click.option(
    "-o",
    "output",
    metavar="FILE|URL",
    help="Write answers into a .jsonl or .parquet file, in shards: for many images.",
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
    allow_download: bool,
    no_cache: bool,
    device: str | None,
    output: str | None,
    **options: Any,
) -> int:
    """Predict the class of images.

    IMAGES are files and folders; with -o also manifests, Parquet files, tars and URLs. An image that
    cannot be read has a line that says why; the exit code is 2 only if none can be read. The scale of
    probabilities was chosen by the fit, on images set aside. With --min-probability, images below it are
    "unsure": `predicted` is null (empty in CSV), and `best` is the most probable class.

    With -o, the work is done in shards, one file each: on Ray with --on ray, in parts with --shard. An
    interrupted command continues where it stopped, and FILE is the same wherever the work was done.
    """
    from promptboost.errors import count
    from promptboost.progress import no_progress
    from promptboost.run.predict import Predictor, answer_record

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
                device=device,
                allow_download=allow_download,
                top_k=top_k,
                min_probability=min_probability,
            ),
        )
    # A bar would stand among lines that are shown as they come.
    progress = out.progress if layout == "table" or not on_terminal() else no_progress
    predictor = Predictor.open(
        run,
        encoder=encoders or None,
        average=average,
        text_only=text_only,
        cache=not no_cache,
        progress=progress,
        device=device,
        allow_download=allow_download,
    )
    read, unsure = 0, 0
    asked = min_probability is not None

    def seen() -> "Iterator[Prediction]":
        nonlocal read, unsure
        for answer in predictor.predict(images, top_k, min_probability or 0.0):
            read += answer.problem is None
            unsure += answer.unsure
            yield answer

    if out.json:
        records = [answer_record(answer, asked) for answer in seen()]
        record: dict[str, Any] = {"run": str(run), "predictions": records}
        if asked:
            record |= {"min_probability": min_probability, "unsure": unsure}
        out.result(record, "")
    elif layout == "jsonl":
        for answer in seen():
            echo(json_line(answer_record(answer, asked)))
    elif layout == "csv":
        _write_csv(seen(), min(top_k, len(predictor.classifier.class_names)), asked)
    else:
        echo(_table(seen(), asked))
    if asked and not out.json:
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
        raise SettingError("answers of shards go into a file: add -o FILE.jsonl or -o FILE.parquet")
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
        answered = record["images"] - record["problems"]
        text = f"{answered:,} of {count(record['images'], 'image')} answered: {output}"
        if record["problems"]:
            text += f"; {record['problems']:,} could not be read, their lines say why"
    out.result(record, plain(text))
    return 0 if record["share"] or record["images"] > record["problems"] else UNUSABLE


def _write_csv(answers: "Iterator[Prediction]", top_k: int, asked: bool) -> None:
    numbers = ["" if k == 0 else f"_{k + 1}" for k in range(top_k)]
    names = [f"{what}{n}" for n in numbers for what in ("predicted", "probability")]
    csv_line(["picture", *names, "problem", *(("unsure", "best") if asked else ())])
    for answer in answers:
        cells = [cell for name, chance in answer.best for cell in (name, f"{chance:.6f}")]
        cells += [""] * (2 * top_k - len(cells))
        best = cells[0]
        if answer.unsure:
            cells[0] = ""
        more = (str(answer.unsure).lower(), best) if asked else ()
        csv_line([answer.image, *cells, answer.problem or "", *more])


def _table(answers: "Iterator[Prediction]", asked: bool) -> str:
    rows = []
    for answer in answers:
        best = ", ".join(f"{name} {percent(chance)}" for name, chance in answer.best)
        said = best if answer.problem is None else f"! {answer.problem}"
        # A column of its own: no name of a class can stand there.
        mark = ["unsure" if answer.unsure else ""] if asked else []
        rows.append([answer.image, *mark, said])
    headers = ["image", "", "best guess"] if asked else ["image", "answer"]
    return table(headers, rows, left=range(len(headers)))
