"""Transfer the text of a run to another encoder, and measure it on images not used for training."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.baselines import OURS, TEXT, TEXT_BASELINES, accuracy, pool_heads, zero_shot_head
from promptboost.config import FitConfig
from promptboost.data import Dataset
from promptboost.data.shots import load_task
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError, PromptBoostError, RunError, command_name, without_place
from promptboost.model import Head, PromptEnsemble
from promptboost.model.head import check_head_file, read_residual_record, write_head
from promptboost.model.head_files import embed_ensemble, stored_head
from promptboost.pool import PromptPool
from promptboost.progress import Progress, no_progress
from promptboost.report.page import write_pages
from promptboost.run.evaluate import as_called_now, inspect_run, with_classes
from promptboost.run.fit import pool_for
from promptboost.run.results import Results, TransferResult
from promptboost.run.run_folder import RunFolder
from promptboost.training import Trainer
from promptboost.training.examples import Examples


@dataclass(frozen=True)
class _Measured:
    """The images to measure on, and remarks about them."""

    data: Dataset
    are: str = "held out"
    note: str = ""
    left_out: int = 0
    learn: Dataset | None = None  # the training images, if they have not changed


def transfer_run(
    run: Path,
    encoder: str,
    source: str | None = None,
    *,
    text_only: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
) -> dict[str, Any]:
    """Embed the text of a run with another encoder, and measure it on held-out images.

    `source` is where the run's images are now, or other images. Of these, all or the split ``test`` are
    measured, except the training images of the run.

    If the training images have not changed, a residual is fitted to them; else, or with `text_only`, the
    text predicts alone. On an encoder of the fit, the residual of the fit is used, and its head is kept;
    so is the residual of an earlier transfer if none can be fitted now.

    Writes the new head, and the results into ``metrics.json``, where they replace those of an earlier
    transfer to the same encoder, unless nothing can be measured now. Report and card are written again.
    """
    folder = RunFolder(run)
    folder.check_finished()
    ensemble = folder.steady(lambda: _read(folder))
    check_head_file(encoder, run)
    embedder = Embedder.open(encoder, cache=cache, progress=progress, device=device)
    measured = _held_out(folder, ensemble, source, progress)
    pool, head = run_pool(folder, ensemble), embed_ensemble(ensemble, embedder)
    with_residual = folder.settings.residual and not text_only
    head_path = folder.head_path(embedder.encoder.id)
    has_residual = head_path.name in read_residual_record(folder.path)[0]
    fitted_on = embedder.encoder.id in [record.id for record in ensemble.encoders]
    keep_head = has_residual and (fitted_on or (not text_only and measured.learn is None))
    if keep_head:
        head = stored_head(folder.path, ensemble, head, text_only=text_only)
        keep_head = text_only or head.residual is not None
    if with_residual and not keep_head:
        head = _with_residual(ensemble, head, pool, measured.learn, folder.settings, embedder)
    figures = _measure(head, pool, measured.data, embedder)
    remarks = [measured.note] if measured.note else []
    if with_residual and head.residual is None and measured.learn is None:
        remarks.append("without a residual and thresholds, which need the images of the fit")
    elif has_residual and head.residual is None and not keep_head:
        remarks.append("the residual of an earlier transfer is dropped")
    note = "; ".join(remarks)
    learned_on = embedder.encoder.id in [record.id for record in ensemble.encoders[1:]]
    moved = TransferResult(embedder.encoder.id, figures, note, learned_on)
    with folder.writing("transfer"):
        # Read again: others may have written since.
        if _read(folder).fingerprint != ensemble.fingerprint:
            raise RunError(f"the text in {run} was changed meanwhile; run the same command again")
        if not keep_head:
            write_head(folder.path, head)
        note += _add_transfer(folder, moved)
        write_pages(folder.path)
    return {
        **msgspec.to_builtins(moved),
        "head": str(head_path),
        "images": len(measured.data),
        "images_are": measured.are,
        "left_out": measured.left_out,
        "note": note,
    }


def _with_residual(
    ensemble: PromptEnsemble,
    head: Head,
    pool: PromptPool | None,
    learn: Dataset | None,
    settings: FitConfig,
    embedder: Embedder,
) -> Head:
    """Fit a residual to the training images, if there are any."""
    if learn is None:
        return head
    unseen = zero_shot_head(head.class_names, embedder)
    if pool is not None:
        unseen = pool_heads(pool, embedder)["template-mean"]
    rows = embedder.images(learn, views=settings.crops(len(learn)), view_scale=settings.view_scale)
    examples = Examples.with_views(rows, learn.labels, learn.ids, groups=learn.groups)
    fitted = Trainer(settings).refit(ensemble, examples, [embedder], unseen=[unseen.weights])
    return fitted.head


def _read(folder: RunFolder) -> PromptEnsemble:
    """Read all that a transfer needs of a run."""
    _ = folder.results, folder.tables
    return folder.ensemble


def _add_transfer(folder: RunFolder, moved: TransferResult) -> str:
    """Add a transfer to the results; return a remark on those of an earlier one."""
    results = folder.results
    earlier = [old for old in results.transfers if old.encoder == moved.encoder]
    if moved.accuracy.get(OURS) is None and any(
        old.accuracy.get(OURS) is not None for old in earlier
    ):
        return "; the earlier results are kept"
    others = [old for old in results.transfers if old.encoder != moved.encoder]
    results = msgspec.structs.replace(results, transfers=(*others, moved))
    results.write(folder.metrics_path)
    return ""


def _measure(
    head: Head, pool: PromptPool | None, held_out: Dataset, embedder: Embedder
) -> dict[str, float | None]:
    """Measure a head and the baselines without training images; None without test images."""
    figures: dict[str, float | None] = dict.fromkeys((*TEXT_BASELINES, OURS))
    if not len(held_out):
        return figures
    rows, names = embedder.originals(held_out), head.class_names
    if pool is None:
        heads: dict[str, Head] = {"zero-shot": zero_shot_head(names, embedder)}
    else:
        heads = {**pool_heads(pool, embedder)}
    if head.residual is not None:
        heads[TEXT] = head.without_residual()
    for name, method in {**heads, OURS: head}.items():
        figures[name] = accuracy(method.predict_index(rows), held_out.labels)
    return figures


def _held_out(
    folder: RunFolder, ensemble: PromptEnsemble, source: str | None, progress: Progress
) -> _Measured:
    """Find images that are not in the training set of the run."""
    empty = Dataset((), ensemble.class_names)
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        if source is not None:
            raise
        # The note is part of the results, which are shared: without the folders of the images.
        where = str(folder.source.path)
        return _Measured(
            empty, note=f"not measured: {str(error).replace(where, without_place(where))}"
        )
    if task.learn.fingerprint == folder.learn_fingerprint:
        learn, held_out = (
            as_called_now(data, folder, ensemble.class_names)
            for data in (task.learn, task.held_out)
        )
        note = "" if len(held_out) else "not measured: no image was held out"
        return _Measured(held_out, note=note, learn=learn)
    if source is None:
        shown = without_place(str(folder.source))
        return _Measured(empty, note=f"not measured: the images in {shown} have changed")
    data = task.held_out
    if task.kind not in ("test", "val"):
        images = (*task.learn.images, *task.held_out.images)
        data = Dataset(images, task.class_names, task.learn.bad)
    data = with_classes(data, ensemble.class_names)
    inspection = inspect_run(folder, data, progress=progress)
    if inspection is None:
        note = "measured on other images, which may be in the training set: the run has no digests"
        return _Measured(data, "perhaps trained on", note)
    learned = int(inspection.leaked.sum())
    unseen = data.subset(np.flatnonzero(~inspection.leaked))
    note = "measured on other images"
    if not len(unseen):
        note = "not measured: all these images are in the training set"
    elif learned:
        note += f"; left out because they are in the training set: {learned}"
    return _Measured(unseen, "none in the training set", note, learned)


def outdated_heads(results: Results, encoders: Sequence[str], run: Path) -> list[str]:
    """Return the commands that transfer a changed text again, for the encoders of earlier transfers."""
    return [
        f"to transfer it to {moved.encoder} again, type: {command_name()} "
        + shlex.join(["transfer", str(run), "--encoder", moved.encoder])
        for moved in results.transfers
        if moved.encoder not in encoders
    ]


def run_pool(folder: RunFolder, ensemble: PromptEnsemble) -> PromptPool | None:
    """Make the pool of a run again; None if its sentences are missing or have changed."""
    try:
        pool = pool_for(folder.settings, folder.source, ensemble.class_names)
    except PromptBoostError:
        return None
    return pool if pool.fingerprint == ensemble.pool_fingerprint else None
