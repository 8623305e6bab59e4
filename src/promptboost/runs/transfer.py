"""The same text on another encoder."""

from pathlib import Path
from typing import Any

from promptboost.data import Dataset
from promptboost.ensemble import PromptEnsemble
from promptboost.errors import DataError, PromptBoostError
from promptboost.head import LinearHead
from promptboost.pool import PromptPool, build_pool
from promptboost.runs.embedding import Embedder
from promptboost.runs.evaluate import with_classes
from promptboost.runs.folder import RunFolder
from promptboost.runs.heads import AnyHead, embed_ensemble
from promptboost.runs.measures import accuracy
from promptboost.runs.measuring import text_methods
from promptboost.runs.metrics import read_metrics, write_metrics
from promptboost.runs.task import Task, load_task
from promptboost.runs.words import Words, pool_for

__all__ = ["measure_transfer", "transfer_run"]


def transfer_run(
    run: Path,
    encoder: str,
    source: str | None = None,
    *,
    cache: bool = True,
    progress: bool = True,
) -> dict[str, Any]:
    """Embed the text of a run with another encoder, and measure it on held-out pictures.

    Writes the new head beside the text, and the figures into ``metrics.json``, replacing those of
    an earlier transfer to the same encoder.

    Parameters
    ----------
    run : Path
        A finished run.
    encoder : str
        Name of the other encoder.
    source : str, optional
        Where the run's pictures are now; by default where they were. Other pictures can be given:
        all of them, or their split ``test``, are then held out.
    cache, progress
        See :class:`~promptboost.runs.embedding.Embedder`.

    Returns
    -------
    dict
        The line of ``metrics.json``, and ``head``, ``pictures`` and ``note``.
    """
    folder = RunFolder(run)
    folder.check_finished()
    ensemble = PromptEnsemble.load(folder.ensemble_path)
    metrics = read_metrics(folder.metrics_path)
    embedder = Embedder.open(encoder, cache=cache, progress=progress)
    held_out, note = _held_out(folder, ensemble, source, progress)
    head = embed_ensemble(ensemble, embedder)
    head.save(folder.head_path(embedder.encoder.id))
    pool = _pool(folder, ensemble)
    line = {
        "encoder": embedder.encoder.id,
        **measure_transfer(head, pool, held_out, embedder, ensemble.class_names),
    }
    others = [old for old in metrics["transfers"] if old["encoder"] != line["encoder"]]
    write_metrics(folder.metrics_path, {**metrics, "transfers": [*others, line]})
    head_file = str(folder.head_path(embedder.encoder.id))
    return {**line, "head": head_file, "pictures": len(held_out), "note": note}


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
    words = Words.embed(pool or build_pool(class_names), embedder)
    for name, weights in text_methods(words).items():
        if pool is not None or name == "zero_shot":
            guess = LinearHead(class_names, weights).predict_index(rows)
            found[name] = accuracy(guess, held_out.labels)
    found["boosted"] = accuracy(head.predict_index(rows), held_out.labels)
    return found


def _held_out(
    folder: RunFolder, ensemble: PromptEnsemble, source: str | None, progress: bool
) -> tuple[Dataset, str]:
    """Find the pictures that the run did not learn from, and say what they are."""
    empty = Dataset((), ensemble.class_names)
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        if source is not None:
            raise
        return empty, f"not measured: {error}"
    same = task.learn.fingerprint == folder.tables.get("data", {}).get("learn_fingerprint")
    if same:
        kept = with_classes(task.held_out, ensemble.class_names)
        return kept, "" if len(kept) else "not measured: no picture was held out"
    if source is None:
        return empty, f"not measured: the pictures in {folder.source} have changed"
    return with_classes(_unseen(task), ensemble.class_names), "measured on other pictures"


def _unseen(task: Task) -> Dataset:
    if task.kind in ("test", "val"):
        return task.held_out
    pictures = (*task.learn.pictures, *task.held_out.pictures)
    return Dataset(pictures, task.class_names, task.learn.bad)


def _pool(folder: RunFolder, ensemble: PromptEnsemble) -> PromptPool | None:
    """Make the run's pool again, or None if its sentences are gone or have changed."""
    try:
        pool = pool_for(folder.settings, folder.source, ensemble.class_names)
    except PromptBoostError:
        return None
    return pool if pool.fingerprint == ensemble.pool_fingerprint else None
