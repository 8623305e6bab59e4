"""Explanations of predictions: of given images sentence by sentence, or of all held-out images."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from promptboost.data import ImageError, LabeledImage, find_images
from promptboost.data.decode import BadImage
from promptboost.data.shots import Task
from promptboost.errors import DataError
from promptboost.io import json_text
from promptboost.model import PromptClassifier
from promptboost.model.explanation import SHOWN, Explanation, explain_rows
from promptboost.run.holdout import HeldOutSet, add_looks
from promptboost.run.influence import (
    ConfusedPair,
    Influence,
    confused_pairs,
    sentence_influences,
)
from promptboost.run.measurement import EmbeddedTask
from promptboost.run.run_folder import RunFolder
from promptboost.training import Fitted


class ExplainedImages(NamedTuple):
    """Explanations, the images they are of, and the images that could not be read."""

    explanations: Sequence[Explanation]
    images: Sequence[LabeledImage]
    bad: Sequence[BadImage]


def explain_images(
    classifier: PromptClassifier,
    paths: Sequence[str | Path],
    *,
    answer: str | None = None,
    against: str | None = None,
) -> ExplainedImages:
    """Explain the predictions for images; folders stand for all images below them."""
    listing = find_images(paths)
    images, bad = list(listing.images), list(listing.bad)
    while images:
        try:
            explanations = classifier.explain(images, answer=answer, against=against)
            return ExplainedImages(explanations, images, bad)
        except ImageError as error:
            bad.append(error.bad)
            images = [image for image in images if image.name != error.bad.path]
    if not bad:
        raise DataError(f"there are no images in {', '.join(map(str, paths))}")
    return ExplainedImages([], [], bad)


class HeldOutReasons(msgspec.Struct, frozen=True):
    """The influence of the sentences of a run on its held-out images."""

    images: int
    accuracy: float
    looks: int
    confusions: list[ConfusedPair]
    sentences: list[Influence]

    @property
    def harmful(self) -> list[Influence]:
        """Sentences without which accuracy rises, the most harmful first."""
        return [influence for influence in self.sentences if influence.gain > 0]

    @property
    def idle(self) -> list[Influence]:
        """Sentences without which no image gets another answer."""
        return [i for i in self.sentences if i.removable and not i.changed]


def explain_held_out(run: Path, held_out: HeldOutSet) -> HeldOutReasons:
    """Compute the influence of each sentence and the sentences behind each confusion.

    It counts as a look at the held-out images.
    """
    ensemble, scores = held_out.ensemble, held_out.scores
    labels = held_out.labels_in(held_out.base)
    counted = labels >= 0  # the others are of a class that was dropped since
    answers = scores.answers(ensemble)
    return HeldOutReasons(
        images=int(counted.sum()),
        accuracy=float(np.mean(answers[counted] == labels[counted])) if counted.any() else 0.0,
        looks=add_looks(run, looks=1).looks,
        confusions=confused_pairs(scores, ensemble, labels),
        sentences=sentence_influences(scores, ensemble, labels),
    )


def write_explanations(
    run: RunFolder, task: Task, embedded: EmbeddedTask, fitted: Fitted, names: Iterable[str]
) -> None:
    """Explain the images that the report of a fit shows: wrong answers against the right class."""
    ensemble, head, wanted = fitted.ensemble, fitted.head, set(names)
    texts = ensemble.texts()
    vectors = np.asarray(embedded.members[0].encode_texts(texts))
    by_text = dict(zip(texts, vectors, strict=True))
    train = embedded.split(embedded.train[:, 0])[0]
    records: dict[str, Mapping[str, Any]] = {}
    for data, rows in ((task.measured, embedded.measured(task)), (task.learn, train)):
        for name, image, row in zip(data.ids, data.images, rows, strict=True):
            if name not in wanted or name in records:
                continue
            answer = str(head.predict(row[None])[0])
            against = None if answer == image.label else image.label
            (why,) = explain_rows(
                ensemble, head, by_text, row[None], [name], answer=answer, against=against
            )
            records[name] = why.record(most=SHOWN)
    run.write(run.explanations_path, json_text(records, indent=None))
