"""Evaluate a run on other labeled images, or on its held-out images."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import OURS, Guesses, confusions, coverage, per_class, zero_shot_head
from promptboost.data import Dataset, load_data
from promptboost.data.shots import divide
from promptboost.encoders.base import UnitRows
from promptboost.errors import DataError, PromptBoostError
from promptboost.model import PromptClassifier
from promptboost.model.edits import original_names
from promptboost.model.head import check_share, mean_index, mean_proba
from promptboost.model.prediction import FIELDS, Prediction
from promptboost.progress import Progress, no_progress
from promptboost.run.holdout import add_looks, held_out_images, shown_part
from promptboost.run.overlap import Inspection, inspect
from promptboost.run.predict import LoadOptions, open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Lineage

Write = Callable[[Sequence[str], Iterable[Sequence[Prediction]]], None]


def evaluate_run(
    run: Path,
    source: str | None,
    *,
    held_out: bool = False,
    final: bool = False,
    min_probability: float | None = None,
    progress: Progress = no_progress,
    write: Write | None = None,
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Evaluate a run on labeled images: the split ``test`` if there is one, else all.

    With `held_out`, the run is evaluated on its held-out images: on those that edits are measured on or,
    with `final`, on the reserved ones. `source` is where they are now. Each evaluation is counted.

    The probabilities of several encoders are averaged, those of zero-shot too. With `min_probability`,
    measure selective prediction as well. `write` is called with columns and batches of predictions for
    all images.
    """
    folder, classifier = open_run(run, min_probability, progress, **options)
    if held_out:
        images = held_out_images(folder, source, progress)
        data = as_called_now(shown_part(images, final=final), folder, classifier.class_names)
    else:
        data = load_data(source or str(folder.source), progress=progress)
        data = data.of_split("test") if "test" in data.splits else data
        data = with_classes(data, classifier.class_names)
    lineage = add_looks(run, **{"final_looks" if final else "looks": 1}) if held_out else None
    rows = [embedder.originals(data) for embedder in classifier.embedders]
    record = evaluate_images(
        folder, classifier, data, rows, min_probability, write=write, progress=progress
    )
    if lineage is not None:
        counts = {"looks": lineage.looks, "final_looks": lineage.final_looks}
        record["held_out"] = {"part": "final" if final else "shown", **counts}
    return record


def open_run(
    run: Path, min_probability: float | None, progress: Progress, **options: Unpack[LoadOptions]
) -> tuple[RunFolder, PromptClassifier]:
    """Open a run to evaluate it, with the results of the same run."""
    if min_probability is not None:
        check_share("min_probability", min_probability)
    folder = RunFolder(run)

    def opened() -> PromptClassifier:
        classifier = open_classifier(folder.path, progress=progress, **options)
        _ = folder.metrics_path.exists() and folder.results
        return classifier

    return folder, folder.steady(opened)


def evaluate_images(
    folder: RunFolder,
    classifier: PromptClassifier,
    data: Dataset,
    rows: Sequence[UnitRows],
    min_probability: float | None,
    *,
    write: Write | None,
    progress: Progress,
) -> dict[str, Any]:
    """Evaluate a run on images embedded by each of its encoders; see :func:`evaluate_run`."""
    names, labels = data.class_names, data.labels
    zero_shot = [zero_shot_head(names, embedder) for embedder in classifier.embedders]
    probabilities = mean_proba(classifier.heads, rows)
    guesses = [
        Guesses("zero-shot", "zero-shot", mean_index(zero_shot, rows)),
        Guesses(OURS, "boosted", mean_index(classifier.heads, rows), probabilities=probabilities),
    ]
    inspection = inspect_run(folder, data, progress=progress)
    leaked = None if inspection is None else inspection.leaked
    answers = {guess.name: guess.held_out for guess in guesses}
    record: dict[str, Any] = {
        "encoder": " + ".join(embedder.id for embedder in classifier.embedders),
        "images": len(data),
        "learned_from": None if leaked is None else int(leaked.sum()),
        "overlap": None if inspection is None else inspection.overlap,
        "remarks": [] if inspection is None else inspection.overlap.lines(run=True),
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in data.bad],
        "methods": [guess.result(labels, leaked=leaked) for guess in guesses],
        "per_class": per_class(names, labels, answers),
        "confusions": confusions(names, labels, answers[OURS], data.ids),
    }
    if write is not None:
        predictions = _predictions(data, guesses, probabilities, min_probability or 0.0)
        write((*FIELDS, "label", "zero_shot"), [predictions])
    if min_probability is not None:
        record["sure"] = coverage(probabilities, labels, min_probability)
    return msgspec.to_builtins(record)  # type: ignore[no-any-return]


def _predictions(
    data: Dataset,
    guesses: Sequence[Guesses],
    chances: NDArray[np.floating[Any]],
    min_probability: float,
) -> list[Prediction]:
    """Return the prediction of each image, unreadable images last."""
    names = data.class_names
    zero_shot, ours = (guess.held_out.tolist() for guess in guesses)
    read = [
        Prediction.of(
            *(name, names, row),
            min_probability=min_probability,
            best=best,
            label=image.label,
            zero_shot=names[guess],
        )
        for name, image, row, best, guess in zip(
            data.ids, data.images, chances, ours, zero_shot, strict=True
        )
    ]
    bad = [
        Prediction(image=bad.path, error=bad.reason, label=None, zero_shot=None) for bad in data.bad
    ]
    return [*read, *bad]


def as_called_now(data: Dataset, folder: RunFolder, class_names: tuple[str, ...]) -> Dataset:
    """Rename the classes of images as edits did, without dropped ones, to the classes of the run."""
    names = original_names(data.class_names, Lineage.read(folder.path).changes)
    data = renamed(data, {old: new for new, old in names.items()}, tuple(names))
    return with_classes(data, class_names)


def renamed(data: Dataset, new_names: Mapping[str, str], class_names: tuple[str, ...]) -> Dataset:
    """Rename the classes of images; leave out images of classes that are not in `class_names`."""
    classes = set(class_names)
    images = tuple(
        replace(image, label=new_names[image.label])
        for image in data.images
        if new_names.get(image.label) in classes
    )
    return Dataset(images, class_names, data.bad)


def with_classes(data: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """Return images with the class indices of a run, which may have more classes."""
    present = {image.label for image in data.images}
    if strange := sorted(present - set(class_names)):
        raise DataError(
            f"the run has no class {strange[0]!r}; it has "
            f"{', '.join(class_names[:10])}{', …' if len(class_names) > 10 else ''}"
        )
    return Dataset(data.images, tuple(class_names), data.bad)


def inspect_run(
    run: RunFolder, data: Dataset, *, progress: Progress = no_progress
) -> Inspection | None:
    """Find training images of a run among images, and copies among the others.

    If the training images are still there, re-encoded copies are recognized, too; else only copies
    byte for byte. None if the run has no digests of its training images.
    """
    if not run.metrics_path.exists() or (digests := run.results.task.learn_digests) is None:
        return None
    settings = run.settings
    known: Dataset | list[bytes] = [bytes.fromhex(digest) for digest in digests]
    with suppress(PromptBoostError, OSError):
        # Drawn from all files, so that only the training images are read.
        every_image = run.source.load(check=False)
        learn = divide(run.source, every_image, settings.shots, settings.seed).learn
        unchanged = learn.fingerprint == run.learn_fingerprint
        if unchanged and learn.class_names == data.class_names:
            known = learn
    return inspect(known, data, progress=progress)
