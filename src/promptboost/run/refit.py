"""Fit the residual of an edited run again, and measure it; the ensemble stays."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.config import FitConfig
from promptboost.data.shots import Task, load_task
from promptboost.data.source import DataSource
from promptboost.encoders.embedder import Embedder, open_embedder
from promptboost.encoders.registry import check_trusted
from promptboost.errors import DataError, PoolError, RunError, count, few
from promptboost.io import read_bytes
from promptboost.model import Head, PromptEnsemble
from promptboost.model.edits import Change, original_names
from promptboost.pool import PromptPool, build_pool
from promptboost.progress import Progress, no_progress
from promptboost.run.evaluate import renamed
from promptboost.run.fit import (
    about,
    check_apart,
    pool_for,
    task_remarks,
    timing,
    write_run,
)
from promptboost.run.overlap import inspect
from promptboost.run.results import EmbeddedTask, Results, measure
from promptboost.run.run_folder import RunFolder, check_place, usable_store
from promptboost.run.transfer import outdated_heads
from promptboost.run.versions import Lineage
from promptboost.training import Trainer
from promptboost.training.pool_rows import Executor

Say = Callable[[str], None]


def refit_run(
    run: Path,
    output: Path | None = None,
    source: str | None = None,
    *,
    every_image: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
    executor: Executor | None = None,
    say: Say = lambda _: None,
) -> Results:
    """Fit the residual of an edited run again and measure it; the ensemble file stays byte for byte.

    The new run is written to `output`, by default in place of the old one, once all its files are written.
    `source` is where the training images are, by default those of the fit; with `every_image`, all of its
    training images are used, however many shots the fit drew. Classes of the ensemble
    without images get a bias correction; images of other classes are not used.
    """
    start = time.perf_counter()
    folder = RunFolder(run)
    folder.check_finished()
    target = _target(folder, output)

    def read() -> tuple[bytes, PromptEnsemble, Results]:
        _ = folder.tables
        return read_bytes(folder.ensemble_path), folder.ensemble, folder.results

    text, ensemble, old_results = folder.steady(read)
    settings, images = folder.settings, _source(folder, source)
    if every_image:
        settings = replace(settings, shots=None)
    check_apart(images, target)
    for name in settings.encoders:
        check_trusted(name, allow_download=allow_download)
    opening: dict[str, Any] = {"cache": usable_store(cache, say), "device": device}
    encoder = open_embedder(settings.encoders, progress=progress, **opening)
    lineage = Lineage.read(folder.path)
    task, changed = _task(folder, lineage, images, settings, ensemble, progress, say)
    pool = _pool(folder, lineage, images, ensemble, say)
    inspection = inspect(task.learn, task.held_out, progress=progress)
    for line in (*task_remarks(task, None), *inspection.overlap.lines()):
        say(line)
    embedded = EmbeddedTask.embed(
        task, pool, settings, encoder, executor=executor, progress=progress
    )
    begin = time.perf_counter()
    fitted = Trainer(settings, progress=progress).refit(
        ensemble, embedded.examples(task), embedded.members, embedded.pool_rows
    )
    seconds = time.perf_counter() - begin
    results = measure(task, embedded, fitted, settings, inspection, progress)
    embedded.pool_rows.release()
    digests = {*(results.task.learn_digests or ()), *(old_results.task.learn_digests or ())}
    results = msgspec.structs.replace(
        results,
        task=msgspec.structs.replace(results.task, learn_digests=tuple(sorted(digests))),
        timing=timing(embedded.members, seconds, start),
    )
    for line in outdated_heads(old_results, settings.encoders, target.path):
        say(line)
    with target.writing("refit"):
        # Editors of the file take no lock: check that the ensemble has not changed.
        if read_bytes(folder.ensemble_path) != text:
            raise RunError(
                f"the text in {folder.path} was changed meanwhile; run the same command again"
            )
        tables = about(images, task, embedded.members[0])
        if not changed:  # class names as in the data, also if they were renamed since
            facts = folder.tables.get("data", {})
            tables["data"] |= {k: facts[k] for k in ("learn_fingerprint", "classes") if k in facts}
        fresh = target.begin(settings, tables)
        if lineage.edits and task.kind is not None:
            # The results are of all held-out images, reserved ones included.
            lineage = msgspec.structs.replace(
                lineage, looks=lineage.looks + 1, final_looks=lineage.final_looks + 1
            )
            say(
                "the metrics are of all held-out images, reserved ones included: counted as a use of both"
            )
        if lineage != Lineage():
            lineage.write(fresh.path)
        write_run(fresh, task, embedded, fitted, results, text, progress=progress)
    return results


def calibrated_heads(
    folder: RunFolder,
    ensemble: PromptEnsemble,
    heads: Sequence[Head],
    embedders: Sequence[Embedder],
    changes: Sequence[Change],
    source: str | None,
    progress: Progress,
) -> list[Head]:
    """Calibrate the heads of an edit of a run; raise if images or sentences of the fit have changed.

    A refit before the edit has logits of training images by what was learned without them. The edit was not
    learned, so it moves these as much as the logits of the whole head. Classes without images do not count.
    """
    lineage, images, settings = Lineage.read(folder.path), _source(folder, source), folder.settings
    problems: list[str] = []
    task, changed = _task(folder, lineage, images, settings, ensemble, progress, lambda _: None)
    pool = _pool(folder, lineage, images, ensemble, problems.append)
    learned = np.unique(task.learn.labels)
    names = original_names([ensemble.class_names[k] for k in learned], changes)
    if changed or problems or not names:
        raise RunError(f"{folder.path} has no images and sentences as they were at its fit")
    task = replace(task, held_out=task.held_out.subset([]), kind=None)
    encoder = open_embedder(embedders)
    embedded = EmbeddedTask.embed(task, pool, settings, encoder, progress=progress)
    fitted = Trainer(settings, progress=progress).refit(
        ensemble, embedded.examples(task), embedded.members, embedded.pool_rows
    )
    new = [heads[0].class_names.index(name) for name in names]
    old = [ensemble.class_names.index(name) for name in names.values()]
    columns, calibrated = np.searchsorted(learned, old), []
    rows = embedded.split(embedded.train[:, 0])
    for head, fit, residual, X in zip(heads, fitted.heads, fitted.residuals, rows, strict=True):
        if residual is not None and residual.held_out is not None and head.residual is not None:
            logits, labels, positions = residual.held_out
            same, X = labels[:, None] == columns, X[positions]
            logits = logits[:, columns] + head.logits(X)[:, new] - fit.logits(X)[:, old]
            remain = same.any(axis=1)
            held_out = logits[remain], same.argmax(axis=1)[remain], positions[remain]
            head = replace(head, calibration=replace(residual, held_out=held_out).calibration())
        calibrated.append(head)
    return calibrated


def _target(folder: RunFolder, output: Path | None) -> RunFolder:
    """Return the folder to write; raise if it is in use or cannot be written."""
    if output is None:
        if folder.unfinished is not None:
            raise RunError(
                f"there is an unfinished fit in {folder.path}; resume it, or name another folder with -o"
            )
        return folder
    target = RunFolder(output)
    target.check_free(overwrite=False, resume=False)
    check_place(target)
    return target


def _source(folder: RunFolder, given: str | None) -> DataSource:
    """Return the source of the images; raise if they are missing."""
    source = folder.source if given is None else DataSource.parse(given)
    if given is None and source.path is not None and not source.path.exists():
        raise DataError(
            f"the images of the run are missing: {source.path} does not exist; "
            "--data DIR gives another folder"
        )
    return source


def _task(
    folder: RunFolder,
    lineage: Lineage,
    source: DataSource,
    settings: FitConfig,
    ensemble: PromptEnsemble,
    progress: Progress,
    say: Say,
) -> tuple[Task, bool]:
    """Split the images as the fit did, without those of classes that the ensemble does not have.

    The second value is whether the training images differ from those of the fit.
    """
    task = load_task(source, settings, progress=progress)
    changed = task.learn.fingerprint != folder.learn_fingerprint
    names = set(ensemble.class_names)
    now = {old: new for new, old in original_names(task.class_names, lineage.changes).items()}
    strange = sorted(name for name in task.class_names if now.get(name) not in names)
    if strange:
        say(f"images of classes that are not in the ensemble are not used: {few(strange)}")
    learn, held_out = (
        renamed(data, now, ensemble.class_names) for data in (task.learn, task.held_out)
    )
    if len({image.label for image in learn.images}) < 2:
        raise DataError(
            f"{source} has images of fewer than two classes of the ensemble; --data DIR gives others"
        )
    if changed:
        say(f"the training images differ from those of the fit: {count(len(learn), 'image')}")
        digests = [bytes.fromhex(d) for d in folder.results.task.learn_digests or ()]
        inspection = inspect(digests, held_out, progress=progress)
        held_out = held_out.subset(np.flatnonzero(~inspection.leaked))
    kind = task.kind if len(held_out) else None
    return replace(task, learn=learn, held_out=held_out, kind=kind), changed


def _pool(
    folder: RunFolder, lineage: Lineage, source: DataSource, ensemble: PromptEnsemble, say: Say
) -> PromptPool:
    """Build the pool of the fit again."""
    names = ensemble.class_names
    # Sentences are listed under the class names of the fit, and its templates were filled with them.
    fit_names = folder.tables.get("data", {}).get("classes", names)
    then = original_names(fit_names, lineage.changes)
    try:
        pool = pool_for(folder.settings, source, [then.get(name, name) for name in names])
        now = {old: new for new, old in then.items()}
        missing = tuple(now.get(name, name) for name in pool.missing)
        renamed = dict(zip(names, pool.prompts_by_class.values(), strict=True))
        return replace(pool, prompts_by_class=renamed, missing=missing)
    except (PoolError, OSError) as error:
        say(f"the sentences of the fit are not used: {error}")
        return build_pool(ensemble.class_names)
