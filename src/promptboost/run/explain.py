"""Explanations of predictions: of given images sentence by sentence, or of all held-out images."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from promptboost.data import LabeledImage
from promptboost.data.decode import BadImage, ImageError
from promptboost.data.source import find_images
from promptboost.errors import DataError
from promptboost.model import PromptClassifier
from promptboost.model.prediction import Explanation
from promptboost.run.holdout import HeldOutSet, add_looks
from promptboost.run.influence import ConfusedPair, Influence, confused_pairs, sentence_influences


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
    """Explain the predictions for images; folders are searched for images."""
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

    This counts as a use of the held-out images.
    """
    ensemble, scores = held_out.ensemble, held_out.scores
    labels = held_out.labels_in(held_out.base)
    counted = labels >= 0  # other images belong to dropped classes
    answers = scores.answers(ensemble)
    return HeldOutReasons(
        images=int(counted.sum()),
        accuracy=float(np.mean(answers[counted] == labels[counted])) if counted.any() else 0.0,
        looks=add_looks(run, looks=1).looks,
        confusions=confused_pairs(scores, ensemble, labels),
        sentences=sentence_influences(scores, ensemble, labels),
    )
