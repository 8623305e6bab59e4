"""Edit a run: a new run with its lineage and the effect on held-out images."""

import datetime
import getpass
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import msgspec
import numpy as np

from promptboost.encoders.embedder import Embedder
from promptboost.errors import PromptBoostError, RunError, command_name
from promptboost.io import read_bytes, write_bytes
from promptboost.model import Head, PromptEnsemble
from promptboost.model.edits import Change, apply_changes, original_names
from promptboost.model.head import write_head
from promptboost.model.head_files import embed_ensemble
from promptboost.progress import Progress, no_progress, stage
from promptboost.report.page import write_pages
from promptboost.run.holdout import Effect, HeldOutSet, add_looks, open_held_out
from promptboost.run.predict import LoadOptions, open_classifier
from promptboost.run.refit import calibrated_heads
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import outdated_heads
from promptboost.run.versions import Edit, Lineage


@dataclass(frozen=True)
class EditedRun:
    """An edited run, and the effect of the edit on the answers for held-out images."""

    run: Path
    lineage: Lineage
    effect: Effect | None  # None if the images are missing
    notes: tuple[str, ...] = ()
    history: tuple[str, ...] = ()  # one line for each change


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
    progress: Progress = no_progress,
    **options: Unpack[LoadOptions],
) -> EditedRun:
    """Edit the ensemble of a run into a new run, and measure the effect.

    The run itself does not change, except for its count of measurements. The residual is copied; the
    thresholds of decisions are computed again if the images and sentences of the fit have not changed.
    With `held_out`, the caller counts the measurement.
    """
    folder, new = RunFolder(run), RunFolder(new_run)
    folder.check_finished()
    if folder.path.resolve() == new.path.resolve():
        raise RunError(f"-o is the run itself, {run}: give the edited run another name")
    new.check_free(overwrite=overwrite, resume=False)
    ensemble, _ = folder.steady(lambda: (folder.ensemble, Lineage.read(run)))
    edited = apply_changes(ensemble, changes)
    notes = [change.remark for change in changes if change.remark]
    uncounted = 0
    if held_out is not None:
        effect: Effect | None = held_out.effect(changes)
    else:
        effect, problems, uncounted = _measure(run, changes, data, progress, options)
        notes += problems
    heads, embedders = [], []
    for number, encoder in enumerate(ensemble.encoders):
        opening: LoadOptions = {**options, "encoder": encoder.id if number else None}
        classifier = open_classifier(run, progress=progress, **opening)
        embedders.append(classifier.embedder)
        heads.append(edited_head(classifier.head, classifier.embedder, edited, changes))
    if any(head.residual is not None for head in heads):
        note = "the residual was fitted with the sentences before the edit"
        try:
            heads = calibrated_heads(folder, ensemble, heads, embedders, changes, data, progress)
        except PromptBoostError:
            note += ", and the thresholds of predict --reject and --coverage are dropped"
        again = f"{command_name()} refit {shlex.quote(str(new_run))}"
        notes.append(f"{note}; to fit again, type: {again}")
    notes += outdated_heads(folder.results, [e.id for e in ensemble.encoders], new_run)
    lineage = Lineage.read(run)
    measured = ("images", "before", "after", "changed") if effect is not None else ()
    edit = Edit(
        changes=tuple(changes),
        author=author or _user(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reason=reason,
        **{name: getattr(effect, name) for name in measured},
    )
    lineage = msgspec.structs.replace(
        lineage,
        parent=folder.home.resolve().name,
        parent_fingerprint=ensemble.fingerprint,
        edits=(*lineage.edits, edit),
        looks=lineage.looks + uncounted,
    )
    with stage(progress, f"writing {new_run.name}"):
        _write_edited(folder, new, edited, lineage, heads)
    history = edited.history[len(ensemble.history) :]
    return EditedRun(new_run, lineage, effect, tuple(notes), history)


def _measure(
    run: Path,
    changes: Sequence[Change],
    data: str | None,
    progress: Progress,
    options: LoadOptions,
) -> tuple[Effect | None, list[str], int]:
    """Measure changes and count the measurement.

    Return the effect, notes on failures, and the number of measurements not counted in the run.
    """
    try:
        held_out = open_held_out(run, data=data, progress=progress, **options)
    except RunError as error:
        if data is not None:
            raise
        return None, [f"not measured: {error}"], 0
    with stage(progress, f"measuring {run.name}"):
        effect = held_out.effect(changes)
    try:
        add_looks(run, looks=1)
    except (OSError, RunError):
        return effect, [f"the use of the held-out images could not be counted in {run}"], 1
    return effect, [], 0


def edited_head(
    old_head: Head, embedder: Embedder, edited: PromptEnsemble, changes: Sequence[Change]
) -> Head:
    """Embed an edited ensemble; classes keep their residual, also under a new name."""
    head = embed_ensemble(edited, embedder)
    names = original_names(old_head.class_names, changes)
    if old_head.balance is not None:
        learned = [name for name, old in names.items() if old in old_head.balance.class_names]
        head = replace(head, balance=replace(old_head.balance, class_names=tuple(learned)))
    if old_head.residual is None:
        return head
    residual = np.zeros(head.weights.shape, old_head.residual.dtype)
    for k, name in enumerate(head.class_names):
        if name in names:
            residual[k] = old_head.residual[old_head.class_names.index(names[name])]
    return replace(head, residual=residual, text_scale=old_head.text_scale)


def _write_edited(
    folder: RunFolder,
    new: RunFolder,
    edited: PromptEnsemble,
    lineage: Lineage,
    heads: Sequence[Head],
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
        for name, content in copied.items():  # the metrics last: with them the run is finished
            write_bytes(fresh.path / name, content, follow=False)
        write_pages(fresh.path)
        fresh.end()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
