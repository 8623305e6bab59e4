"""``promptboost export``, ``push`` and ``pull``: a run for other programs and for a model hub."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import Output, plain, speaks, typed
from promptboost.errors import command_name

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


_ENDPOINT = click.option(
    "--endpoint",
    help="Address of the hub; by default the one that HF_ENDPOINT names, or the public one.",
)


@click.command(name="push")
@run_argument
@click.argument("repository")
@click.option("--private", is_flag=True, help="Make the repository a private one, if it is new.")
@click.option(
    "--with-images", is_flag=True, help="Also send the report, thumbnails and names of images."
)
@click.option("--message", help="What to say of this version.")
@_ENDPOINT
@speaks
def push(
    out: Output,
    run: Path,
    repository: str,
    private: bool,
    with_images: bool,
    message: str | None,
    endpoint: str | None,
) -> None:
    """Send a run to a model hub, as OWNER/NAME.

    Its text, vectors, figures and card; no image, and no place of this machine.
    """
    from promptboost.hub import push_run

    done = push_run(
        run,
        repository,
        images=with_images,
        private=private,
        message=message,
        endpoint=endpoint,
        progress=out.progress,
    )
    record = {"repository": done.repository, "revision": done.revision, "files": list(done.files)}
    name = plain(command_name())
    out.result(
        record,
        lambda: (
            f"{len(done.files)} files, revision {plain(done.revision)}\n"
            f"pull  {name} pull {plain(done.repository)} -o RUN --revision {plain(done.revision)}"
        ),
    )


@click.command(name="pull")
@click.argument("repository")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the run."
)
@click.option("--revision", help="Which version: a commit, a tag or a branch. Default: the newest.")
@click.option("--overwrite", is_flag=True, help="Replace the run in the folder.")
@_ENDPOINT
@speaks
def pull(
    out: Output,
    repository: str,
    output: Path,
    revision: str | None,
    overwrite: bool,
    endpoint: str | None,
) -> None:
    """Get a run from a model hub.

    Its files are checked before they are written, and nothing in them is executed. Which revision it was is
    written into run.toml.
    """
    from promptboost.hub import pull_run

    done = pull_run(
        repository,
        output,
        revision=revision,
        overwrite=overwrite,
        endpoint=endpoint,
        progress=out.progress,
    )
    record = {
        "run": str(done.run),
        "repository": done.repository,
        "revision": done.revision,
        "files": list(done.files),
    }
    out.result(
        record,
        lambda: (
            f"{len(done.files)} files, revision {plain(done.revision)}\n"
            f"predict  {typed('predict', str(done.run))} IMAGES"
        ),
    )
