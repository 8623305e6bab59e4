"""A run edited by hand: a new run that remembers what it was made of, and what the edit did."""

import datetime
import getpass
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.encoders.embedder import Embedder
from promptboost.errors import RunError, command_name
from promptboost.io import read_bytes, write_bytes
from promptboost.model import Head, PromptClassifier, PromptEnsemble
from promptboost.model.change import Change, apply_changes, original_names
from promptboost.model.head_files import embed_ensemble, write_head
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.bench import Bench, Effect, add_looks, open_bench
from promptboost.run.lineage import Edit, Lineage
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder


@dataclass(frozen=True)
class Edited:
    """An edited run, and what the edit did to the answers for held-out images."""

    run: Path
    ensemble: PromptEnsemble
    lineage: Lineage
    effect: Effect | None  # None if the images are not there any more
    notes: tuple[str, ...] = ()
    told: tuple[str, ...] = ()  # what was done to the text, line by line


def edit_run(
    run: Path,
    changes: Sequence[Change],
    new_run: Path,
    *,
    author: str | None = None,
    reason: str = "",
    data: str | None = None,
    bench: Bench | None = None,
    overwrite: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
    finish: tuple[Callable[[Path], object], ...] = (),
) -> Edited:
    """Edit the text of a run into a new run, and measure what that does.

    The run itself stays as it is, but for the count of looks at its held-out images. Nothing is learnt:
    the residual, if there is one, stays as it was fitted. With a `bench` that is open already, whoever
    opened it counts the looks.
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
    options = {"cache": cache, "progress": progress, "device": device}
    notes: list[str] = []
    uncounted = 0
    if bench is not None:
        effect: Effect | None = bench.effect(changes)
    else:
        opened = {**options, "allow_download": allow_download}
        effect, notes, uncounted = _measured(run, changes, data, opened)
    heads = []
    for classifier in _open_all(run, ensemble, allow_download=allow_download, **options):  # type: ignore[arg-type]
        embedder = classifier.embedder
        heads.append(edited_head(classifier.head, embedder, edited, changes))
    if any(head.residual is not None for head in heads):
        notes.append(
            "the residual was fitted beside the text as it was before; to learn it again, type: "
            f"{command_name()} refit {shlex.quote(str(new_run))}"
        )
    before = Lineage.read(run)
    before = msgspec.structs.replace(before, looks=before.looks + uncounted)
    lineage = _with_edit(before, folder, ensemble, changes, effect, author or _user(), reason)
    with stage(progress, f"writing {new_run.name}"):
        write_edited(folder, new, edited, lineage, heads, finish)
    told = edited.history[len(ensemble.history) :]
    return Edited(new_run, edited, lineage, effect, tuple(notes), told)


def _measured(
    run: Path, changes: Sequence[Change], data: str | None, options: Mapping[str, Any]
) -> tuple[Effect | None, list[str], int]:
    """Measure what changes do, and count the look.

    Return the effect, remarks about what could not be done, and the looks that the run could not count.
    """
    try:
        bench = open_bench(run, data=data, **options)
    except RunError as error:
        if data is not None:
            raise
        return None, [f"not measured: {error}"], 0
    with stage(options["progress"], f"measuring {run.name}"):
        effect = bench.effect(changes)
    try:
        add_looks(run, looks=1)
    except (OSError, RunError):
        return effect, [f"the look at the held-out images could not be written down in {run}"], 1
    return effect, [], 0


def _open_all(
    run: Path,
    ensemble: PromptEnsemble,
    *,
    cache: bool,
    progress: Progress,
    device: str | None,
    allow_download: bool,
) -> list[PromptClassifier]:
    """Open a run with each of the encoders it was learnt on."""
    return [
        open_classifier(
            run,
            encoder=None if number == 0 else item.id,
            cache=cache,
            progress=progress,
            device=device,
            allow_download=allow_download,
        )
        for number, item in enumerate(ensemble.encoders)
    ]


def edited_head(
    before: Head, embedder: Embedder, edited: PromptEnsemble, changes: Sequence[Change]
) -> Head:
    """Embed an edited text; the residual of a class goes with it, under its new name too."""
    made = embed_ensemble(edited, embedder)
    names = original_names(before.class_names, changes)
    if before.balance is not None:
        learnt = [name for name, old in names.items() if old in before.balance.class_names]
        made = replace(made, balance=replace(before.balance, class_names=tuple(learnt)))
    if before.residual is None:
        return made
    rows = np.zeros_like(made.weights)
    for k, name in enumerate(made.class_names):
        if name in names:
            rows[k] = before.residual[before.class_names.index(names[name])]
    return replace(made, residual=rows, text_scale=before.text_scale)


def _with_edit(
    lineage: Lineage,
    folder: RunFolder,
    ensemble: PromptEnsemble,
    changes: Sequence[Change],
    effect: Effect | None,
    author: str,
    reason: str,
) -> Lineage:
    figures: Mapping[str, object] = (
        {}
        if effect is None
        else {
            "images": effect.images,
            "before": effect.before,
            "after": effect.after,
            "changed": len(effect.flips),
        }
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    edit = Edit(changes=tuple(changes), author=author, date=now, reason=reason, **figures)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        lineage,
        parent=folder.home.resolve().name,
        parent_fingerprint=ensemble.fingerprint,
        edits=(*lineage.edits, edit),
    )


def write_edited(
    folder: RunFolder,
    new: RunFolder,
    edited: PromptEnsemble,
    lineage: Lineage,
    heads: Sequence[Head],
    finish: tuple[Callable[[Path], object], ...] = (),
) -> None:
    """Write an edited run: its text, vectors and lineage; the figures of the fit stay those of the fit."""
    about = {name: table for name, table in folder.tables.items() if name != "fit"}
    kept = {
        path.name: read_bytes(path)
        for path in (folder.thumbnails_path, folder.metrics_path)
        if path.exists()
    }
    with new.writing("edit", fit=True):
        fresh = new.begin(folder.settings, about)
        fresh.write_ensemble(edited)
        for head in heads:
            write_head(fresh.path, head)
        lineage.write(fresh.path)
        for name, content in kept.items():  # the figures last: they make a run a finished one
            write_bytes(fresh.path / name, content, follow=False)
        for write in finish:
            write(fresh.path)
        fresh.end()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
