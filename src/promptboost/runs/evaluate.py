"""How good a run is on other labelled images."""

from pathlib import Path
from typing import Any

import msgspec

from promptboost.data import Dataset, load_data
from promptboost.data.shots import image_ids
from promptboost.errors import DataError
from promptboost.evaluation.baselines import zero_shot_head
from promptboost.evaluation.measures import OURS, Guesses, confusions, per_class
from promptboost.runs.predict import Predictor
from promptboost.runs.results import class_answer, method_answer, old_names
from promptboost.runs.run_folder import RunFolder


def evaluate_run(
    run: Path,
    source: str,
    *,
    encoder: str | None = None,
    cache: bool = True,
    progress: bool = True,
    device: str | None = None,
) -> dict[str, Any]:
    """Measure a run on labelled images: the split ``test`` if there is one, else all."""
    folder = RunFolder(run)
    predictor = Predictor.open(run, encoder=encoder, cache=cache, progress=progress, device=device)
    classifier = predictor.classifier
    names, embedder, head = classifier.class_names, classifier.embedder, classifier.head
    data = load_data(source, progress=progress)
    if "test" in data.splits:
        data = data.of_split("test")
    data = with_classes(data, names)
    learnt = learnt_positions(folder, data)
    rows, labels = embedder.originals(data), data.labels
    guesses = [
        Guesses("zero-shot", "zero-shot", zero_shot_head(names, embedder).predict_index(rows)),
        Guesses(OURS, "boosted", head.predict_index(rows), probabilities=head.predict_proba(rows)),
    ]
    mixed = confusions(names, labels, guesses[-1].held_out, image_ids(data))
    by_class = per_class(names, labels, {guess.name: guess.held_out for guess in guesses})
    record = {
        "encoder": embedder.encoder.id,
        "images": len(data),
        "learnt_from": None if learnt is None else len(learnt),
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in data.bad],
        "methods": [method_answer(guess.result(labels)) for guess in guesses],
        "per_class": [class_answer(item) for item in by_class],
        "confusions": [
            old_names(pair, {"images": "pictures"}) for pair in msgspec.to_builtins(mixed)
        ],
    }
    return old_names(record, {"images": "pictures", "bad_images": "bad_pictures"})


def with_classes(data: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """Return images with the class numbers of a run, which may have classes they lack."""
    present = {image.label for image in data.images}
    if strange := sorted(present - set(class_names)):
        raise DataError(
            f"the run does not know the class {strange[0]!r}; it knows "
            f"{', '.join(class_names[:10])}{', …' if len(class_names) > 10 else ''}"
        )
    return Dataset(data.images, tuple(class_names), data.bad)


def learnt_positions(run: RunFolder, data: Dataset) -> list[int] | None:
    """Return the positions of the images that a run learnt from, byte for byte the same.

    An image that was saved anew, smaller for instance, is not recognised. None if the run does not
    say: its figures are gone, or an older promptboost wrote them.
    """
    if not run.metrics_path.exists() or (digests := run.results.task.learn_digests) is None:
        return None
    known = set(digests)
    return [i for i, image in enumerate(data.images) if image.digest().hex() in known]
