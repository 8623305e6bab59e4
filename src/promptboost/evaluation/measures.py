"""Figures about predictions: one record a method, a class, a confusion, and what measures it.

A column of the results is one field of :class:`MethodResult` and one line in
:meth:`Guesses.result`; the page shows it in ``report/templates/report.html.j2``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.model import LinearHead

#: The name of the fitted classifier among the methods, and of its text alone where it has a residual.
OURS, TEXT = "promptboost", "text"

Indices = NDArray[np.intp] | NDArray[np.int64]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(ge=0)]

_IMAGES_SHOWN = 6


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    """One way of classifying the same images, measured on held-out ones."""

    name: str
    label: str  # for people
    accuracy: Share | None
    class_accuracy: Share | None  # the mean over classes
    learn_accuracy: Share | None  # on the images learnt from
    log_loss: Positive | None = None  # of the probabilities, where the method has any
    expected_calibration_error: Share | None = None
    unseen_accuracy: Share | None = None  # without leaked images; None where none is or all are


class ClassResult(msgspec.Struct, frozen=True):
    """The accuracy of each method in one class; None where the class has no images."""

    class_name: str = msgspec.field(name="class")
    count: Count
    accuracy: dict[str, Share | None]


class Confusion(msgspec.Struct, frozen=True):
    """Images of one class taken for another, with some of them by name."""

    true: str
    predicted: str
    count: Count
    images: tuple[str, ...] = ()
    words: tuple[Share, ...] = ()  # how much of each of these answers is words, where not all is


@dataclass(frozen=True)
class Guesses:
    """What one method takes the images for, as class indices."""

    name: str
    label: str
    held_out: Indices
    learn: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    probabilities: NDArray[np.floating] | None = None  # (n, K), of the held-out images

    def result(
        self,
        labels: Indices,
        learn_labels: Indices | None = None,
        leaked: NDArray[np.bool_] | None = None,
    ) -> MethodResult:
        """Measure against the labels; `leaked` are the held-out images that were learnt from."""
        chances = self.probabilities
        fresh = None if leaked is None or not leaked.any() else ~leaked
        return MethodResult(
            name=self.name,
            label=self.label,
            accuracy=accuracy(self.held_out, labels),
            class_accuracy=class_accuracy(self.held_out, labels),
            learn_accuracy=None if learn_labels is None else accuracy(self.learn, learn_labels),
            log_loss=None if chances is None else log_loss(chances, labels),
            expected_calibration_error=None
            if chances is None
            else expected_calibration_error(chances, labels),
            unseen_accuracy=None
            if fresh is None
            else accuracy(self.held_out[fresh], labels[fresh]),
        )


def accuracy(predicted: Indices, labels: Indices) -> float | None:
    """Return the share of images that are right; None without images."""
    return float(np.mean(predicted == labels)) if len(labels) else None


def class_accuracy(predicted: Indices, labels: Indices) -> float | None:
    """Return the mean over classes of the share that is right: every class counts the same."""
    if not len(labels):
        return None
    return float(np.mean([np.mean(predicted[labels == k] == k) for k in np.unique(labels)]))


def log_loss(probabilities: NDArray[np.floating], labels: Indices) -> float | None:
    """Return the mean of −log p of the right class; None without images.

    A probability of zero counts as the smallest that can be told from it, so that the loss is finite.
    """
    if not len(labels):
        return None
    right = np.asarray(probabilities, dtype=np.float64)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).tiny)).mean())


def expected_calibration_error(
    probabilities: NDArray[np.floating], labels: Indices, bins: int = 15
) -> float | None:
    """Return how far the largest probabilities are from the share that is right; None without images.

    Images go into bins of equal width by the probability of the class they are taken for. The error is
    the mean over images of the difference, in their bin, between the mean of that probability and the
    share that is right (Guo et al., 2017, who use 15 bins).
    """
    if not len(labels):
        return None
    sure = np.asarray(probabilities, dtype=np.float64).max(axis=1)
    right = np.asarray(probabilities).argmax(axis=1) == labels
    # A bin has its upper edge and not its lower one.
    index = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(index, weights=sure - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def word_shares(head: LinearHead, rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return how much of each answer is words: 1 if all of it is, 0 if all of it is the residual.

    The answer is ahead of the next class by a part that is the text's and a part that is the residual's.
    The share is the text's part of both, each taken without its sign.
    """
    if head.residual is None or not len(rows):
        return np.ones(len(rows))
    text = head.without_residual().scores(rows).astype(np.float64) * (head.text_scale or 1.0)
    rest = rows.astype(np.float64) @ head.residual.T
    each = np.arange(len(rows))
    best, second = np.argsort(-(text + rest), axis=1, kind="stable")[:, :2].T
    by_text, by_rest = (np.abs(part[each, best] - part[each, second]) for part in (text, rest))
    return np.asarray(by_text / np.maximum(by_text + by_rest, 1e-12))


def per_class(
    class_names: Sequence[str], labels: Indices, predicted: Mapping[str, Indices]
) -> tuple[ClassResult, ...]:
    """Return the accuracy of each method in each class."""
    return tuple(
        ClassResult(
            name,
            int(np.sum(labels == k)),
            {
                method: accuracy(guesses[labels == k], labels[labels == k])
                for method, guesses in predicted.items()
            },
        )
        for k, name in enumerate(class_names)
    )


def confusions(
    class_names: Sequence[str],
    labels: Indices,
    predicted: Indices,
    images: Sequence[str],
    words: NDArray[np.float64] | None = None,
) -> tuple[Confusion, ...]:
    """List which class was taken for which, most frequent first, with some of the images.

    `words` are the shares of the answers that are words: see :func:`word_shares`.
    """
    mixed: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, (label, guess) in enumerate(zip(labels.tolist(), predicted.tolist(), strict=True)):
        if label != guess:
            mixed[label, guess].append(i)
    return tuple(
        Confusion(
            class_names[label],
            class_names[guess],
            len(found),
            tuple(images[i] for i in found[:_IMAGES_SHOWN]),
            () if words is None else tuple(float(words[i]) for i in found[:_IMAGES_SHOWN]),
        )
        for (label, guess), found in sorted(mixed.items(), key=lambda pair: -len(pair[1]))
    )
