"""The files of a finished fit."""

import base64
import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from promptboost.data import Dataset, ImageError, LabelledImage
from promptboost.data.shots import Task, image_ids
from promptboost.files import write_text
from promptboost.runs.baselines import Learned, Rows
from promptboost.runs.folder import RunFolder
from promptboost.runs.metrics import write_metrics

__all__ = ["images_shown", "thumbnail", "write_thumbnails", "write_run"]

_SIDE = 96
_PAIRS_SHOWN = 12


def images_shown(metrics: dict[str, Any]) -> list[str]:
    """Name the images a report shows: of the most frequent confusions, and the hardest.

    Examples
    --------
    >>> images_shown({"confusions": [{"pictures": ["a"]}], "hardest": [{"picture": "b"}]})
    ['a', 'b']
    """
    names = [name for pair in metrics["confusions"][:_PAIRS_SHOWN] for name in pair["pictures"]]
    return list(dict.fromkeys([*names, *(item["picture"] for item in metrics["hardest"])]))


def thumbnail(image: LabelledImage) -> str:
    """Make a small JPEG of an image, as an address that holds the data itself.

    Examples
    --------
    >>> from PIL import Image
    >>> thumbnail(LabelledImage("0", "red", Image.new("RGB", (200, 100), "red")))[:30]
    'data:image/jpeg;base64,/9j/4AA'
    """
    small = image.open()
    small.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def write_thumbnails(path: Path, names: Iterable[str], datasets: Iterable[Dataset]) -> None:
    """Write thumbnails of the named images; one that is gone by now is left out."""
    wanted = set(names)
    found: dict[str, str] = {}
    for data in datasets:
        for name, image in zip(image_ids(data), data.images, strict=True):
            if name in wanted and name not in found:
                try:
                    found[name] = thumbnail(image)
                except ImageError:
                    continue
    write_text(path, json.dumps(found, ensure_ascii=False) + "\n")


def write_run(
    run: RunFolder,
    task: Task,
    rows: Rows,
    learned: Learned,
    metrics: dict[str, Any],
) -> None:
    """Write everything; the rounds so far go last, as without them the run counts as finished."""
    run.write_ensemble(learned.ensemble)
    learned.head.save(run.head_path(metrics["encoder"]["id"]))
    write_text(run.predictions_path, _predictions(task, rows, learned))
    write_thumbnails(run.thumbnails_path, images_shown(metrics), (task.measured, task.learn))
    write_metrics(run.metrics_path, metrics)
    from promptboost.report import write_card, write_report

    write_report(run.path)
    write_card(run.path)
    run.sweep()
    run.partial_path.unlink(missing_ok=True)


def _predictions(task: Task, rows: Rows, learned: Learned) -> str:
    """Return the table of ``predictions.csv``."""
    embedded = rows.learn[:, 0] if task.kind is None else rows.held_out
    chances = learned.head.predict_proba(embedded)
    best = learned.head.predict_index(embedded)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["picture", "label", "predicted", "probability"])
    labels = [image.label for image in task.measured.images]
    for i, (name, label) in enumerate(zip(image_ids(task.measured), labels, strict=True)):
        guess = int(best[i])
        table.writerow([name, label, task.class_names[guess], f"{chances[i, guess]:.6f}"])
    return text.getvalue()
