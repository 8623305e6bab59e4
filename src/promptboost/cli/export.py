"""``promptboost export``, ``push`` and ``pull``: a run for other programs and on a model hub."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, plain, typed, with_output

_EXAMPLES = """
\b
promptboost export run -o exported
promptboost export run -o exported --onnx
promptboost export --onnx-encoder ViT-B-32/openai towers
"""


@click.command(name="export", epilog=_EXAMPLES)
@click.argument("run", type=opt.PATH, metavar="RUN|DIR")
@opt.output_option("Folder to write into.", required=False)
@click.option(
    "--onnx", is_flag=True, help="Also write image tower and classifier as one ONNX file."
)
@click.option(
    "--onnx-encoder",
    metavar="ENCODER",
    shell_complete=opt.encoder_names,
    help="Write this encoder, of open_clip or hf:, into DIR as two ONNX towers, for onnx:DIR.",
)
@opt.other_encoder_options
@click.option("--overwrite", is_flag=True, help="Write into a folder that contains files.")
@opt.opening_options
@with_output
def export(
    out: Output,
    run: Path,
    output: Path | None,
    onnx_encoder: str | None,
    opening: dict[str, Any],
    **options: Any,
) -> None:
    """Write a run for programs without promptboost, or an encoder for machines without torch.

    The class matrix with class names, as JSON, safetensors and npz; with --onnx also one file from pixels
    to predictions, which is first compared with the run on 100 images.

    With --onnx-encoder, two ONNX towers with tokenizer and preprocessing in the layout of Transformers.js,
    which are first compared with the encoder on images and texts.
    """
    from promptboost.run.export import export_encoder, export_run

    if onnx_encoder is not None:
        if output is not None:
            raise click.UsageError("--onnx-encoder writes into DIR: remove -o.")
        encoder = export_encoder(
            onnx_encoder, run, overwrite=options["overwrite"], progress=out.progress
        )
        lines = [plain(str(encoder.folder / name)) for name in encoder.files]
        lines += [
            f"{name} differ by at most {checked['largest_difference']:.1e}, smallest cosine "
            f"{checked['minimum_cosine']:.6f} ({checked['inputs']} compared)"
            for name, checked in encoder.checked.items()
        ]
        out.result(encoder, "\n".join(lines))
        return
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    exported = export_run(run, output, **options, **opening)
    lines = [plain(str(exported.folder / name)) for name in exported.files]
    if (checked := exported.checked) is not None:
        lines.append(
            f"the graph predicts the same on {checked['images']} images {checked['images_are']}; logits "
            f"differ by at most {checked['largest_difference']:.1e}"
        )
    out.result(exported, "\n".join(lines))


_endpoint_option = click.option(
    "--endpoint", help="URL of the hub. Default: $HF_ENDPOINT, or the public hub."
)


@click.command(name="push")
@opt.run_argument
@click.argument("repository")
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option(
    "--with-images",
    "images",
    is_flag=True,
    help="Also upload the report, thumbnails and names of images.",
)
@_endpoint_option
@with_output
def push(out: Output, run: Path, repository: str, **options: Any) -> None:
    """Upload a run to a model hub, as OWNER/NAME.

    Its text, vectors, results and card, but no images and no paths of this machine.
    """
    from promptboost.hub import push_run

    pushed = push_run(run, repository, progress=out.progress, **options)
    pull_command = typed("pull", pushed.repository, "-o", "RUN", "--revision", pushed.revision)
    text = f"{len(pushed.files)} files, revision {plain(pushed.revision)}\npull  {pull_command}"
    record = pushed._asdict()
    del record["run"]
    out.result(record, text)


@click.command(name="pull")
@click.argument("repository")
@opt.output_option("Folder of the run.")
@click.option("--revision", help="A commit, a tag or a branch. Default: the newest version.")
@opt.overwrite_option
@_endpoint_option
@with_output
def pull(out: Output, repository: str, output: Path, **options: Any) -> None:
    """Download a run from a model hub.

    Its files are checked before they are written, and nothing in them is executed. The revision is written
    into run.toml.
    """
    from promptboost.hub import pull_run

    pulled = pull_run(repository, output, progress=out.progress, **options)
    text = f"{len(pulled.files)} files, revision {plain(pulled.revision)}"
    out.result(pulled._asdict(), f"{text}\npredict  {typed('predict', str(pulled.run))} IMAGES")
