"""``promptboost demo``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Output, percent, plain, table, typed, with_output

if TYPE_CHECKING:
    from promptboost.run.demo import Demo

#: Sentences shown, and the class they belong to.
_SHOWN, _CLASS = 4, "dog or cat"


@click.command(name="demo")
@opt.output_option(
    "Folder for images, sentences and runs; the runs of an earlier demo are replaced.",
    "folder",
    required=False,
    default=Path("promptboost-demo"),
    show_default=True,
)
@opt.threads_option
@with_output
def demo(out: Output, folder: Path) -> None:
    """Fit emoji of 20 classes, show what was learned, transfer the text, and edit it.

    Writes the images into a folder, fits with four images per class, transfers the sentences to another
    encoder, and adds a sentence. Takes less than a minute after installation.
    """
    from promptboost.run.demo import run_demo

    done = run_demo(folder, progress=out.progress, say=out.note)
    out.result(done.record(), lambda: summary(done))


def summary(done: "Demo") -> str:
    """Format a demo."""
    from promptboost.baselines import OURS, TEXT
    from promptboost.run.run_folder import RunFolder

    results, moved, effect = done.results, done.transfer["accuracy"], done.edited.effect
    ensemble = RunFolder(done.run).ensemble
    name = _CLASS if _CLASS in ensemble.class_names else ensemble.class_names[0]
    fitted = {
        "zero-shot": "zero-shot",
        "logistic": "logistic regression on image embeddings",
        TEXT: "promptboost, sentences only",
        OURS: "promptboost",
    }
    rows = [[title, percent(results.measured(method))] for method, title in fitted.items()]
    there = [
        ["zero-shot", percent(moved["zero-shot"])],
        ["promptboost, the same sentences", percent(moved[OURS])],
    ]
    sentences = list(ensemble.prompts(name).items())[:_SHOWN]
    changed = (
        []
        if effect is None
        else [
            f"  accuracy {percent(effect.before)} before, {percent(effect.after)} after, "
            f"on {effect.images} held-out images",
            "  the other held-out images are kept for a final evaluation",
        ]
    )
    return "\n".join(
        [
            f"Fit: {results.task.learn_images} training images of {results.task.classes} classes, "
            f"{results.task.held_out_images} held out, {plain(results.encoder.id)}",
            table(["", "accuracy"], rows),
            "",
            f"Sentences: {plain(name)}",
            *(f"  {percent(weight):>6}  {plain(text)}" for text, weight in sentences),
            "",
            f"Transfer: {plain(done.transfer['encoder'])}, with another image and text encoder",
            table(["", "accuracy"], there),
            "",
            "Edit",
            *(f"  {plain(line)}" for line in done.edited.history),
            *changed,
            "",
            f"report   {plain(str(done.run / 'report.html'))}",
            f"predict  {typed('predict', str(done.run))} IMAGES",
            f"edit     {typed('workbench', str(done.run))}",
        ]
    )
