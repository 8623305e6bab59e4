"""The files of a finished fit."""

import csv
import io
from typing import Any

from promptboost.files import write_text
from promptboost.runs.folder import RunFolder
from promptboost.runs.learning import Learned, Rows
from promptboost.runs.metrics import write_metrics
from promptboost.runs.task import Task, picture_ids
from promptboost.runs.thumbnails import pictures_shown, write_thumbnails

__all__ = ["write_run"]


def write_run(
    run: RunFolder,
    task: Task,
    rows: Rows,
    learned: Learned,
    metrics: dict[str, Any],
    logit_scale: float,
) -> None:
    """Write everything; the rounds so far go last, as without them the run counts as finished.

    Probabilities have the sharpness of the encoder's own zero-shot classifier: the one that boosting
    implies grows with every round, and says "certain" of nearly everything.
    """
    learned.ensemble.save(run.ensemble_path)
    learned.head.save(run.head_path(metrics["encoder"]["id"]))
    write_text(run.predictions_path, _predictions(task, rows, learned, logit_scale))
    write_thumbnails(run.thumbnails_path, pictures_shown(metrics), (task.measured, task.learn))
    write_metrics(run.metrics_path, metrics)
    from promptboost.report import write_card, write_report

    write_report(run.path)
    write_card(run.path)
    run.sweep()
    run.partial_path.unlink(missing_ok=True)


def _predictions(task: Task, rows: Rows, learned: Learned, logit_scale: float) -> str:
    """Give the table of ``predictions.csv``."""
    embedded = rows.learn[:, 0] if task.kind is None else rows.held_out
    chances = learned.head.predict_proba(embedded, logit_scale)
    best = learned.head.predict_index(embedded)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["picture", "label", "predicted", "probability"])
    labels = [picture.label for picture in task.measured.pictures]
    for i, (name, label) in enumerate(zip(picture_ids(task.measured), labels, strict=True)):
        guess = int(best[i])
        table.writerow([name, label, task.class_names[guess], f"{chances[i, guess]:.6f}"])
    return text.getvalue()
