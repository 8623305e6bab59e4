"""``promptboost edit`` and ``workbench``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import Command, Output, percent, plain, speaks, table, typed
from promptboost.model.edits import OPERATIONS, parse_changes

if TYPE_CHECKING:
    from promptboost.run.edit import EditedRun


_EXAMPLES = """
\b
promptboost edit run -o run2 --remove "a photo of a toy cat."
promptboost edit run -o run2 --add "cat=a cat asleep on a sofa." --reason "they sleep a lot"
promptboost edit run -o run2 --weight "cat=a cat asleep on a sofa.=0.3"
promptboost edit run -o run2 --add-class "owl=an owl at night." --add-class "owl=a barn owl."
"""
_FLIPS, _WORSE = 12, 10


def _edit_options(command: Command) -> Command:
    """Add an option for each operation that has a notation."""
    for kind, operation in reversed(OPERATIONS.items()):
        if operation.notation:
            command = click.option(
                f"--{kind}", multiple=True, metavar=operation.notation, help=operation.help
            )(command)
    return command


@click.command(name="edit", epilog=_EXAMPLES)
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new run."
)
@_edit_options
@click.option("--reason", default="", help="Why you edit; kept with the run.")
@click.option("--author", help="Who edits. Default: your user name.")
@click.option("--data", help="Where the images of the fit are now, if they were moved.")
@click.option("--overwrite", is_flag=True, help="Replace the run in the folder.")
@allow_download_option
@embeds
@speaks
def edit(
    out: Output,
    run: Path,
    output: Path,
    reason: str,
    author: str | None,
    data: str | None,
    overwrite: bool,
    opening: dict[str, Any],
    **options: tuple[str, ...],
) -> None:
    """Edit the sentences of a run into a new run, and measure the effect.

    RUN stays as it is. The edits are made in the order of the options in this list, and measured on
    the held-out images of the fit. A third of those is kept back for a final figure that no edit was
    chosen by: evaluate RUN --held-out --final.
    """
    from promptboost.errors import SettingError
    from promptboost.model import PromptEnsemble
    from promptboost.report import write_card, write_report
    from promptboost.run.edit import edit_run
    from promptboost.run.run_folder import RunFolder

    RunFolder(run).check_readable()
    ensemble = PromptEnsemble.load(RunFolder(run).ensemble_path)
    edits = {kind: options.get(kind.replace("-", "_"), ()) for kind in OPERATIONS}
    changes = parse_changes(edits, ensemble.class_names)
    if not changes:
        raise SettingError(
            "there is nothing to edit: add --remove, --add, --weight or another; see --help"
        )
    edited = edit_run(
        run,
        changes,
        output,
        author=author,
        reason=reason,
        data=data,
        overwrite=overwrite,
        finish=(write_report, write_card),
        **opening,
    )
    for note in edited.notes:
        out.note(note)
    out.result(_record(edited), lambda: _summary(edited))


def _record(edited: "EditedRun") -> dict[str, Any]:
    import msgspec

    effect = edited.effect
    return {
        "run": str(edited.run),
        "parent": edited.lineage.parent,
        "edit": msgspec.to_builtins(edited.lineage.edits[-1]),
        "looks": edited.lineage.looks,
        "effect": None if effect is None else msgspec.to_builtins(effect),
        "notes": list(edited.notes),
    }


def _summary(edited: "EditedRun") -> str:
    effect, run = edited.effect, plain(str(edited.run))
    parts = ["\n".join(map(plain, edited.history))]
    if effect is not None:
        change = (effect.after or 0.0) - (effect.before or 0.0)
        figures = (
            f"accuracy {percent(effect.before)} before, {percent(effect.after)} after "
            f"({100 * change:+.1f}), on {effect.images} held-out images"
        )
        if effect.left_out:
            figures += f"; left out, of classes that were dropped: {effect.left_out}"
        parts.append(figures)
        parts.append(_flips(edited))
        if effect.worse:
            worse = [
                [
                    change.class_name,
                    str(change.count),
                    percent(change.before),
                    percent(change.after),
                ]
                for change in effect.worse[:_WORSE]
            ]
            parts.append(table(["classes that lose", "images", "before", "after"], worse))
        looks = edited.lineage.looks
        parts.append(
            f"{looks} {'look' if looks == 1 else 'looks'} at these images so far; a figure that no edit "
            f"was chosen by:\n{typed('evaluate', str(run), '--held-out', '--final')}"
        )
    parts.append(f"predict  {typed('predict', str(run))} IMAGES")
    return "\n\n".join(parts)


def _flips(edited: "EditedRun") -> str:
    flips = edited.effect.flips if edited.effect is not None else ()
    if not flips:
        return "no image gets another answer"
    rows = [
        [flip.image, flip.label, flip.before, flip.after, flip.becomes.replace("other", "")]
        for flip in flips[:_FLIPS]
    ]
    shown = table(["image", "is", "before", "after", ""], rows, left=(0, 1, 2, 3, 4))
    left = len(flips) - _FLIPS
    subject = "1 image gets" if len(flips) == 1 else f"{len(flips)} images get"
    return f"{subject} another answer\n{shown}" + (f"\n… {left} more" if left > 0 else "")


_WORKBENCH_EXAMPLES = """
\b
promptboost workbench run
promptboost workbench run --model NAME --base-url http://localhost:8000/v1
"""


@click.command(name="workbench", epilog=_WORKBENCH_EXAMPLES)
@run_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port on this machine; 0 takes a free one.",
)
@click.option("--open", "browse", is_flag=True, help="Also open the page in the browser.")
@click.option("--data", help="Where the images of the fit are now, if they were moved.")
@click.option("--model", help="Name of a language model that suggests sentences.")
@click.option("--base-url", help="URL of its server, such as http://localhost:8000/v1.")
@click.option(
    "--provider",
    type=click.Choice(["openai", "anthropic"]),
    default="openai",
    show_default=True,
    help="Protocol of its server; most speak OpenAI's.",
)
@allow_download_option
@embeds
@speaks
def workbench(
    out: Output,
    run: Path,
    port: int,
    browse: bool,
    data: str | None,
    model: str | None,
    base_url: str | None,
    provider: Any,
    opening: dict[str, Any],
) -> None:
    """Edit a run in the browser, with the effect of each edit.

    The page is served to this machine alone, at the printed address. Figures are those of the held-out
    images, without the part that is kept back for evaluate --held-out --final. The run stays as it is: a
    version is saved as a new run next to it. Unsaved edits come back the next time.
    """
    from promptboost.encoders.runtime import require_modules
    from promptboost.errors import SettingError

    needed = ("fastapi", "uvicorn", "httptools", "prometheus_client")
    require_modules(needed, "serve", "Workbenches")
    from promptboost.llm.client import ModelSettings
    from promptboost.report import write_card, write_report
    from promptboost.run.holdout import open_held_out
    from promptboost.workbench.application import serve_workbench
    from promptboost.workbench.state import Workbench, draft_folder, only_editor

    if base_url and not model:
        raise SettingError("--base-url is the server of a language model: add --model NAME")
    settings = None if model is None else ModelSettings(model, provider, base_url)
    held_out = open_held_out(run, data=data, **opening)
    options = {name: value for name, value in opening.items() if name != "progress"}
    with only_editor(draft_folder(run, held_out.ensemble.fingerprint)):
        opened = Workbench(
            run, held_out, model=settings, finish=(write_report, write_card), options=options
        )

        def started(address: str) -> None:
            lines = [f"workbench of {plain(str(run))} on {address}"]
            if opened.restored:
                lines.append(f"unsaved edits that came back: {len(opened.draft.changes)}")
            lines.append("Ctrl-C stops it; unsaved edits are kept.")
            record = {"address": address, "unsaved": len(opened.draft.changes)}
            out.result(record, "\n".join(lines))
            if browse:
                click.launch(address)

        serve_workbench(opened, port=port, started=started)
    out.note("stopped")
