"""Measures of predictions, by method, class and confusion.

A column of the results is one field of :class:`MethodResult` and one line in
:meth:`Guesses.result`; the page shows it in ``report/templates/report.html.j2``.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.model import Head

#: The name of the fitted classifier among the methods, and of its text alone where it has a residual.
OURS, TEXT = "promptboost", "text"

Indices = NDArray[np.intp] | NDArray[np.int64]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(ge=0)]

#: The least probabilities of an answer that results have a line for.
MIN_PROBABILITIES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

_IMAGES_SHOWN = 6
_CURVE_POINTS = 50


class Answered(msgspec.Struct, frozen=True):
    """Selective prediction: images with a probability below `min_probability` get no answer."""

    min_probability: Share
    answered: Count
    coverage: Share  # share of the images that are answered
    accuracy: Share | None  # among those; None if there are none


class ReliabilityBin(msgspec.Struct, frozen=True):
    """Images whose best class is about as probable: more than `low`, `high` at most."""

    low: Share
    high: Share
    count: Count
    probability: Share  # of the best class, the mean
    accuracy: Share


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    """One way of classifying the same images, measured on held-out ones."""

    name: str
    label: str  # for people
    accuracy: Share | None
    class_accuracy: Share | None  # the mean over classes
    learn_accuracy: Share | None  # on the training images
    log_loss: Positive | None = None  # of the probabilities, where the method has any
    expected_calibration_error: Share | None = None
    unseen_accuracy: Share | None = None  # without leaked images; None where none is or all are
    coverage: tuple[Answered, ...] = ()  # at MIN_PROBABILITIES, where the method has probabilities
    coverage_curve: tuple[Answered, ...] = ()  # points of the whole curve, fewest answers first
    reliability: tuple[ReliabilityBin, ...] = ()  # bins with images, the least probable first


class ClassResult(msgspec.Struct, frozen=True):
    """The accuracy of each method in one class; None where the class has no images."""

    class_name: str = msgspec.field(name="class")
    count: Count
    accuracy: dict[str, Share | None]


class Confusion(msgspec.Struct, frozen=True):
    """Images of one class predicted as another, with the names of some."""

    true: str
    predicted: str
    count: Count
    images: tuple[str, ...] = ()
    text_shares: tuple[Share, ...] = ()  # of these predictions, where there is a residual


@dataclass(frozen=True)
class Guesses:
    """The predictions of a method, as class indices."""

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
        """Measure against the labels; `leaked` marks held-out images that are in the training set."""
        fresh = None if leaked is None or not leaked.any() else ~leaked
        chances, of_chances = self.probabilities, dict[str, Any]()
        if chances is not None and len(labels):
            of_chances = {
                "log_loss": log_loss(chances, labels),
                "expected_calibration_error": expected_calibration_error(chances, labels),
                "coverage": tuple(coverage(chances, labels, least) for least in MIN_PROBABILITIES),
                "coverage_curve": thinned(coverage_curve(chances, labels)),
                "reliability": reliability(chances, labels),
            }
        return MethodResult(
            name=self.name,
            label=self.label,
            accuracy=accuracy(self.held_out, labels),
            class_accuracy=class_accuracy(self.held_out, labels),
            learn_accuracy=None if learn_labels is None else accuracy(self.learn, learn_labels),
            unseen_accuracy=None
            if fresh is None
            else accuracy(self.held_out[fresh], labels[fresh]),
            **of_chances,
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

    A probability of zero counts as the smallest positive number, so that the loss is finite.
    """
    if not len(labels):
        return None
    right = np.asarray(probabilities, dtype=np.float64)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, np.finfo(np.float64).tiny)).mean())


def reliability(
    probabilities: NDArray[np.floating], labels: Indices, bins: int = 15
) -> tuple[ReliabilityBin, ...]:
    """Put images into bins of equal width by the probability of the predicted class.

    A bin includes its upper edge but not its lower one; empty bins are left out.
    """
    sure, right = _sure_and_right(probabilities, labels)
    index = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    return tuple(
        ReliabilityBin(
            number / bins,
            (number + 1) / bins,
            int(np.sum(index == number)),
            float(sure[index == number].mean()),
            float(right[index == number].mean()),
        )
        for number in np.unique(index).tolist()
    )


