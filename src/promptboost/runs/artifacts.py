"""The files of a finished fit."""

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from promptboost.data import Dataset, ImageError, LabelledImage
from promptboost.data.shots import Task, image_ids
from promptboost.files import write_text
from promptboost.runs.learned import Learned, TaskEmbeddings
from promptboost.runs.results import Results
from promptboost.runs.run_folder import RunFolder

_SIDE = 96
_PAIRS_SHOWN = 12


def images_shown(results: Results) -> list[str]:
    """Name the images a report shows: of the most frequent confusions, and the hardest."""
    mixed = [name for pair in results.confusions[:_PAIRS_SHOWN] for name in pair.images]
    return list(dict.fromkeys([*mixed, *(item.image for item in results.hardest)]))


def thumbnail(image: LabelledImage) -> str:
    """Make a small JPEG of an image, as an address that holds the data itself."""
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
    embeddings: TaskEmbeddings,
    learned: Learned,
    results: Results,
    finish: Iterable[Callable[[Path], object]] = (),
) -> None:
    """Write everything; the rounds so far go last, as without them the run counts as finished."""
    run.write_ensemble(learned.ensemble)
    learned.head.save(run.head_path(results.encoder.id))
    write_text(run.predictions_path, _predictions(task, embeddings, learned))
    write_thumbnails(run.thumbnails_path, images_shown(results), (task.measured, task.learn))
    results.write(run.metrics_path)
    for write in finish:
        write(run.path)
    run.sweep()
    run.partial_path.unlink(missing_ok=True)


def _predictions(task: Task, embeddings: TaskEmbeddings, learned: Learned) -> str:
    """Return the table of ``predictions.csv``."""
    rows = embeddings.learn[:, 0] if task.kind is None else embeddings.held_out
    chances = learned.head.predict_proba(rows)
    best = learned.head.predict_index(rows)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["picture", "label", "predicted", "probability"])  # read by other programs
    labels = [image.label for image in task.measured.images]
    for i, (name, label) in enumerate(zip(image_ids(task.measured), labels, strict=True)):
        guess = int(best[i])
        table.writerow([name, label, task.class_names[guess], f"{chances[i, guess]:.6f}"])
    return text.getvalue()
