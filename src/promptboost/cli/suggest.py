"""``promptboost suggest``."""

from pathlib import Path
from typing import Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, echo, prediction_table, with_output

_EXAMPLES = """
\b
promptboost suggest run unlabeled/ -n 20
promptboost suggest run unlabeled/ --json
"""


@click.command(name="suggest", epilog=_EXAMPLES)
@opt.run_argument
@click.argument("images", nargs=-1, required=True)
@click.option("-n", "number", type=opt.COUNT, default=20, show_default=True, help="Images to list.")
@opt.data_option
@opt.allow_download_option
@opt.embedding_options
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
