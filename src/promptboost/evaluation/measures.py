"""Figures about predictions: accuracies, classes, confusions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "accuracy",
    "class_accuracy",
    "confusions",
    "expected_calibration_error",
    "log_loss",
    "per_class",
]

Indices = NDArray[np.intp] | NDArray[np.int64]

_PICTURES_SHOWN = 6


def accuracy(predicted: Indices, labels: Indices) -> float | None:
    """Return the share of images that are right; None without images.

    Examples
    --------
    >>> accuracy(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]))
    0.75
    """
    return float(np.mean(predicted == labels)) if len(labels) else None


def class_accuracy(predicted: Indices, labels: Indices) -> float | None:
    """Return the mean over classes of the share that is right: every class counts the same.

    Examples
    --------
    >>> class_accuracy(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]))
    0.5
    """
    if not len(labels):
        return None
    return float(np.mean([np.mean(predicted[labels == k] == k) for k in np.unique(labels)]))


def log_loss(probabilities: NDArray[np.floating], labels: Indices) -> float | None:
    """Return the mean of −log p of the right class; None without images.

    A probability of zero counts as the smallest that can be told from it, so that the loss is finite.

    Examples
    --------
    >>> round(log_loss(np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([0, 1])), 3)
    0.399
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

    Examples
    --------
    >>> chances = np.array([[0.9, 0.1], [0.9, 0.1]])  # sure of both, and right about one
    >>> round(expected_calibration_error(chances, np.array([0, 1])), 3)
    0.4
    """
    if not len(labels):
        return None
    sure = np.asarray(probabilities, dtype=np.float64).max(axis=1)
    right = np.asarray(probabilities).argmax(axis=1) == labels
    # A bin has its upper edge and not its lower one.
    index = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(index, weights=sure - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def per_class(
    class_names: Sequence[str], labels: Indices, predicted: Mapping[str, Indices]
) -> list[dict[str, Any]]:
    """Return the accuracy of each method in each class; None where a class has no images.

    Examples
    --------
    >>> per_class(["cat", "dog"], np.array([0, 0]), {"boosted": np.array([0, 1])})
    [{'class': 'cat', 'count': 2, 'boosted': 0.5}, {'class': 'dog', 'count': 0, 'boosted': None}]
    """
    return [
        {
            "class": name,
            "count": int(np.sum(labels == k)),
            **{
                method: accuracy(found[labels == k], labels[labels == k])
                for method, found in predicted.items()
            },
        }
        for k, name in enumerate(class_names)
    ]


def confusions(
    class_names: Sequence[str], labels: Indices, predicted: Indices, images: Sequence[str]
) -> list[dict[str, Any]]:
    """List which class was taken for which, most frequent first, with some of the images.

    Examples
    --------
    >>> confusions(["cat", "dog"], np.array([0, 0]), np.array([1, 0]), ["a.png", "b.png"])
    [{'true': 'cat', 'predicted': 'dog', 'count': 1, 'pictures': ['a.png']}]
    """
    found: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for image, label, guess in zip(images, labels.tolist(), predicted.tolist(), strict=True):
        if label != guess:
            found[label, guess].append(image)
    return [
        {
            "true": class_names[label],
            "predicted": class_names[guess],
            "count": len(names),
            "pictures": names[:_PICTURES_SHOWN],
        }
        for (label, guess), names in sorted(found.items(), key=lambda pair: -len(pair[1]))
    ]