def expected_calibration_error(
    probabilities: NDArray[np.floating], labels: Indices, bins: int = 15
) -> float | None:
    """Return the expected calibration error (Guo et al., 2017); None without images.

    It is the mean over images of the difference, in their bin of :func:`reliability`, between the mean
    probability of the predicted class and the accuracy.
    """
    if not len(labels):
        return None
    gaps = (
        b.count * abs(b.probability - b.accuracy) for b in reliability(probabilities, labels, bins)
    )
    return sum(gaps) / len(labels)


def coverage(
    probabilities: NDArray[np.floating], labels: Indices, min_probability: float
) -> Answered:
    """Measure selective prediction at a least probability.

    Examples
    --------
    >>> chances = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    >>> coverage(chances, np.array([0, 1, 1]), 0.7)
    Answered(min_probability=0.7, answered=2, coverage=0.6666666666666666, accuracy=1.0)
    """
    sure, right = _sure_and_right(probabilities, labels)
    answered = right[sure >= min_probability]
    n, share = len(answered), len(answered) / len(labels) if len(labels) else 0.0
    return Answered(min_probability, n, share, float(answered.mean()) if n else None)


def coverage_curve(probabilities: NDArray[np.floating], labels: Indices) -> tuple[Answered, ...]:
    """Return coverage and accuracy at every distinct probability, fewest answers first.

    Examples
    --------
    >>> chances = np.array([[0.9, 0.1], [0.6, 0.4], [0.1, 0.9]])
    >>> [(one.answered, one.accuracy) for one in coverage_curve(chances, np.array([0, 1, 1]))]
    [(2, 1.0), (3, 0.6666666666666666)]
    """
    sure, right = _sure_and_right(probabilities, labels)
    levels, index = np.unique(-sure, return_inverse=True)
    answered = np.cumsum(np.bincount(index, minlength=len(levels)))
    rights = np.cumsum(np.bincount(index, weights=right, minlength=len(levels)))
    return tuple(
        Answered(-level, count, count / len(labels), good / count)
        for level, count, good in zip(
            levels.tolist(), answered.tolist(), rights.tolist(), strict=True
        )
    )


def thinned(curve: Sequence[Answered], points: int = _CURVE_POINTS) -> tuple[Answered, ...]:
    """Keep some points of a curve, about evenly spaced by coverage, the last among them."""
    chosen, step = [], 0
    for point in curve:
        if point.coverage * points >= step or point is curve[-1]:
            chosen.append(point)
            step = math.floor(point.coverage * points) + 1
    return tuple(chosen)


def _sure_and_right(
    probabilities: NDArray[np.floating], labels: Indices
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the largest probability of each image, and whether it is that of the right class."""
    chances = np.asarray(probabilities, dtype=np.float64)
    return chances.max(axis=1), chances.argmax(axis=1) == labels


def text_shares(head: Head, rows: NDArray[np.floating]) -> NDArray[np.float64] | None:
    """Return the share of the text in each prediction, from 0 to 1; None without a residual.

    The margin over the next class is the sum of a margin of the text and one of the residual; the share
    is that of the text, by absolute values.
    """
    if head.residual is None:
        return None
    if not len(rows):
        return np.ones(0)
    text = head.without_residual().scores(rows).astype(np.float64) * (head.text_scale or 1.0)
    residual = rows.astype(np.float64) @ head.residual.T
    each = np.arange(len(rows))
    best, second = np.argsort(-(text + residual), axis=1, kind="stable")[:, :2].T
    by_text, by_residual = (
        np.abs(logits[each, best] - logits[each, second]) for logits in (text, residual)
    )
    return np.asarray(by_text / np.maximum(by_text + by_residual, 1e-12))


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
    """Return the confusions, most frequent first, with the names of some images.

    `words` are the shares of the text in the predictions; see :func:`text_shares`.
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
