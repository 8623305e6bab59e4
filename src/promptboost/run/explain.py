"""Why images are answered as they are: some images sentence by sentence, or all held-out ones together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.data import ImageError, LabelledImage, find_images
from promptboost.data.decode import BadImage
from promptboost.data.shots import Task, image_ids
from promptboost.errors import DataError
from promptboost.io import json_text
from promptboost.model import Head, PromptClassifier, PromptEnsemble
from promptboost.model.explanation import SHOWN, Explanation, explain_rows
from promptboost.run.bench import Bench, add_looks
from promptboost.run.influence import (
    Blame,
    Influence,
    confusion_blame,
    sentence_influences,
)
from promptboost.run.measurement import EmbeddedTask
from promptboost.run.run_folder import RunFolder
from promptboost.training import Fitted


@dataclass(frozen=True)
class ExplainedImages:
    """Explanations, the images they are of, and the images that could not be read."""

    explanations: tuple[Explanation, ...]
    images: tuple[LabelledImage, ...]
    bad: tuple[BadImage, ...]


def explain_images(
    classifier: PromptClassifier,
    paths: Sequence[str | Path],
    *,
    answer: str | None = None,
    against: str | None = None,
) -> ExplainedImages:
    """Explain the answers for images; folders stand for all images below them."""
    listing = find_images(paths)
    images, bad = list(listing.images), list(listing.bad)
    while images:
        try:
            found = classifier.explain(images, answer=answer, against=against)
            return ExplainedImages(tuple(found), tuple(images), tuple(bad))
        except ImageError as error:
            bad.append(error.bad)
            images = [image for image in images if image.name != error.bad.path]
    if not bad:
        raise DataError(f"there are no images in {', '.join(map(str, paths))}")
    return ExplainedImages((), (), tuple(bad))


@dataclass(frozen=True)
class HeldOutReasons:
    """What the sentences of a run do on its held-out images, all together."""

    images: int
    accuracy: float
    influences: tuple[Influence, ...]
    blame: tuple[Blame, ...]
    looks: int

    @property
    def harmful(self) -> tuple[Influence, ...]:
        """Sentences without which more images are right, the most harmful first."""
        return tuple(item for item in self.influences if item.gain > 0)

    @property
    def idle(self) -> tuple[Influence, ...]:
        """Sentences without which no image gets another answer."""
        return tuple(item for item in self.influences if item.removable and not item.changed)

    def record(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "looks": self.looks,
            "confusions": [
                {
                    "true": item.true,
                    "answered": item.answered,
                    "count": item.count,
                    "sentences": [
                        {"class": name, "prompt": text, "value": value}
                        for name, text, value in item.sentences
                    ],
                    "residual": item.residual,
                }
                for item in self.blame
            ],
            "sentences": [
                {
                    "class": item.class_name,
                    "prompt": item.prompt,
                    "weight": item.weight,
                    "removable": item.removable,
                    "mended": item.mended,
                    "broken": item.broken,
                    "changed": item.changed,
                }
                for item in self.influences
            ],
        }


def explain_held_out(run: Path, bench: Bench) -> HeldOutReasons:
    """Take out each sentence of a run by itself, and say which are behind which confusion.

    It is a look at the held-out images, and counted as one.
    """
    labels = bench.labels_in(bench.ensemble)
    counted = labels >= 0  # the others are of a class that was dropped since
    answers = bench.scores.answers(bench.ensemble)
    lineage = add_looks(run, looks=1)
    return HeldOutReasons(
        int(counted.sum()),
        float(np.mean(answers[counted] == labels[counted])) if counted.any() else 0.0,
        tuple(sentence_influences(bench.scores, bench.ensemble, labels)),
        tuple(confusion_blame(bench.scores, bench.ensemble, labels)),
        lineage.looks,
    )


def shown_explanations(
    task: Task,
    embedded: EmbeddedTask,
    fitted: Fitted,
    names: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """Explain the images that the report of a fit shows: wrong answers against the right class."""
    wanted, ensemble = set(names), fitted.ensemble
    texts = ensemble.texts()
    rows = np.asarray(embedded.members[0].encode_texts(texts))
    vectors = dict(zip(texts, rows, strict=True))
    train = embedded.split(embedded.train[:, 0])[0]
    explained: dict[str, dict[str, Any]] = {}
    for data, rows in ((task.measured, embedded.measured(task)), (task.learn, train)):
        for name, image, row in zip(image_ids(data), data.images, rows, strict=True):
            if name in wanted and name not in explained:
                explained[name] = _record(ensemble, fitted.head, vectors, row, name, image.label)
    return explained


def _record(
    ensemble: PromptEnsemble,
    head: Head,
    vectors: Mapping[str, NDArray[np.floating]],
    row: NDArray[np.floating],
    name: str,
    label: str,
) -> dict[str, Any]:
    answer = str(head.predict(row[None])[0])
    against = None if answer == label else label
    (why,) = explain_rows(
        ensemble, head, vectors, row[None], [name], answer=answer, against=against
    )
    return why.record(most=SHOWN)


def write_explanations(run: RunFolder, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the explanations that the report of a run opens."""
    run.write(run.explanations_path, json_text(records, indent=None))
