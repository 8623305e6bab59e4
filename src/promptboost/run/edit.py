"""Edit a run: a new run with its lineage and the effect on held-out images."""

import datetime
import getpass
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.encoders.embedder import Embedder
from promptboost.errors import RunError, command_name
from promptboost.io import read_bytes, write_bytes
from promptboost.model import Head, PromptEnsemble
from promptboost.model.edits import Change, apply_changes, original_names
from promptboost.model.head_files import embed_ensemble, write_head
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.holdout import Effect, HeldOutSet, add_looks, open_held_out
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Edit, Lineage


@dataclass(frozen=True)
class EditedRun:
    """An edited run, and the effect of the edit on the answers for held-out images."""

    run: Path
    lineage: Lineage
    effect: Effect | None  # None if the images are missing
    notes: tuple[str, ...] = ()
    history: tuple[str, ...] = ()  # what was done, line by line


def edit_run(
    run: Path,
    changes: Sequence[Change],
    new_run: Path,
    *,
    author: str | None = None,
    reason: str = "",
    data: str | None = None,
    held_out: HeldOutSet | None = None,
    overwrite: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
    finish: tuple[Callable[[Path], object], ...] = (),
) -> EditedRun:
    """Edit the ensemble of a run into a new run, and measure the effect.

    The run itself stays as it is, except for the count of looks at its held-out images. Nothing is
    learned: a residual stays as it was fitted. The caller that gives `held_out` counts the looks.
    """
    folder, new = RunFolder(run), RunFolder(new_run)
    folder.check_finished()
    if folder.path.resolve() == new.path.resolve():
        raise RunError(f"an edited run is a new one: give -o another name than {run}")
    new.check_free(overwrite=overwrite, resume=False)
    ensemble, _ = folder.steady(
        lambda: (PromptEnsemble.load(folder.ensemble_path), Lineage.read(run))
    )
    edited = apply_changes(ensemble, changes)
    options: dict[str, Any] = {
        "cache": cache,
        "progress": progress,
        "device": device,
        "allow_download": allow_download,
    }
    notes: list[str] = []
    uncounted = 0
    if held_out is not None:
        effect: Effect | None = held_out.effect(changes)
    else:
        effect, notes, uncounted = _measure(run, changes, data, options)
    heads = []
    for number, encoder in enumerate(ensemble.encoders):
        name = encoder.id if number else None
        classifier = open_classifier(run, encoder=name, **options)
        heads.append(edited_head(classifier.head, classifier.embedder, edited, changes))
    if any(head.residual is not None for head in heads):
        notes.append(
            "the residual was fitted with the sentences before the edit; to fit it again, type: "
            f"{command_name()} refit {shlex.quote(str(new_run))}"
        )
    before = Lineage.read(run)
    edit = Edit(
        changes=tuple(changes),
        author=author or _user(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reason=reason,
    )
    if effect is not None:
        edit = msgspec.structs.replace(
            edit,
            images=effect.images,
            before=effect.before,
            after=effect.after,
            changed=effect.changed,
        )
    lineage = msgspec.structs.replace(
        before,
        parent=folder.home.resolve().name,
        parent_fingerprint=ensemble.fingerprint,
        edits=(*before.edits, edit),
        looks=before.looks + uncounted,
    )
    with stage(progress, f"writing {new_run.name}"):
        _write_edited(folder, new, edited, lineage, heads, finish)
    history = edited.history[len(ensemble.history) :]
    return EditedRun(new_run, lineage, effect, tuple(notes), history)


def _measure(
    run: Path, changes: Sequence[Change], data: str | None, options: dict[str, Any]
) -> tuple[Effect | None, list[str], int]:
    """Measure changes and count the look.

    Return the effect, notes about what failed, and the number of looks not counted in the run.
    """
    try:
        held_out = open_held_out(run, data=data, **options)
    except RunError as error:
        if data is not None:
            raise
        return None, [f"not measured: {error}"], 0
    with stage(options["progress"], f"measuring {run.name}"):
        effect = held_out.effect(changes)
    try:
        add_looks(run, looks=1)
    except (OSError, RunError):
        return effect, [f"the look at the held-out images could not be written down in {run}"], 1
    return effect, [], 0


def edited_head(
    before: Head, embedder: Embedder, edited: PromptEnsemble, changes: Sequence[Change]
) -> Head:
    """Embed an edited ensemble; classes keep their residual, also under a new name."""
    head = embed_ensemble(edited, embedder)
    names = original_names(before.class_names, changes)
    if before.balance is not None:
        learned = [name for name, old in names.items() if old in before.balance.class_names]
        head = replace(head, balance=replace(before.balance, class_names=tuple(learned)))
    if before.residual is None:
        return head
    residual = np.zeros_like(head.weights)
    for k, name in enumerate(head.class_names):
        if name in names:
            residual[k] = before.residual[before.class_names.index(names[name])]
    return replace(head, residual=residual, text_scale=before.text_scale)


def _write_edited(
    folder: RunFolder,
    new: RunFolder,
    edited: PromptEnsemble,
    lineage: Lineage,
    heads: Sequence[Head],
    finish: tuple[Callable[[Path], object], ...],
) -> None:
    """Write an edited run: ensemble, heads and lineage; the metrics stay those of the fit."""
    tables = {name: table for name, table in folder.tables.items() if name != "fit"}
    copied = {
        path.name: read_bytes(path)
        for path in (folder.thumbnails_path, folder.metrics_path)
        if path.exists()
    }
    with new.writing("edit", fit=True):
        fresh = new.begin(folder.settings, tables)
        fresh.write_ensemble(edited)
        for head in heads:
            write_head(fresh.path, head)
        lineage.write(fresh.path)
        for name, content in copied.items():  # the metrics last: they make a run a finished one
            write_bytes(fresh.path / name, content, follow=False)
        for write in finish:
            write(fresh.path)
        fresh.end()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
