"""``promptboost export``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import Output, plain, speaks

_EXAMPLES = """
\b
promptboost export run -o exported
promptboost export run -o exported --onnx
"""


@click.command(name="export", epilog=_EXAMPLES)
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write into."
)
@click.option(
    "--onnx", is_flag=True, help="Also write image tower and classifier as one ONNX file."
)
@click.option("--encoder", help="For another encoder than the run was fitted on.")
@click.option("--text-only", is_flag=True, help="Without the residual.")
@click.option("--overwrite", is_flag=True, help="Write into a folder that has files in it.")
@allow_download_option
@embeds
@speaks
def export(
    out: Output,
    run: Path,
    output: Path,
    onnx: bool,
    encoder: str | None,
    text_only: bool,
    overwrite: bool,
    opening: dict[str, Any],
) -> None:
    """Write a run for programs without promptboost.

    The class matrix with class names, as JSON, safetensors and npz; with --onnx also one file that takes
    pixels and answers. It is compared with the run on 100 images first.
    """
    from promptboost.run.export import export_run

    done = export_run(
        run,
        output,
        onnx=onnx,
        encoder=encoder,
        text_only=text_only,
        overwrite=overwrite,
        **opening,
    )
    record = {"folder": str(done.folder), "files": list(done.files), "checked": done.checked}

    def summary() -> str:
        lines = [plain(str(done.folder / name)) for name in done.files]
        if done.checked is not None:
            count, which = done.checked["images"], done.checked["images_are"]
            lines.append(
                f"the graph gives the same answers on {count} images {which}; logits differ by "
                f"{done.checked['largest_difference']:.1e} at most"
            )
        return "\n".join(lines)

    out.result(record, summary)
