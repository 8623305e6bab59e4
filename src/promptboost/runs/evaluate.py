"""How good a run is on other labelled images."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data import Dataset, load_data
from promptboost.data.shots import image_ids
from promptboost.errors import DataError
from promptboost.evaluation.measures import accuracy, class_accuracy, confusions, per_class
from promptboost.model import LinearHead
from promptboost.pool import PLAIN_TEMPLATE, fill
from promptboost.runs.folder import RunFolder
from promptboost.runs.predict import Predictor, learnt_positions

__all__ = ["evaluate_run", "with_classes"]


def evaluate_run(
    run: Path,
    source: str,
    *,
    encoder: str | None = None,
    cache: bool = True,
    progress: bool = True,
    device: str | None = None,
) -> dict[str, Any]:
    """Measure a run on labelled images: the split ``test`` if there is one, else all.

    Returns
    -------
    dict
        ``images``, ``learnt_from`` (how many of them; None if the run does not say),
        ``bad_images``, ``methods`` (zero-shot and boosted),
        ``per_class`` and ``confusions``, as in ``metrics.json``.

    Raises
    ------
    DataError
        If an image is of a class that the run does not know.
    """
    folder = RunFolder(run)
    predictor = Predictor.open(run, encoder=encoder, cache=cache, progress=progress, device=device)
    ensemble, embedder = predictor.classifier.ensemble, predictor.classifier.embedder
    data = load_data(source, progress=progress)
    if "test" in data.splits:
        data = data.of_split("test")
    data = with_classes(data, ensemble.class_names)
    learnt = learnt_positions(folder, data)
    rows = embedder.originals(data)
    plain = [fill(PLAIN_TEMPLATE, name) for name in ensemble.class_names]
    heads = {
        "zero_shot": LinearHead(ensemble.class_names, embedder.texts(plain)(plain)),
        "boosted": predictor.classifier.head,
    }
    found = {name: head.predict_index(rows) for name, head in heads.items()}
    return {
        "encoder": embedder.encoder.id,
        "pictures": len(data),
        "learnt_from": None if learnt is None else len(learnt),
        "bad_pictures": [{"path": bad.path, "reason": bad.reason} for bad in data.bad],
        **_figures(data, found),
    }


def _figures(data: Dataset, found: dict[str, NDArray[np.intp]]) -> dict[str, Any]:
    names, labels = data.class_names, data.labels
    return {
        "methods": [
            {
                "name": name,
                "accuracy": accuracy(guess, labels),
                "class_accuracy": class_accuracy(guess, labels),
            }
            for name, guess in found.items()
        ],
        "per_class": per_class(names, labels, found),
        "confusions": confusions(names, labels, found["boosted"], image_ids(data)),
    }


def with_classes(data: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """Return images the class numbers of a run, which may have classes they lack.

    Raises
    ------
    DataError
        If a class of the data is none of the run's.
    """
    present = {image.label for image in data.images}
    if strange := sorted(present - set(class_names)):
        raise DataError(
            f"the run does not know the class {strange[0]!r}; it knows "
            f"{', '.join(class_names[:10])}{', …' if len(class_names) > 10 else ''}"
        )
    return Dataset(data.images, tuple(class_names), data.bad)
