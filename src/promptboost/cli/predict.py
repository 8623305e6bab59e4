"""``promptboost predict``."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import (
    allow_download_option,
    check_seen_with,
    embeds,
    run_argument,
    seen_with_options,
)
from promptboost.cli.output import (
    JOINERS,
    UNUSABLE,
    Output,
    echo,
    json_line,
    percent,
    plain,
    speaks,
    table,
)

if TYPE_CHECKING:
    from promptboost.runs.predict import Prediction

_EXAMPLES = """
\b
promptboost predict run holiday/*.jpg --top-k 3
promptboost predict run holiday/ --format csv > answers.csv
"""


@click.command(name="predict", epilog=_EXAMPLES)
@run_argument
@click.argument("images", nargs=-1, required=True)
@click.option("--top-k", type=click.IntRange(min=1), default=1, help="Answers for each image.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
)
@seen_with_options
@allow_download_option
@embeds
@speaks
def predict(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    top_k: int,
    layout: str,
    encoders: tuple[str, ...],
    ensemble: bool,
    text_only: bool,
    allow_download: bool,
    no_cache: bool,
    device: str | None,
) -> int:
    """Tell what images show.

    IMAGES are files and folders. An image that cannot be read has a line that says why; the exit
    code is 2 only if none can be read. The scale of probabilities was chosen by the fit, on images
    set aside.
    """
    from promptboost.runs.predict import Predictor

    check_seen_with(encoders, ensemble)
    progress = out.progress and layout == "table"
    predictor = Predictor.open(
        run,
        encoder=encoders or None,
        average=ensemble,
        text_only=text_only,
        cache=not no_cache,
        progress=progress,
        device=device,
        allow_download=allow_download,
    )
    problems: list[str | None] = []

    def seen() -> "Iterator[Prediction]":
        for answer in predictor.predict(images, top_k):
            problems.append(answer.problem)
            yield answer

    if out.json:
        records = [_record(answer) for answer in seen()]
        out.result({"run": str(run), "predictions": records}, "")
    elif layout == "jsonl":
        for answer in seen():
            echo(json_line(_record(answer)))
    elif layout == "csv":
        _write_csv(seen(), min(top_k, len(predictor.classifier.class_names)))
    else:
        echo(_table(seen()))
    return 0 if None in problems else UNUSABLE


def _record(answer: "Prediction") -> dict[str, Any]:
    best = [{"class": name, "probability": chance} for name, chance in answer.best]
    first = best[0] if best else {"class": None, "probability": None}
    return {
        "picture": answer.image,
        "predicted": first["class"],
        "probability": first["probability"],
        "top": best,
        "problem": answer.problem,
    }


def _write_csv(answers: "Iterator[Prediction]", top_k: int) -> None:
    numbers = ["" if k == 0 else f"_{k + 1}" for k in range(top_k)]
    names = [f"{what}{n}" for n in numbers for what in ("predicted", "probability")]
    _write_line(["picture", *names, "problem"])
    for answer in answers:
        cells = [cell for name, chance in answer.best for cell in (name, f"{chance:.6f}")]
        cells += [""] * (2 * top_k - len(cells))
        _write_line([answer.image, *cells, answer.problem or ""])


def _write_line(cells: list[str]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(plain(cell, JOINERS) for cell in cells)
    echo(line.getvalue(), keep=JOINERS)


def _table(answers: "Iterator[Prediction]") -> str:
    rows = []
    for answer in answers:
        best = ", ".join(f"{name} {percent(chance)}" for name, chance in answer.best)
        rows.append([answer.image, best if answer.problem is None else f"! {answer.problem}"])
    return table(["image", "answer"], rows, left=(0, 1))
