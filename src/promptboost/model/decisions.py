"""Decisions on top of probabilities: rejection, prediction sets, class priors, images to label next.

Arrays only. Thresholds come from cross-validated training images; see ``Head.least_logit``.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.errors import ClassPriorsWarning, SettingError, few, percent
from promptboost.model.head import Head, check_share, mean_index, mean_proba, thresholds

Floats = NDArray[np.float64]
ClassPriors = Literal["equal", "estimate"] | Mapping[Any, float]

# Iterations of class priors at most, and the change at which they stop.
_STEPS, _SETTLED = 500, 1e-5
# Estimated class frequencies are unstable if those of two halves differ by more than this share,
_UNSTABLE = 0.2
# and usually harmful if they are those of more than this share of the classes;
_MOST = 0.5
# equal frequencies are unlikely in so few images per class.
_FEW = 10
# Images of a predicted class that are compared with each other at most.
_CLASS_IMAGES = 2000


# --- class priors --------------------------------------------------------------------------


def adjust_to_priors(
    probabilities: ArrayLike, priors: ClassPriors, class_names: Sequence[Any]
) -> tuple[Floats, str | None]:
    """Adjust the probabilities (n, K) of all images of a folder to its class frequencies.

    With ``"estimate"``, these are those of the largest likelihood (Saerens et al., 2002). Equal or given
    ones, a mapping from class name to frequency, are the mean of the probabilities returned; classes that
    the mapping does not name do not occur. Also return why the result is unreliable, or None.

    >>> chances = [[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.6, 0.4]]
    >>> adjust_to_priors(chances, {"cat": 1, "dog": 1}, ["cat", "dog"])[0].argmax(axis=1)
    array([0, 0, 1, 1])
    """
    values = np.asarray(probabilities, dtype=np.float64)
    n, K = values.shape
    if isinstance(priors, str) and priors == "estimate":
        shares = estimated_priors(values)
        return _reweighted(values, shares), _instability(values, shares)
    warning = None
    if isinstance(priors, str) and priors == "equal":
        target = np.full(K, 1 / K)
        if n < _FEW * K:
            warning = (
                f"{n} images of {K} classes are too few to expect every class equally often: adjusted "
                "predictions may be worse"
            )
    else:
        target = _shares(priors, class_names)
    return _reweighted(values, _matching_weights(values, target)), warning


def _shares(priors: ClassPriors, class_names: Sequence[Any]) -> Floats:
    """Return the frequencies of a mapping, with the sum one."""
    if not isinstance(priors, Mapping):
        raise SettingError(
            f"class_priors is {priors!r}: give 'equal', 'estimate' or a mapping from class to frequency"
        )
    classes = set(class_names)
    unknown = [str(name) for name in priors if name not in classes]
    if unknown:
        raise SettingError(f"class_priors names classes that do not exist: {few(unknown)}")
    given: list[Any] = [priors.get(name, 0.0) for name in class_names]
    numbers = all(isinstance(v, int | float) and v >= 0 for v in given)
    if not numbers or not 0 < sum(given) < np.inf:
        raise SettingError("class_priors must be numbers from 0 up, and not all zero")
    shares = np.asarray(given, dtype=np.float64)
    return np.asarray(shares / shares.sum())


def estimated_priors(probabilities: Floats) -> Floats:
    """Return the class frequencies of the largest likelihood, by expectation maximization."""
    shares = np.full(probabilities.shape[1], 1 / probabilities.shape[1])
    for _ in range(_STEPS):
        old, shares = shares, _reweighted(probabilities, shares).mean(axis=0)
        if np.abs(shares - old).sum() < _SETTLED:
            break
    return shares


def _matching_weights(probabilities: Floats, target: Floats) -> Floats:
    """Return class weights with which the mean probabilities are the target (Sinkhorn)."""
    weights = np.where(target > 0, 1.0, 0.0)
    for _ in range(_STEPS):
        means = _reweighted(probabilities, weights).mean(axis=0)
        if np.abs(means - target).sum() < _SETTLED:
            break
        weights = weights * target / np.maximum(means, np.finfo(np.float64).tiny)
        weights /= weights.max()
    return weights


def _reweighted(probabilities: Floats, weights: Floats) -> Floats:
    # A class that is excluded may have all the probability that a float can hold.
    products = np.maximum(probabilities, np.finfo(np.float64).tiny) * weights
    return np.asarray(products / products.sum(axis=1, keepdims=True))


def _instability(probabilities: Floats, shares: Floats) -> str | None:
    """Return why estimated frequencies are unreliable; None if they are not."""
    halves = [
        estimated_priors(probabilities[start::2]) for start in (0, 1) if len(probabilities) > 1
    ]
    apart = float(np.abs(halves[0] - halves[1]).sum() / 2) if halves else 1.0
    if apart > _UNSTABLE:
        return (
            f"the estimated class frequencies of two halves of the images differ by {percent(apart, 0)}: "
            "adjusted predictions may be worse"
        )
    if 1 / np.square(shares).sum() > _MOST * len(shares):
        return (
            "most of the classes seem to occur: adjusted predictions are usually worse then; an estimate "
            "helps if only some classes occur"
        )
    return None


# --- images to label next ------------------------------------------------------------------


def choose_images(
    probabilities: ArrayLike, rows: ArrayLike, known_rows: ArrayLike, counts: ArrayLike, n: int
) -> list[int]:
    """Choose n of the images to label next: balanced over predicted classes, spread over the images.

    Each comes from the predicted class with the fewest images, labeled and chosen ones together. In a
    class, it is the one that brings the others closest to a labeled or chosen image, where uncertain
    images count more.

    The images have `probabilities`, (m, K), and embeddings `rows`, (m, D). `known_rows` are embeddings of
    labeled images, if there are any; `counts`, (K,), are the numbers of labeled images.

    >>> chances, rows = np.tile([0.7, 0.3], (4, 1)), np.eye(2)[[0, 0, 1, 1]]
    >>> choose_images(chances, rows, np.empty((0, 2)), [1, 1], n=2)
    [0, 2]
    """
    chances, X = np.asarray(probabilities, dtype=np.float64), np.asarray(rows)
    known, totals = np.asarray(known_rows), np.array(counts, dtype=np.float64)
    ordered = np.sort(chances, axis=1)
    doubt = 1 - (ordered[:, -1] - ordered[:, -2])
    predicted = chances.argmax(axis=1)
    members = {int(k): np.flatnonzero(predicted == k)[:_CLASS_IMAGES] for k in np.unique(predicted)}
    nearest = (X @ known.T).max(axis=1) if len(known) else np.full(len(X), -1.0)
    chosen: list[int] = []
    while members and len(chosen) < n:
        k = min(members, key=lambda k: (totals[k], k))
        candidates = members[k][~np.isin(members[k], chosen)]
        if not candidates.size:
            del members[k]
            continue
        cosines = X[members[k]] @ X[candidates].T
        gains = doubt[members[k]] @ np.maximum(cosines - nearest[members[k], None], 0)
        best = int(np.argmax(gains))
        nearest[members[k]] = np.maximum(nearest[members[k]], cosines[:, best])
        chosen.append(int(candidates[best]))
        totals[k] += 1
    return chosen


# --- decisions of a classifier -------------------------------------------------------------


def adjusted_proba(
    heads: Sequence[Head],
    rows: Sequence[ArrayLike],
    class_names: Sequence[Any],
    class_priors: ClassPriors | None,
) -> Floats:
    """Return mean probabilities, adjusted to class priors if there are any."""
    probabilities = mean_proba(heads, rows)
    if class_priors is None:
        return probabilities
    adjusted, warning = adjust_to_priors(probabilities, class_priors, class_names)
    if warning is not None:
        warnings.warn(warning, ClassPriorsWarning, stacklevel=3)
    return adjusted


def decided(
    heads: Sequence[Head],
    rows: Sequence[ArrayLike],
    class_names: NDArray[Any],
    abstain: float | None = None,
    reject: bool = False,
    accept: float = 0.95,
    class_priors: ClassPriors | None = None,
) -> NDArray[Any]:
    """Return the predicted class names; None where no class is probable enough, or all are rejected."""
    if class_priors is None and abstain is None:
        names = class_names[mean_index(heads, rows)]
    else:
        probabilities = adjusted_proba(heads, rows, class_names.tolist(), class_priors)
        names = class_names[probabilities.argmax(axis=1)]
    if abstain is None and not reject:
        return np.asarray(names)
    answers = names.astype(object)
    if abstain is not None:
        check_share("abstain", abstain)
        answers[probabilities.max(axis=1) < abstain] = None
    if reject:
        least, _ = thresholds(heads, accept)
        answers[heads[0].logits(rows[0]).max(axis=1) < least] = None
    return np.asarray(answers)


def sets_of_classes(
    heads: Sequence[Head],
    rows: Sequence[ArrayLike],
    class_names: Sequence[Any],
    coverage: float,
) -> list[list[Any]]:
    """Return the classes of each image whose probability reaches the threshold, at least one."""
    least = thresholds(heads, coverage=coverage)[1] or 0.0
    probabilities = heads[0].predict_proba(rows[0])
    sizes = np.maximum((probabilities >= least).sum(axis=1), 1)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    return [[class_names[k] for k in row[:size]] for row, size in zip(order, sizes, strict=True)]
