"""Figures about predictions: accuracies, classes, confusions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["accuracy", "class_accuracy", "confusions", "per_class"]

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
