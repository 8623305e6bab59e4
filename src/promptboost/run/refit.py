"""Fit the residual of an edited run again, and measure it; the ensemble stays."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from promptboost.config import FitConfig
from promptboost.data import Dataset
from promptboost.data.shots import Task, load_task
from promptboost.data.source import DataSource
from promptboost.encoders.registry import check_trusted
from promptboost.errors import DataError, PoolError, RunError, command_name, count, few
from promptboost.io import read_bytes
from promptboost.model import PromptEnsemble
from promptboost.model.edits import original_names
from promptboost.pool import PromptPool, build_pool
from promptboost.progress import Progress, no_progress
from promptboost.run.fit import (
    Finish,
    about,
    check_apart,
    open_encoders,
    timing,
    write_run,
)
from promptboost.run.measurement import EmbeddedTask, measure
from promptboost.run.overlap import inspect, inspect_known
from promptboost.run.preflight import check_place, pool_for, task_remarks
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Lineage
from promptboost.training import Trainer
from promptboost.training.pool_rows import Executor

Say = Callable[[str], None]


def refit_run(
    run: Path,
    output: Path | None = None,
    source: str | None = None,
    *,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
    finish: Sequence[Finish] = (),
    executor: Executor | None = None,
    say: Say = lambda _: None,
) -> Results:
    """Fit the residual of an edited run again and measure it; the ensemble file stays byte for byte.

    The new run is written to `output`, by default in place of the old one, once all its files are written.
    `source` is where the training images are, by default those of the fit. Classes of the ensemble
    without images are balanced with the others; images of other classes are left out.
    """
    start = time.perf_counter()
    folder = RunFolder(run)
    folder.check_finished()
    target = _target(folder, output)
    text, ensemble, before = folder.steady(lambda: _read(folder))
    settings, images = folder.settings, _source(folder, source)
    check_apart(images, target)
    for name in settings.encoders:
        check_trusted(name, allow_download=allow_download)
    encoder = open_encoders(settings, say, cache=cache, progress=progress, device=device)
    lineage = Lineage.read(folder.path)
    task, changed = _task(folder, lineage, images, ensemble, before, progress, say)
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
    digests = {*(results.task.learn_digests or ()), *(before.task.learn_digests or ())}
    results = msgspec.structs.replace(
        results,
        task=msgspec.structs.replace(results.task, learn_digests=tuple(sorted(digests))),
        timing=timing(embedded.members, seconds, start),
    )
    _say_moved(before, settings, target, say)
    with target.writing("refit"):
        # An editor takes no lock: the fit must be of the ensemble as it is now.
        if read_bytes(folder.ensemble_path) != text:
            raise RunError(
                f"the text in {folder.path} was changed meanwhile; run the same command again"
            )
        tables = about(images, task, embedded.members[0])
        if not changed:  # as the images call them, whatever the classes are called since
            known = folder.tables.get("data", {})
            tables["data"] |= {k: known[k] for k in ("learn_fingerprint", "classes") if k in known}
        fresh = target.begin(settings, tables)
        if lineage.edits and task.kind is not None:
            # The results are of all held-out images, those kept back for the end included.
            lineage = msgspec.structs.replace(
                lineage, looks=lineage.looks + 1, final_looks=lineage.final_looks + 1
            )
            say(
                "the figures are of all held-out images, those kept back too: counted as a look at both"
            )
        if lineage != Lineage():
            lineage.write(fresh.path)
        write_run(fresh, task, embedded, fitted, results, finish, text, progress=progress)
    return results


def _target(folder: RunFolder, output: Path | None) -> RunFolder:
    """Return the folder to write; raise if it is in use or cannot be written."""
    if output is None:
        if folder.unfinished is not None:
            raise RunError(
                f"there is an unfinished fit in {folder.path}; go on with it, or name another folder "
                "with -o"
            )
        return folder
    target = RunFolder(output)
    target.check_free(overwrite=False, resume=False)
    check_place(target)
    return target


def _read(folder: RunFolder) -> tuple[bytes, PromptEnsemble, Results]:
    """Read the ensemble of a run, as bytes and parsed, and its results."""
    _ = folder.tables
    return (
        read_bytes(folder.ensemble_path),
        PromptEnsemble.load(folder.ensemble_path),
        folder.results,
    )


def _source(folder: RunFolder, given: str | None) -> DataSource:
    """Return the source of the images; raise if they are missing."""
    source = folder.source if given is None else DataSource.parse(given)
    if given is None and source.path is not None and not source.path.exists():
        raise DataError(
            f"the images of the run are gone: {source.path} does not exist; "
            "--data DIR names another place"
        )
    return source


def _task(
    folder: RunFolder,
    lineage: Lineage,
    source: DataSource,
    ensemble: PromptEnsemble,
    before: Results,
    progress: Progress,
    say: Say,
) -> tuple[Task, bool]:
    """Split the images as the fit did, without those of classes that the ensemble does not have.

    The second value is whether the training images differ from those of the fit.
    """
    task = load_task(source, folder.settings, progress=progress)
    changed = task.learn.fingerprint != folder.learn_fingerprint
    names = set(ensemble.class_names)
    now = {old: new for new, old in original_names(task.class_names, lineage.changes).items()}
    strange = sorted(name for name in task.class_names if now.get(name) not in names)
    if strange:
        say(f"left out: images of classes that the text does not have: {few(strange)}")
    learn, held_out = (_of_classes(part, ensemble, now) for part in (task.learn, task.held_out))
    if len({image.label for image in learn.images}) < 2:
        raise DataError(
            f"{source} has images of fewer than two classes of the text; --data DIR names others"
        )
    bare = sorted(names - {image.label for image in learn.images})
    if bare:
        say(f"no images, so words alone, in balance with the others: {few(bare)}")
    if changed:
        say(f"the images to learn from are not those of the fit, but {count(len(learn), 'image')}")
        digests = [bytes.fromhex(d) for d in before.task.learn_digests or ()]
        known = inspect_known(digests, held_out, progress=progress)
        held_out = held_out.subset(np.flatnonzero(~known.leaked))
    kind = task.kind if len(held_out) else None
    return replace(task, learn=learn, held_out=held_out, kind=kind), changed


def _of_classes(data: Dataset, ensemble: PromptEnsemble, now: Mapping[str, str]) -> Dataset:
    """Return the images of the classes of an ensemble, with the current names of these."""
    kept = tuple(
        replace(image, label=now[image.label])
        for image in data.images
        if now.get(image.label) in ensemble.class_names
    )
    return Dataset(kept, ensemble.class_names, data.bad)


def _pool(
    folder: RunFolder, lineage: Lineage, source: DataSource, ensemble: PromptEnsemble, say: Say
) -> PromptPool:
    """Build the pool of the fit again."""
    names = ensemble.class_names
    # Sentences are listed under the class names of the fit, and its templates were filled with them.
    known = folder.tables.get("data", {}).get("classes", names)
    then = original_names(known, lineage.changes)
    try:
        pool = pool_for(folder.settings, source, [then.get(name, name) for name in names])
        now = {old: new for new, old in then.items()}
        missing = tuple(now.get(name, name) for name in pool.missing)
        return replace(pool, class_names=names, missing=missing)
    except (PoolError, OSError) as error:
        say(f"without the sentences of the fit: {error}")
        return build_pool(ensemble.class_names)


def _say_moved(before: Results, settings: FitConfig, target: RunFolder, say: Say) -> None:
    """Name the encoders that the run was transferred to: their heads are outdated."""
    moved = [item.encoder for item in before.transfers if item.encoder not in settings.encoders]
    for name in moved:
        command = shlex.join(["transfer", str(target.path), "--encoder", name])
        say(f"to move it to {name} again, type: {command_name()} {command}")
