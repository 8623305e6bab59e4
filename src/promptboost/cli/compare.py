"""``promptboost compare``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, part_lines, plain, table, with_output
from promptboost.config import FitConfig
from promptboost.errors import command_name

if TYPE_CHECKING:
    from promptboost.compare.cells import CompareRequest
    from promptboost.compare.compare import Compared

_EXAMPLES = """
\b
promptboost compare my-images -o comparison
promptboost compare emoji -o comparison --methods logistic,promptboost --shots 1,4,16
promptboost compare oxford_pets:data/oxford_pets -o pets --prompts pets.jsonl --methods all
promptboost compare emoji -o comparison --methods "tpb?rounds=5,promptboost" --transfer conse:lite2
promptboost compare emoji -o comparison --on ray
"""


@click.command(name="compare", epilog=_EXAMPLES)
@click.argument("data", required=False, type=click.Path())
@opt.output_option(
    "Folder of the results. Existing results are not computed again.",
    required=False,
    metavar="FOLDER",
)
@click.option(
    "--methods",
    type=opt.Methods(),
    help="Names, possibly with settings as in tpb?rounds=5; package.module:Class for your own; or all. "
    "Default: those that take seconds.",
)
@opt.default_option("--shots", opt.Numbers(), "1,2,4,8,16", "Training images per class.")
@opt.default_option("--seeds", opt.Numbers(), "1,2,3", "Random draws of these images.")
@click.option(
    "--uneven",
    is_flag=True,
    help="Give classes 1 to SHOTS training images, in geometric progression and random order.",
)
@opt.encoder_option("Encoder to fit with.")
@click.option("--transfer", type=opt.Names(), default="", help="Encoders to transfer to.")
@opt.config_options(("prompts", "templates", "concatenate", "views", "view_scale"))
@click.option("--list", "only_list", is_flag=True, help="List the available methods and exit.")
@opt.embedding_options
@opt.on_options
@with_output
def compare(
    out: Output,
    data: str | None,
    output: Path | None,
    methods: tuple[str, ...] | None,
    shots: tuple[int, ...],
    seeds: tuple[int, ...],
    uneven: bool,
    encoder: str | None,
    transfer: tuple[str, ...],
    only_list: bool,
    opening: dict[str, Any],
    **settings: Any,
) -> None:
    """Compare methods on the same images, draws and embeddings.

    DATA is as for fit. Results are stored in FOLDER as they are computed: the same command resumes an
    interrupted comparison, and with more methods, shots or seeds computes only the new ones. FOLDER also
    gets a CSV file, a page of tables and a figure. With --on ray, many processes share the fits, on all
    machines of a cluster, which must share DATA and FOLDER.
    """
    from promptboost.compare.cells import DEFAULT_METHODS, CompareRequest
    from promptboost.compare.compare import compare, write_results
    from promptboost.errors import SettingError

    if only_list:
        _list(out)
        return
    if data is None or output is None:
        example = shlex.join([data or "my-images", "-o", str(output or "comparison")])
        raise SettingError(f"images and a folder are needed: {command_name()} compare {example}")
    placement = opt.placement(settings)
    request = CompareRequest(
        data,
        output,
        DEFAULT_METHODS if methods is None else methods,
        shots,
        seeds,
        encoder or opt.default_encoder(out),
        transfer,
        FitConfig().merged({k: v for k, v in settings.items() if v is not None}),
        uneven=uneven,
        **opening,
    )
    with opt.resumable():
        compared = compare(request, out.note, placement)
    if placement is not None and placement.share is not None:
        done = f"{len(compared.lines)} cells in {output}"
        record = {"shard": str(placement.share), "cells": len(compared.lines)}
        lines = part_lines(placement.share, done, _failures(compared.failed))
        out.result({**record, "failed": compared.failed}, "\n".join(map(plain, lines)))
    else:
        files: list[Path] = []
        try:
            files = write_results(request, compared)
        except OSError as error:  # such as a read-only folder
            compared.failed.append(f"no tables in {output}: {error.strerror or error}")
        record = {
            "results": compared.lines,
            "failed": compared.failed,
            "overlap": compared.overlap_records(),
            "files": files,
        }
        out.result(record, lambda: _tables(request, compared, files))
    if compared.failed:
        raise SystemExit(1)


def _failures(failed: list[str]) -> list[str]:
    """Return one line for each reason, with the first of its failures."""
    by_reason: dict[str, list[str]] = {}
    for line in failed:
        cell, _, reason = line.partition(": ")
        by_reason.setdefault(reason, []).append(cell)
    return [
        f"failed   {cells[0]}{f' and {len(cells) - 1} more' if len(cells) > 1 else ''}: {reason}"
        for reason, cells in by_reason.items()
    ]


def _list(out: Output) -> None:
    from promptboost.methods.registry import METHODS

    labels = {name: record.label for name, record in METHODS.items()}
    rows = [list(pair) for pair in labels.items()]
    out.result(labels, table(["method", "description"], rows, left=(0, 1)))


def _tables(request: "CompareRequest", compared: "Compared", files: list[Path]) -> str:
    from promptboost.compare import summary

    parts: list[str] = []
    for encoder in dict.fromkeys(line["on"] for line in compared.lines):
        shown = summary.curves(compared.lines, encoder)
        transferred = bool(shown[0].via)
        rows = list(summary.rows(shown, request.shots, "{}*", "{} "))
        headers = ["", *(f"{k} shots " if k > 1 else "1 shot " for k in request.shots)]
        headers += ["refit", "predict", "transfer"] if transferred else ["fit", "predict"]
        learned = f"fitted on {request.encoder}, measured " if transferred else ""
        left = (0, len(headers) - 1) if transferred else (0,)
        title = plain(f"accuracy in percent, {learned}on {encoder}")
        parts += [title, table(headers, rows, left=left), ""]
    draws = len(request.seeds)
    spread = f"mean ± standard deviation over {draws} draws" if draws > 1 else "one draw"
    parts.append(
        f"{spread}; * best of the column; fit: with the most shots, from embeddings; predict: one image, "
        "from file to prediction"
    )
    parts += [plain(line) for line in summary.unseen_lines(compared.lines)]
    parts += map(plain, _failures(compared.failed))
    if files:
        parts.append(f"files    {', '.join(plain(str(file)) for file in files)}")
    return "\n".join(parts)
