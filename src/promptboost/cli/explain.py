"""``promptboost explain``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import UNUSABLE, Output, percent, plain, speaks, table, typed

if TYPE_CHECKING:
    from promptboost.run.explain import ExplainedImages, HeldOutReasons

_EXAMPLES = """
\b
promptboost explain run cat.jpg
promptboost explain run cat.jpg --against dog --html why.html
promptboost explain run --held-out
"""
_SHOWN = 10


@click.command(name="explain", epilog=_EXAMPLES)
@run_argument
@click.argument("images", nargs=-1)
@click.option("--answer", metavar="CLASS", help="Explain this class; by default the answer.")
@click.option(
    "--against", metavar="CLASS", help="Compare with this class; by default the next one."
)
@click.option(
    "--held-out",
    is_flag=True,
    help="All held-out images together: the sentences behind each confusion, and harmful ones.",
)
@click.option("--data", help="Where the images of the fit are now, if they were moved.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write figures into this file."
)
@click.option("--encoder", help="See with another encoder than the run was fitted on.")
@click.option("--text-only", is_flag=True, help="Answer by the words alone, without the residual.")
@allow_download_option
@embeds
@speaks
def explain(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    answer: str | None,
    against: str | None,
    held_out: bool,
    data: str | None,
    html: Path | None,
    encoder: str | None,
    text_only: bool,
    opening: dict[str, Any],
) -> int:
    """Explain predictions, sentence by sentence.

    What each sentence adds to the lead of the answer over the class that comes next, and what the residual
    adds; all of it adds up to the difference of the logits. With --held-out, what each sentence does to the
    answers for the held-out images of the fit.
    """
    from promptboost.errors import SettingError

    if held_out:
        if images or answer or against or html or encoder or text_only:
            raise SettingError(
                "--held-out is about the images of the fit, as the run answers: only "
                "--data goes with it"
            )
        return _held_out(out, run, data, opening)
    if not images:
        raise SettingError("give images to explain, or --held-out for those of the fit")
    if data is not None:
        raise SettingError(
            "--data goes with --held-out: it says where the images of the fit are now"
        )
    opening |= {"encoder": encoder, "text_only": text_only}
    return _images(out, run, images, answer, against, html, opening)


def _images(
    out: Output,
    run: Path,
    images: tuple[str, ...],
    answer: str | None,
    against: str | None,
    html: Path | None,
    opening: dict[str, Any],
) -> int:
    from promptboost.run.explain import explain_images
    from promptboost.run.predict import open_classifier

    classifier = open_classifier(run, **opening)
    found = explain_images(classifier, images, answer=answer, against=against)
    for bad in found.bad:
        out.note(f"{bad.path}: {bad.reason}")
    if html is not None:
        _write_page(html, run, found)
    record = {
        "run": str(run),
        "images": [why.record() for why in found.explanations],
        "errors": [{"image": bad.path, "error": bad.reason} for bad in found.bad],
    }
    out.result(record, lambda: _summary(found, html))
    return 0 if found.explanations else UNUSABLE


def _write_page(html: Path, run: Path, found: "ExplainedImages") -> None:
    from promptboost.io import write_text
    from promptboost.report.page import explanations_html
    from promptboost.run.fit import thumbnail

    small = {image.name: thumbnail(image) for image in found.images}
    write_text(html, explanations_html(run.resolve().name, found.explanations, small))


def _summary(found: "ExplainedImages", html: Path | None) -> str:
    parts = [
        "\n".join([str(why), *(f"  {line}" for line in why.changes())])
        for why in found.explanations
    ]
    if html is not None:
        parts.append(f"figures  {plain(str(html))}")
    return "\n\n".join(parts)


def _held_out(out: Output, run: Path, data: str | None, opening: dict[str, Any]) -> int:
    import msgspec

    from promptboost.run.explain import explain_held_out
    from promptboost.run.holdout import open_held_out

    reasons = explain_held_out(run, open_held_out(run, data=data, **opening))
    record = {"run": str(run), **msgspec.to_builtins(reasons)}
    out.result(record, lambda: _reasons(run, reasons))
    return 0


def _reasons(run: Path, reasons: "HeldOutReasons") -> str:
    heading = (
        f"{reasons.images} held-out images, {percent(reasons.accuracy)} right; a third more is kept back; "
        f"looks so far: {reasons.looks}"
    )
    parts = [heading]
    mixed = [
        [p.true, p.answered, str(p.count), s.class_name, f"{s.value:+.2f}", s.prompt]
        for p in reasons.confusions[:_SHOWN]
        for s in p.sentences[:1]
    ]
    if mixed:
        headers = ["is", "taken for", "images", "most to blame: of", "adds", "sentence"]
        parts.append(table(headers, mixed, left=(0, 1, 3, 5)))
    harmful = [
        [i.class_name, f"+{i.gain}", str(i.mended), str(i.broken), i.prompt]
        for i in reasons.harmful[:_SHOWN]
    ]
    if harmful:
        headers = ["without it, of", "right", "mended", "broken", "sentence"]
        parts.append(table(headers, harmful, left=(0, 4)))
        first = reasons.harmful[0]
        parts.append(
            "edit  "
            + typed(
                *("edit", str(run), "-o", f"{run}-edited"),
                *("--remove", f"{first.class_name}={first.prompt}"),
            )
        )
    else:
        parts.append("there is no sentence without which more of these images were right")
    parts.append(
        f"sentences without which no image gets another answer: {len(reasons.idle)} of "
        f"{len(reasons.sentences)}"
    )
    return "\n\n".join(parts)
