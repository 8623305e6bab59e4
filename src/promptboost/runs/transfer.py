"""The same text on another encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptboost.data import Dataset
from promptboost.data.shots import Task, load_task
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError, PromptBoostError
from promptboost.evaluation.measures import accuracy
from promptboost.model import LinearHead, PromptEnsemble
from promptboost.model.classifier import AnyHead, embed_ensemble
from promptboost.pool import PromptPool
from promptboost.runs.baselines import Words, pool_for, text_methods, zero_shot_rows
from promptboost.runs.evaluate import with_classes
from promptboost.runs.folder import RunFolder
from promptboost.runs.metrics import read_metrics, write_metrics
from promptboost.runs.predict import learnt_positions

__all__ = ["measure_transfer", "transfer_run"]


@dataclass(frozen=True)
class _Measured:
    """The images to measure on, and what is known about them."""

    data: Dataset
    are: str = "held out"
    note: str = ""
    left_out: int = 0


def transfer_run(
    run: Path,
    encoder: str,
    source: str | None = None,
    *,
    cache: bool = True,
    progress: bool = True,
    device: str | None = None,
) -> dict[str, Any]:
    """Embed the text of a run with another encoder, and measure it on held-out images.

    Writes the new head beside the text, and the figures into ``metrics.json``, replacing those of
    an earlier transfer to the same encoder; if nothing can be measured now, those are kept.

    Parameters
    ----------
    run : Path
        A finished run.
    encoder : str
        Name of the other encoder.
    source : str, optional
        Where the run's images are now; by default where they were. Other images can be given:
        all of them, or their split ``test``, are measured on, but for those the run learnt from.
    cache, progress, device
        See :class:`~promptboost.encoders.embedder.Embedder`.

    Returns
    -------
    dict
        The figures, and ``head``, ``images`` (how many were measured on), ``images_are`` (what
        is known about them), ``left_out`` (how many were not, as the run learnt from them) and
        ``note``.
    """
    folder = RunFolder(run)
    folder.check_finished()
    ensemble = PromptEnsemble.load(folder.ensemble_path)
    metrics = read_metrics(folder.metrics_path)
    embedder = Embedder.open(encoder, cache=cache, progress=progress, device=device)
    measured = _held_out(folder, ensemble, source, progress)
    head = embed_ensemble(ensemble, embedder)
    head.save(folder.head_path(embedder.encoder.id))
    pool = _pool(folder, ensemble)
    line = {
        "encoder": embedder.encoder.id,
        **measure_transfer(head, pool, measured.data, embedder, ensemble.class_names),
    }
    note = measured.note
    others = [old for old in metrics["transfers"] if old["encoder"] != line["encoder"]]
    before = [old for old in metrics["transfers"] if old["encoder"] == line["encoder"]]
    if line["boosted"] is None and any(old["boosted"] is not None for old in before):
        note += "; the figures measured before are kept"
    else:
        kept = {**line, "note": note} if note else line
        write_metrics(folder.metrics_path, {**metrics, "transfers": [*others, kept]})
    return {
        **line,
        "head": str(folder.head_path(embedder.encoder.id)),
        "pictures": len(measured.data),
        "pictures_are": measured.are,
        "left_out": measured.left_out,
        "note": note,
    }


def measure_transfer(
    head: AnyHead,
    pool: PromptPool | None,
    held_out: Dataset,
    embedder: Embedder,
    class_names: tuple[str, ...],
) -> dict[str, float | None]:
    """Compare a head with what its encoder does without having learnt; None where nothing can be."""
    names = ("zero_shot", "template_mean", "pool_mean", "boosted")
    found: dict[str, float | None] = dict.fromkeys(names)
    if not len(held_out):
        return found
    rows = embedder.originals(held_out)
    if pool is None:
        methods = {"zero_shot": zero_shot_rows(class_names, embedder)}
    else:
        methods = text_methods(Words.embed(pool, embedder))
    for name, weights in methods.items():
        guess = LinearHead(class_names, weights).predict_index(rows)
        found[name] = accuracy(guess, held_out.labels)
    found["boosted"] = accuracy(head.predict_index(rows), held_out.labels)
    return found


def _held_out(
    folder: RunFolder, ensemble: PromptEnsemble, source: str | None, progress: bool
) -> _Measured:
    """Find the images that the run did not learn from, and say what they are."""
    empty = Dataset((), ensemble.class_names)
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        if source is not None:
            raise
        return _Measured(empty, note=f"not measured: {error}")
    same = task.learn.fingerprint == folder.tables.get("data", {}).get("learn_fingerprint")
    if same:
        kept = with_classes(task.held_out, ensemble.class_names)
        return _Measured(kept, note="" if len(kept) else "not measured: no image was held out")
    if source is None:
        note = f"not measured: the images in {folder.source} have changed"
        return _Measured(empty, note=note)
    return _others(folder, with_classes(_all_or_test(task), ensemble.class_names))


def _others(folder: RunFolder, data: Dataset) -> _Measured:
    """Leave out the images that the run learnt from, as far as it says which they are."""
    learnt = learnt_positions(folder, data)
    if learnt is None:
        note = "measured on other images; the run does not say whether it learnt from some"
        return _Measured(data, "perhaps learnt from", note)
    known = set(learnt)
    rest = data.subset([i for i in range(len(data)) if i not in known])
    if not len(rest):
        note = "not measured: the run learnt from all these images"
    elif learnt:
        note = f"measured on other images; left out, as the run learnt from them: {len(learnt)}"
    else:
        note = "measured on other images"
    return _Measured(rest, "none the same as one learnt from", note, len(learnt))


def _all_or_test(task: Task) -> Dataset:
    if task.kind in ("test", "val"):
        return task.held_out
    images = (*task.learn.images, *task.held_out.images)
    return Dataset(images, task.class_names, task.learn.bad)


def _pool(folder: RunFolder, ensemble: PromptEnsemble) -> PromptPool | None:
    """Make the run's pool again, or None if its sentences are gone or have changed."""
    try:
        pool = pool_for(folder.settings, folder.source, ensemble.class_names)
    except PromptBoostError:
        return None
    return pool if pool.fingerprint == ensemble.pool_fingerprint else None
