"""``promptboost explain``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import UNUSABLE, Output, percent, plain, table, typed, with_output

if TYPE_CHECKING:
    from promptboost.run.explain import ExplainedImages, HeldOutReasons

_EXAMPLES = """
\b
promptboost explain run cat.jpg
promptboost explain run cat.jpg --against dog --all --html why.html
promptboost explain run --held-out
"""
_SHOWN = 10


@click.command(name="explain", epilog=_EXAMPLES)
@opt.run_argument
@click.argument("images", nargs=-1)
@click.option("--answer", metavar="CLASS", help="Class to explain. Default: the predicted one.")
@click.option("--against", metavar="CLASS", help="Class to compare with. Default: the runner-up.")
@click.option(
    "--held-out",
    is_flag=True,
    help="Explain confusions on all held-out images, and list harmful sentences.",
)
@opt.data_option
@click.option(
    "--all", "everything", is_flag=True, help="Show all sentences. --json always has all."
)
@click.option("--html", type=opt.FILE, help="Write figures into this file.")
@opt.other_encoder_options
@opt.opening_options
@with_output
def explain(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    held_out: bool,
    data: str | None,
    everything: bool,
    html: Path | None,
    encoder: str | None,
    text_only: bool,
    opening: dict[str, Any],
    **classes: str | None,
) -> int:
    """Explain predictions, sentence by sentence.

    Prints how much each sentence and the residual contribute to the margin between the predicted class and
    the runner-up: the six largest terms, and the sum of the others. All add up to the difference of the
    logits. With --held-out, prints the effect of each sentence on the predictions for the held-out images
    of the fit.
    """
    from promptboost.errors import SettingError

    if held_out:
        if images or any(classes.values()) or everything or html or encoder or text_only:
            raise SettingError(
                "--held-out explains the images of the fit: combine it only with --data"
            )
        return _explain_held_out(out, run, data, opening)
    if not images:
        raise SettingError("give images to explain, or --held-out for those of the fit")
    if data is not None:
        raise SettingError("--data is the folder of held-out images: combine it with --held-out")
    from promptboost.model.prediction import TERMS
    from promptboost.run.explain import explain_images
    from promptboost.run.predict import open_classifier

    classifier = open_classifier(run, encoder=encoder, text_only=text_only, **opening)
    explained = explain_images(classifier, images, **classes)
    for bad in explained.bad:
        out.note(f"{bad.path}: {bad.reason}")
    most = None if everything else TERMS
    if html is not None:
        from promptboost.io import write_text
        from promptboost.report.page import explanations_html
        from promptboost.run.fit import thumbnail

        small = {image.name: thumbnail(image) for image in explained.images}
        name = run.resolve().name
        write_text(html, explanations_html(name, explained.explanations, small, most))
    record = {
        "run": run,
        "images": [explanation.record() for explanation in explained.explanations],
        "errors": [{"image": bad.path, "error": bad.reason} for bad in explained.bad],
    }
    out.result(record, lambda: _summary(explained, html, most))
    return 0 if explained.explanations else UNUSABLE


def _summary(explained: "ExplainedImages", html: Path | None, most: int | None) -> str:
    parts = [
        "\n".join([explanation.text(most), *(f"  {line}" for line in explanation.changes())])
        for explanation in explained.explanations
    ]
    if html is not None:
        parts.append(f"figures  {plain(str(html))}")
    return "\n\n".join(parts)


def _explain_held_out(out: Output, run: Path, data: str | None, opening: dict[str, Any]) -> int:
    import msgspec

    from promptboost.run.explain import explain_held_out
    from promptboost.run.holdout import open_held_out

    reasons = explain_held_out(run, open_held_out(run, data=data, **opening))
    record = {"run": str(run), **msgspec.to_builtins(reasons)}
    out.result(record, lambda: _held_out_text(run, reasons))
    return 0


def _held_out_text(run: Path, reasons: "HeldOutReasons") -> str:
    from promptboost.errors import count

    parts = [
        f"{percent(reasons.accuracy)} accuracy on {reasons.images} held-out images, measured "
        f"{count(reasons.looks, 'time')}; a third of the held-out images is kept back"
    ]
    confusions = [
        [p.true, p.answered, str(p.count), s.class_name, f"{s.value:+.2f}", s.prompt]
        for p in reasons.confusions[:_SHOWN]
        for s in p.sentences[:1]
    ]
    if confusions:
        headers = ["label", "predicted", "images", "cause, class", "adds", "sentence"]
        parts.append(table(headers, confusions, left=(0, 1, 3, 5)))
    harmful = [
        [i.class_name, f"+{i.gain}", str(i.mended), str(i.broken), i.prompt]
        for i in reasons.harmful[:_SHOWN]
    ]
    if harmful:
        headers = ["if removed, class", "gain", "fixed", "broken", "sentence"]
        parts.append(table(headers, harmful, left=(0, 4)))
        first = reasons.harmful[0]
        remove = ("--remove", f"{first.class_name}={first.prompt}")
        parts.append(f"edit  {typed('edit', str(run), '-o', f'{run}-edited', *remove)}")
    else:
        parts.append("no sentence can be removed with a gain in accuracy on these images")
    parts.append(
        f"sentences without effect on any prediction: {len(reasons.idle)} of {len(reasons.sentences)}"
    )
    return "\n\n".join(parts)
