"""``promptboost compare``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import (
    Methods,
    Names,
    Numbers,
    config_options,
    default_encoder,
    embeds,
    encoder_option,
    image_sources,
    on_options,
    placement,
)
from promptboost.cli.output import Interrupted, Output, plain, speaks, table
from promptboost.config import FitConfig
from promptboost.errors import command_name

if TYPE_CHECKING:
    from promptboost.compare.cells import CompareRequest
    from promptboost.compare.compare import Compared
    from promptboost.distributed.engine import Share

_EXAMPLES = """
\b
promptboost compare my-images -o comparison
promptboost compare emoji -o comparison --methods logistic,promptboost --shots 1,4,16
promptboost compare oxford_pets:data/oxford_pets -o pets --prompts pets.jsonl --methods all
promptboost compare emoji -o comparison --methods "tpb?rounds=5,promptboost" --transfer conse:lite2
promptboost compare emoji -o comparison --on ray
"""


@click.command(name="compare", epilog=_EXAMPLES)
@click.argument("data", required=False, shell_complete=image_sources)
@click.option(
    "-o",
    "--output",
    "out_folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where results are kept, and found again.",
)
@click.option(
    "--methods",
    type=Methods(),
    help="Names, perhaps with settings as in tpb?rounds=5; package.module:Class for your own; or all. "
    "Default: those that take seconds.",
)
@click.option(
    "--shots",
    type=Numbers(),
    default="1,2,4,8,16",
    show_default=True,
    help="Images of each class to learn from.",
)
@click.option(
    "--seeds", type=Numbers(), default="1,2,3", show_default=True, help="Draws of these images."
)
@encoder_option("Model to learn with.")
@click.option(
    "--transfer", type=Names(), default="", help="Other models to carry what was learned to."
)
@config_options(("prompts", "templates", "concatenate", "views", "view_scale"))
@click.option("--list", "only_list", is_flag=True, help="Say which methods there are.")
@embeds
@on_options
@speaks
def compare(
    out: Output,
    data: str | None,
    out_folder: Path | None,
    methods: tuple[str, ...] | None,
    shots: tuple[int, ...],
    seeds: tuple[int, ...],
    encoder: str | None,
    transfer: tuple[str, ...],
    only_list: bool,
    opening: dict[str, Any],
    **words: Any,
) -> None:
    """Compare methods on the same images, draws and embeddings.

    DATA is as for fit. FOLDER keeps every result as soon as it is there: stop it at any time, and the
    same command goes on; with more methods, shots or seeds it does only what is new. It also gets a
    CSV file, a page of tables and a figure of what the command asks for. With --on ray the fits are done
    by many processes, on all machines of a cluster, which must share DATA and FOLDER.
    """
    from promptboost.compare.cells import DEFAULT_METHODS, CompareRequest
    from promptboost.compare.compare import compare, write_results
    from promptboost.errors import SettingError

    if only_list:
        _list(out)
        return
    if data is None or out_folder is None:
        lacking = [] if data is not None else ["what to compare on"]
        lacking += [] if out_folder is not None else ["where to keep the results"]
        shown = shlex.join([data or "my-images", "-o", str(out_folder or "comparison")])
        raise SettingError(f"say {', and '.join(lacking)}: {command_name()} compare {shown}")
    place = placement(words)
    request = CompareRequest(
        data,
        out_folder,
        DEFAULT_METHODS if methods is None else methods,
        shots,
        seeds,
        encoder or default_encoder(out),
        transfer,
        FitConfig().merged({name: value for name, value in words.items() if value is not None}),
        opening["cache"],
        out.progress,
        opening["device"],
    )
    try:
        compared = compare(request, out.note, place)
    except KeyboardInterrupt:
        raise Interrupted("the same command again; what is done is kept") from None
    if place is not None and place.share is not None:
        _tell_part(out, place.share, request, compared)
        return
    files: list[Path] = []
    try:
        files = write_results(request, compared)
    except OSError as error:  # the results are there all the same: a folder of somebody else's
        compared.failed.append(f"no tables in {out_folder}: {error.strerror or error}")
    out.result(
        {
            "results": compared.lines,
            "failed": compared.failed,
            "overlap": compared.overlap_records(),
            "files": [str(f) for f in files],
        },
        lambda: _tables(request, compared, files),
    )
    if compared.failed:
        raise SystemExit(1)


def _tell_part(
    out: Output, share: "Share", request: "CompareRequest", compared: "Compared"
) -> None:
    record = {"shard": str(share), "failed": compared.failed, "cells": len(compared.lines)}
    lines = [
        f"part {share} is done; {len(compared.lines)} cells are in {request.out}",
        *_failures(compared.failed),
        "when all parts are done, the same command with --merge in place of --shard writes the tables",
    ]
    out.result(record, lambda: "\n".join(map(plain, lines)))
    if compared.failed:
        raise SystemExit(1)


def _failures(failed: list[str]) -> list[str]:
    """Return a line for each reason, with the first that failed for it: one fault may fail them all."""
    by_reason: dict[str, list[str]] = {}
    for line in failed:
        what, _, why = line.partition(": ")
        by_reason.setdefault(why, []).append(what)
    return [
        f"failed   {what[0]}{f' and {len(what) - 1} more' if len(what) > 1 else ''}: {why}"
        for why, what in by_reason.items()
    ]


def _list(out: Output) -> None:
    from promptboost.methods.registry import METHODS

    labels = {name: record.label for name, record in METHODS.items()}
    rows = [list(item) for item in labels.items()]
    out.result(labels, lambda: table(["method", "what it is"], rows, left=(0, 1)))


def _tables(request: "CompareRequest", compared: "Compared", files: list[Path]) -> str:
    from promptboost.compare.summary import (
        best_at,
        curves,
        fit_time,
        how,
        predict_time,
        unseen_lines,
        written,
    )

    parts: list[str] = []
    for on in dict.fromkeys(line["on"] for line in compared.lines):
        drawn = curves(compared.lines, on)
        at_home = not drawn[0].via
        best = {k: best_at(drawn, k) for k in request.shots}
        rows = []
        for curve in drawn:
            marks = ("*" if curve.method in best[k] else " " for k in request.shots)
            figures = [
                written(curve, k) + mark for k, mark in zip(request.shots, marks, strict=True)
            ]
            times = [fit_time(curve), predict_time(curve)]
            rows.append([curve.method, *figures, *times, *([] if at_home else [how(curve)])])
        title = f"on {on}" if at_home else f"learned on {request.encoder}, measured on {on}"
        head = ["", *(f"{k} shots " if k > 1 else "1 shot " for k in request.shots)]
        head += ["fit", "an image"] if at_home else ["fit again", "an image", "how it got there"]
        left = (0,) if at_home else (0, len(head) - 1)
        parts += [plain(f"accuracy in per cent, {title}"), table(head, rows, left=left), ""]
    draws = len(request.seeds)
    spread = f"mean ± standard deviation over {draws} draws" if draws > 1 else "one draw"
    parts.append(
        f"{spread}; * best of its column; fit at the most shots, images embedded already; an image "
        "from file to answer"
    )
    parts += [plain(line) for line in unseen_lines(compared.lines)]
    parts += map(plain, _failures(compared.failed))
    if files:
        parts.append(f"files    {', '.join(plain(str(file)) for file in files)}")
    return "\n".join(parts)
