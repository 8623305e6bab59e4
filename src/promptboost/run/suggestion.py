"""Suggestions: which images of a folder to label next."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from promptboost.data import Dataset
from promptboost.data.shots import load_task
from promptboost.data.source import DataSource, find_images
from promptboost.errors import DataError
from promptboost.model.classifier import PromptClassifier
from promptboost.model.decisions import choose_images
from promptboost.model.prediction import Prediction
from promptboost.progress import Progress, no_progress
from promptboost.run.evaluate import as_called_now
from promptboost.run.predict import ScoredRow, decide, scored_rows
from promptboost.run.run_folder import RunFolder


def suggest_images(
    run: RunFolder,
    classifier: PromptClassifier,
    paths: Sequence[str | Path],
    n: int = 20,
    *,
    source: str | DataSource | None = None,
    progress: Progress = no_progress,
) -> list[Prediction]:
    """Choose the images to label next, balanced over predicted classes and spread over the images.

    Images of the run are passed over, also under another name. `classifier` is that of the run, and
    `source` is where its images are now, if they were moved. The predictions are in the order of choice,
    with the three most probable classes.
    """
    names, learn = classifier.class_names, Dataset((), classifier.class_names)
    digests = {bytes.fromhex(digest) for digest in run.results.task.learn_digests or ()}
    with suppress(DataError):  # the images of the run may be gone
        task = load_task(source or run.source, run.settings, progress=progress)
        learn = as_called_now(task.learn, run, names)
        digests |= {image.digest() for image in (*task.learn.images, *task.held_out.images)}
    images = {image.id: image for image in find_images(paths).images}
    scored = [
        row
        for row in scored_rows(classifier, images.values(), len(images))
        if isinstance(row, ScoredRow) and images[row.image].digest() not in digests
    ]
    if not images:
        raise DataError(f"there are no images in {', '.join(map(str, paths))}")
    if not scored:
        return []
    chosen = choose_images(
        np.stack([row.probabilities for row in scored]),
        np.stack([row.rows[0] for row in scored]),
        classifier.embedder.originals(learn) if len(learn) else np.empty((0, classifier.head.dim)),
        np.bincount(learn.labels, minlength=len(names)),
        n,
    )
    return list(decide(classifier, [scored[i] for i in chosen], top_k=3))
