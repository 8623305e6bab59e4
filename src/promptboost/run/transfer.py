"""The text of a run on another encoder: embedded there, and measured on images it did not learn from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.baselines.baselines import TEXT_BASELINES, pool_heads, zero_shot_head
from promptboost.baselines.measures import OURS, TEXT, accuracy
from promptboost.config import FitConfig
from promptboost.data import Dataset
from promptboost.data.shots import Task, load_task
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError, PromptBoostError, RunError, without_place
from promptboost.model import Head, PromptEnsemble
from promptboost.model.head_files import (
    check_head_file,
    embed_ensemble,
    write_head,
)
from promptboost.pool import PromptPool
from promptboost.progress import Progress, no_progress
from promptboost.run.evaluate import as_called_now, inspect_run, with_classes
from promptboost.run.preflight import pool_for
from promptboost.run.results import TransferResult
from promptboost.run.run_folder import RunFolder
from promptboost.training import Trainer
from promptboost.training.examples import Examples


@dataclass(frozen=True)
class _Measured:
    """The images to measure on, and what is known about them."""

    data: Dataset
    are: str = "held out"
    note: str = ""
    left_out: int = 0
    learn: Dataset | None = None  # those the run learned from, where they are the same still


def transfer_run(
    run: Path,
    encoder: str,
    source: str | None = None,
    *,
    text_only: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    finish: tuple[Callable[[Path], object], ...] = (),
) -> dict[str, Any]:
    """Embed the text of a run with another encoder, and measure it on held-out images.

    `source` is where the run's images are now. Other images can be given too: all of them, or their
    split ``test``, are measured on, but for those the run learned from.

    Where the images that the run learned from are still the same, a residual is learned from them anew;
    else the text answers alone, and the note says so. With `text_only` it does so in any case, and no image
    of the fit is looked at.

    Writes the new head beside the text, and the figures into ``metrics.json``, replacing those of
    an earlier transfer to the same encoder; if nothing can be measured now, those are kept. `finish`
    is called with the folder then: what writes the report and the card.
    """
    folder = RunFolder(run)
    folder.check_finished()
    ensemble = folder.steady(lambda: _read(folder))
    check_head_file(encoder, run)
    embedder = Embedder.open(encoder, cache=cache, progress=progress, device=device)
    measured = _held_out(folder, ensemble, source, progress)
    pool, head = run_pool(folder, ensemble), embed_ensemble(ensemble, embedder)
    with_residual = folder.settings.residual and not text_only
    if with_residual:
        head = _with_residual(ensemble, head, pool, measured.learn, folder.settings, embedder)
    head_path = folder.head_path(embedder.encoder.id)
    figures = _measure(head, pool, measured.data, embedder)
    note = measured.note
    if with_residual and measured.learn is None:
        note += (
            "; " * bool(note) + "without a residual, which is learned from the images of the fit"
        )
    learned_on = embedder.encoder.id in [item.id for item in ensemble.encoders[1:]]
    moved = TransferResult(embedder.encoder.id, figures, note, learned_on)
    with folder.writing("transfer"):
        # Others may have written since: what is added to is what is there now.
        if _read(folder).fingerprint != ensemble.fingerprint:
            raise RunError(f"the text in {run} was changed meanwhile; run the same command again")
        write_head(folder.path, head)
        note += _add_transfer(folder, moved)
        for write in finish:
            write(folder.path)
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
    """Learn the residual anew from the images of the fit, where they are at hand: it cannot move."""
    if learn is None:
        return head
    unseen = zero_shot_head(head.class_names, embedder)
    if pool is not None:
        unseen = pool_heads(pool, embedder)["zero-shot-80"]
    rows = embedder.images(learn, views=settings.views, view_scale=settings.view_scale)
    views = rows[:, 1:]
    examples = Examples(rows[:, 0], learn.labels, learn.ids, views=views if views.size else None)
    fitted = Trainer(settings).refit(ensemble, examples, [embedder], unseen=[unseen.weights])
    return fitted.head


def _read(folder: RunFolder) -> PromptEnsemble:
    """Read all that a transfer needs of a run."""
    _ = folder.results, folder.tables
    return PromptEnsemble.load(folder.ensemble_path)


def _add_transfer(folder: RunFolder, moved: TransferResult) -> str:
    """Write figures beside those of other encoders; return what to say of those before."""
    results = folder.results
    before = [old for old in results.transfers if old.encoder == moved.encoder]
    if moved.of(OURS) is None and any(old.of(OURS) is not None for old in before):
        return "; the figures measured before are kept"
    others = [old for old in results.transfers if old.encoder != moved.encoder]
    results = msgspec.structs.replace(results, transfers=(*others, moved))
    results.write(folder.metrics_path)
    return ""


def _measure(
    head: Head, pool: PromptPool | None, held_out: Dataset, embedder: Embedder
) -> dict[str, float | None]:
    """Compare a head with what its encoder does without having learned; None where nothing can be."""
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
    for name, one in {**heads, OURS: head}.items():
        figures[name] = accuracy(one.predict_index(rows), held_out.labels)
    return figures


def _held_out(
    folder: RunFolder, ensemble: PromptEnsemble, source: str | None, progress: Progress
) -> _Measured:
    """Find the images that the run did not learn from, and what is known about them."""
    empty = Dataset((), ensemble.class_names)
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        if source is not None:
            raise
        # The note goes into the figures, which are passed on: without the folders above the images.
        where = str(folder.source.path)
        return _Measured(
            empty, note=f"not measured: {str(error).replace(where, without_place(where))}"
        )
    if task.learn.fingerprint == folder.learn_fingerprint:
        learn, kept = (
            with_classes(as_called_now(part, folder), ensemble.class_names)
            for part in (task.learn, task.held_out)
        )
        note = "" if len(kept) else "not measured: no image was held out"
        return _Measured(kept, note=note, learn=learn)
    if source is None:
        shown = without_place(str(folder.source))
        return _Measured(empty, note=f"not measured: the images in {shown} have changed")
    return _others(folder, with_classes(_all_or_test(task), ensemble.class_names), progress)


def _others(folder: RunFolder, data: Dataset, progress: Progress) -> _Measured:
    """Leave out the images that the run learned from, as far as it says which they are."""
    inspection = inspect_run(folder, data, progress=progress)
    if inspection is None:
        note = "measured on other images; the run does not say whether it learned from some"
        return _Measured(data, "perhaps learned from", note)
    learned = int(inspection.leaked.sum())
    rest = data.subset(np.flatnonzero(~inspection.leaked))
    if not len(rest):
        note = "not measured: the run learned from all these images"
    elif learned:
        note = f"measured on other images; left out, as the run learned from them: {learned}"
    else:
        note = "measured on other images"
    return _Measured(rest, "none the same as one learned from", note, learned)


def _all_or_test(task: Task) -> Dataset:
    if task.kind in ("test", "val"):
        return task.held_out
    images = (*task.learn.images, *task.held_out.images)
    return Dataset(images, task.class_names, task.learn.bad)


def run_pool(folder: RunFolder, ensemble: PromptEnsemble) -> PromptPool | None:
    """Make the run's pool again, or None if its sentences are gone or have changed."""
    try:
        pool = pool_for(folder.settings, folder.source, ensemble.class_names)
    except PromptBoostError:
        return None
    return pool if pool.fingerprint == ensemble.pool_fingerprint else None
