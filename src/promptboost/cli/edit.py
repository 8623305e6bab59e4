"""``promptboost edit`` and ``workbench``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli import options as opt
from promptboost.cli.output import Command, Output, percent, plain, table, typed, with_output
from promptboost.errors import count
from promptboost.model.edits import OPERATIONS, parse_changes

if TYPE_CHECKING:
    from promptboost.run.edit import EditedRun
    from promptboost.run.holdout import Flip


_EXAMPLES = """
\b
promptboost edit run -o run2 --remove "a photo of a toy cat."
promptboost edit run -o run2 --add "cat=a cat asleep on a sofa." --reason "they sleep a lot"
promptboost edit run -o run2 --weight "cat=a cat asleep on a sofa.=0.3"
promptboost edit run -o run2 --add-class "owl=an owl at night." --add-class "owl=a barn owl."
"""
_FLIPS, _WORSE = 12, 10  # rows shown


def _edit_options(command: Command) -> Command:
    """Add an option for each operation that has a notation."""
    for kind, operation in reversed(OPERATIONS.items()):
        if operation.notation:
            command = click.option(
                f"--{kind}", multiple=True, metavar=operation.notation, help=operation.help
            )(command)
    return command


@click.command(name="edit", epilog=_EXAMPLES)
@opt.run_argument
@opt.output_option("Folder of the new run.")
@_edit_options
@click.option("--reason", default="", help="Reason for the edit; stored with the run.")
@click.option("--author", help="Name of the editor. Default: your user name.")
@opt.data_option
@opt.overwrite_option
@opt.opening_options
@with_output
def edit(out: Output, run: Path, output: Path, opening: dict[str, Any], **options: Any) -> None:
    """Edit the sentences of a run into a new run, and measure the effect.

    RUN is not changed. Edits are applied in the order of the options in this list, and measured on
    the held-out images of the fit. A third of those is kept back for an unbiased final result:
    evaluate RUN --held-out --final.
    """
    from promptboost.errors import SettingError
    from promptboost.run.edit import edit_run
    from promptboost.run.run_folder import RunFolder

    folder = RunFolder(run)
    folder.check_readable()
    edits = {kind: options.pop(kind.replace("-", "_"), ()) for kind in OPERATIONS}
    changes = parse_changes(edits, folder.ensemble.class_names)
    if not changes:
        raise SettingError(
            "no edit given: add --remove, --add, --weight or another option; see --help"
        )
    edited = edit_run(run, changes, output, **options, **opening)
    for note in edited.notes:
        out.note(note)
    record = {
        "run": edited.run,
        "parent": edited.lineage.parent,
        "edit": edited.lineage.edits[-1],
        "looks": edited.lineage.looks,
        "effect": edited.effect,
        "notes": edited.notes,
    }
    out.result(record, lambda: _summary(edited))


def _summary(edited: "EditedRun") -> str:
    effect, run = edited.effect, str(edited.run)
    parts = ["\n".join(map(plain, edited.history))]
    if effect is not None:
        gain = (effect.after or 0.0) - (effect.before or 0.0)
        accuracy = (
            f"accuracy {percent(effect.before)} before, {percent(effect.after)} after "
            f"({100 * gain:+.1f}), on {effect.images} held-out images"
        )
        if effect.left_out:
            accuracy += f"; without {effect.left_out} of dropped classes"
        parts += [accuracy, _flips(effect.flips)]
        if effect.worse:
            rows = [
                [c.class_name, str(c.count), percent(c.before), percent(c.after)]
                for c in effect.worse[:_WORSE]
            ]
            parts.append(table(["less accurate classes", "images", "before", "after"], rows))
        parts.append(
            f"measured {count(edited.lineage.looks, 'time')} on these images so far; for an unbiased "
            f"result:\n{typed('evaluate', run, '--held-out', '--final')}"
        )
    parts.append(f"predict  {typed('predict', run)} IMAGES")
    return "\n\n".join(parts)


def _flips(flips: "Sequence[Flip]") -> str:
    if not flips:
        return "no prediction changes"
    rows = [
        [flip.image, flip.label, flip.before, flip.after, flip.becomes.replace("other", "")]
        for flip in flips[:_FLIPS]
    ]
    more = f"\n… {len(flips) - _FLIPS} more" if len(flips) > _FLIPS else ""
    heading = f"{count(len(flips), 'prediction')} changed"
    return (
        f"{heading}\n{table(['image', 'label', 'before', 'after', ''], rows, left=range(5))}{more}"
    )


_WORKBENCH_EXAMPLES = """
\b
promptboost workbench run
promptboost workbench run --model NAME --base-url http://localhost:8000/v1
"""


@click.command(name="workbench", epilog=_WORKBENCH_EXAMPLES)
@opt.run_argument
@opt.default_option("--port", click.IntRange(0, 65535), 0, "Port; 0 takes a free one.")
@opt.data_option
@click.option(
    "--unlabeled",
    multiple=True,
    metavar="FOLDER",
    help="Images to suggest for labeling, which the page adds to the training images.",
)
@opt.model_options(required=False)
@opt.opening_options
@with_output
def workbench(
    out: Output,
    run: Path,
    port: int,
    data: str | None,
    unlabeled: tuple[str, ...],
    opening: dict[str, Any],
    **model: Any,
) -> None:
    """Edit a run in the browser, with the effect of each edit.

    The page is served at the printed address, to this machine only. Accuracy is measured on the
    held-out images, except those kept back for evaluate --held-out --final. If a fit used all images,
    edits are not measured. The run is not changed:
    versions are saved as new runs next to it. Unsaved edits are restored the next time. Training images
    can be relabeled and dropped, and images of --unlabeled added; then the residual is fitted again.
    """
    from promptboost.encoders.runtime import require_modules
    from promptboost.errors import SettingError

    needed = ("fastapi", "uvicorn", "prometheus_client")
    require_modules(needed, "serve", "Workbenches")
    from promptboost.llm.client import ModelSettings
    from promptboost.run.holdout import open_held_out
    from promptboost.workbench.application import serve_workbench
    from promptboost.workbench.state import Workbench, draft_folder, only_editor

    if model["base_url"] and not model["model"]:
        raise SettingError("--base-url needs a language model: add --model NAME")
    settings = ModelSettings(**model) if model["model"] else None
    held_out = open_held_out(run, data=data, needed=False, **opening)
    options = {name: value for name, value in opening.items() if name != "progress"}
    with only_editor(draft_folder(run, held_out.ensemble.fingerprint)):
        opened = Workbench(
            run,
            held_out,
            model=settings,
            options=options,
            unlabeled=unlabeled,
            source=data,
        )

        def started(address: str) -> None:
            lines = [f"workbench of {plain(str(run))} on {address}"]
            if opened.restored:
                lines.append(f"restored unsaved edits: {len(opened.draft.changes)}")
            lines.append("Ctrl-C stops the server; unsaved edits are kept.")
            record = {"address": address, "unsaved": len(opened.draft.changes)}
            out.result(record, "\n".join(lines))

        serve_workbench(opened, port=port, started=started)
    out.note("stopped")
