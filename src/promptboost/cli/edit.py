"""``promptboost edit``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from promptboost.cli.options import allow_download_option, embeds, run_argument
from promptboost.cli.output import Command, Output, percent, plain, speaks, table, typed

if TYPE_CHECKING:
    from promptboost.model.change import Change
    from promptboost.run.edit import Edited

_EXAMPLES = """
\b
promptboost edit run -o run2 --remove "a photo of a toy cat."
promptboost edit run -o run2 --add "cat=a cat asleep on a sofa." --reason "they sleep a lot"
promptboost edit run -o run2 --weight "cat=a cat asleep on a sofa.=0.3"
promptboost edit run -o run2 --add-class "owl=an owl at night." --add-class "owl=a barn owl."
"""
_FLIPS, _PAYING = 12, 10


def _several(name: str, metavar: str, text: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", multiple=True, metavar=metavar, help=text)


@click.command(name="edit", epilog=_EXAMPLES)
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new run."
)
@_several("rename-class", "OLD=NEW", "Give a class another name; its sentences stay.")
@_several("drop-class", "CLASS", "Leave a class out.")
@_several("add-class", "CLASS=SENTENCE", "Add a class; once for each of its sentences.")
@_several("remove", "[CLASS=]SENTENCE", "Take a sentence out, of one class or wherever it is.")
@_several("add", "CLASS=SENTENCE[=SHARE]", "Add a sentence, perhaps with its share in the class.")
@_several(
    "weight", "CLASS=SENTENCE=SHARE", "Set the share of a sentence in its class, between 0 and 1."
)
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
    allow_download: bool,
    no_cache: bool,
    device: str | None,
    **typed: tuple[str, ...],
) -> None:
    """Edit the sentences of a run into a new run, and see what that does.

    RUN stays as it is. The edits are made in the order of the options in this list, and measured on
    the held-out images of the fit. A third of those is kept back, for a figure at the end that no edit
    was chosen by: evaluate RUN --held-out --final.
    """
    from promptboost.errors import SettingError
    from promptboost.model import PromptEnsemble
    from promptboost.report import write_card, write_report
    from promptboost.run.edit import edit_run
    from promptboost.run.run_folder import RunFolder

    RunFolder(run).check_readable()
    changes = _changes(typed, PromptEnsemble.load(RunFolder(run).ensemble_path).class_names)
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
        cache=not no_cache,
        progress=out.progress,
        device=device,
        allow_download=allow_download,
        finish=(write_report, write_card),
    )
    for note in edited.notes:
        out.note(note)
    out.result(_record(edited), lambda: _summary(edited))


def _changes(typed: dict[str, tuple[str, ...]], class_names: tuple[str, ...]) -> "list[Change]":
    """Read the edits as they were typed; later ones know the classes that earlier ones made."""
    import msgspec

    from promptboost.model.change import Kind, parse_change

    names = list(class_names)
    changes: list[Change] = []
    order = ("rename-class", "drop-class", "add-class", "remove", "add", "weight")
    assert set(order) < set(get_args(Kind))
    for kind in order:
        for text in typed[kind.replace("-", "_")]:
            change = parse_change(kind, text, names)  # type: ignore[arg-type]
            if kind == "rename-class" and change.class_name in names:
                names[names.index(change.class_name)] = change.to or ""
            if kind == "add-class":
                last = changes[-1] if changes else None
                if last and (last.kind, last.class_name) == (kind, change.class_name):
                    more = (*last.sentences, *change.sentences)
                    changes[-1] = msgspec.structs.replace(last, sentences=more)
                    continue
                names.append(change.class_name or "")
            changes.append(change)
    return changes


def _record(edited: "Edited") -> dict[str, Any]:
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


def _summary(edited: "Edited") -> str:
    effect, run = edited.effect, plain(str(edited.run))
    parts = ["\n".join(map(plain, edited.told))]
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
        if effect.paying:
            worse = [
                [item.class_name, str(item.count), percent(item.before), percent(item.after)]
                for item in effect.paying[:_PAYING]
            ]
            parts.append(table(["classes that pay", "images", "before", "after"], worse))
        looks = edited.lineage.looks
        parts.append(
            f"{looks} {'look' if looks == 1 else 'looks'} at these images so far; a figure that no edit "
            f"was chosen by:\n{typed('evaluate', str(run), '--held-out', '--final')}"
        )
    parts.append(f"predict  {typed('predict', str(run))} IMAGES")
    return "\n\n".join(parts)


def _flips(edited: "Edited") -> str:
    flips = edited.effect.flips if edited.effect is not None else ()
    if not flips:
        return "no image gets another answer"
    rows = [
        [flip.image, flip.label, flip.before, flip.after, flip.becomes.replace("other", "")]
        for flip in flips[:_FLIPS]
    ]
    shown = table(["image", "is", "before", "after", ""], rows, left=(0, 1, 2, 3, 4))
    left = len(flips) - _FLIPS
    told = "1 image gets" if len(flips) == 1 else f"{len(flips)} images get"
    return f"{told} another answer\n{shown}" + (f"\n… {left} more" if left > 0 else "")
