"""``promptboost push`` and ``pull``: runs on a model hub."""

from pathlib import Path

import click

from promptboost.cli.options import run_argument
from promptboost.cli.output import Output, plain, speaks, typed
from promptboost.errors import command_name

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
