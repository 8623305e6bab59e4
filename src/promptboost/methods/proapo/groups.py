"""Which classes ProAPO edits together: few of them, where words can help most.

The released code mixes ranks and labels here and begins with the easiest classes. This goes by label,
and by the hardest first.
"""

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses

Rows = NDArray[np.floating]

_LEAST_CLUSTERS = 5
_ROUNDS = 30


def best_clusters(rows: Rows, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the cluster of each unit row, of the division with the highest silhouette.

    There are an odd number of them, from 5 to a fifth of the rows; fewer than 25 rows are one cluster.
    """
    distances = np.sqrt(np.maximum(0.0, _squared(rows, rows)))
    best, worth = np.zeros(len(rows), dtype=np.intp), -np.inf
    for k in range(_LEAST_CLUSTERS, len(rows) // 5 + 1, 2):
        clusters = _k_means(rows, k, rng)
        if (value := silhouette(distances, clusters)) > worth:
            best, worth = clusters, value
    return best


def silhouette(distances: Rows, clusters: NDArray[np.intp]) -> float:
    """Return how much nearer rows are to their own cluster than to the next: from -1 to 1."""
    member = clusters[:, None] == np.unique(clusters)
    if member.shape[1] < 2:
        return -1.0
    sizes = member.sum(axis=0)
    sums = distances @ member
    own_size = (member * sizes).sum(axis=1)
    within = (sums * member).sum(axis=1) / np.maximum(own_size - 1, 1)
    beyond = np.where(member, np.inf, sums / sizes).min(axis=1)
    worth = (beyond - within) / np.maximum(np.maximum(within, beyond), 1e-12)
    # A row that is alone in its cluster says nothing.
    return float(np.where(own_size > 1, worth, 0.0).mean())


def _k_means(rows: Rows, k: int, rng: np.random.Generator) -> NDArray[np.intp]:
    centres = _first_centres(rows, k, rng)
    clusters: NDArray[np.intp] = _squared(rows, centres).argmin(axis=1)
    for _ in range(_ROUNDS):
        for c in np.unique(clusters):
            centres[c] = rows[clusters == c].mean(axis=0)
        moved = _squared(rows, centres).argmin(axis=1)
        if (moved == clusters).all():
            break
        clusters = moved
    return clusters


def _first_centres(rows: Rows, k: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows that are far from those drawn before (k-means++)."""
    drawn = [int(rng.integers(len(rows)))]
    for _ in range(k - 1):
        nearest = np.maximum(0.0, _squared(rows, rows[drawn]).min(axis=1)) + 1e-12
        drawn.append(int(rng.choice(len(rows), p=nearest / nearest.sum())))
    return rows[drawn].astype(np.float64)


def _squared(one: Rows, other: Rows) -> NDArray[np.float64]:
    a, b = one.astype(np.float64), other.astype(np.float64)
    return np.asarray((a**2).sum(axis=1)[:, None] - 2 * a @ b.T + (b**2).sum(axis=1))


Classes = tuple[int, ...]

# A class that gains less than this by its sentences is no reason to begin there.
_LEAST_GAIN = 0.1
_SHARE_LEFT_OUT = 0.4
# Of a class's images, how many must have another class among their best five.
_LEAST_CONFUSED = 0.04
_BEST = 5


def group_size(n_classes: int) -> int:
    """Return how many classes a group has at most."""
    return max(2, int(2.5 * log(n_classes))) if n_classes > 1 else 1


def gain_groups(gains: NDArray[np.float64], size: int) -> tuple[list[Classes], NDArray[np.bool_]]:
    """Begin with the classes that gain most by all their sentences at once.

    Returns groups, the highest gains first, and which classes may be edited at all: all but the 40 %
    that gain least.
    """
    order = np.argsort(-gains, kind="stable")
    left = order[: len(order) - int(_SHARE_LEFT_OUT * len(order))]
    allowed = np.zeros(len(gains), dtype=np.bool_)
    allowed[left] = True
    gaining = [int(k) for k in left if gains[k] > _LEAST_GAIN]
    return [tuple(gaining[i : i + size]) for i in range(0, len(gaining), size)], allowed


def confusion_groups(
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    rows: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    *,
    size: int,
    taken: Sequence[Classes],
    rng: np.random.Generator,
) -> list[Classes]:
    """Put classes together with those they are taken for, the hardest first.

    `scores` are those of the training images, on the scale of a softmax. Places left over go to a
    class's nearest, by the unit `rows`, in its cluster. Only classes that are `allowed` are edited, and
    none of a group in `taken` begins another one.
    """
    n_classes = scores.shape[1]
    confused, likely = _confused(scores, labels)
    clusters = best_clusters(rows, rng)
    likeness = rows @ rows.T
    covered = {k for group in taken for k in group}
    most = max(size, int(10 * log(n_classes))) if n_classes > 1 else 1
    groups = []
    for k in _hardest_first(scores, labels):
        if k in covered or not allowed[k] or len(covered) >= most:
            continue
        mates = np.flatnonzero(clusters == clusters[k])
        ranked = [
            *(j for j in np.lexsort((-likely[k], -confused[k])) if confused[k, j]),
            *mates[np.argsort(-likeness[k, mates], kind="stable")],
        ]
        members = dict.fromkeys([k, *(int(j) for j in ranked if allowed[j])])
        groups.append(tuple(members)[:size])
        covered.update(groups[-1])
    return groups


def _hardest_first(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> list[int]:
    """Order the classes that have images by their cross-entropy."""
    losses = log_losses(scores, labels).astype(scores.dtype)
    classes = np.unique(labels)
    means = np.array([losses[labels == k].mean() for k in classes])
    return [int(k) for k in classes[np.argsort(-means, kind="stable")]]


def _confused(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how often and how much classes are taken for each other, as two arrays (K, K).

    The first is the share of the images of a class that has the other among its best five; 0 if rare.
    The second is the mean score of the other: it decides between equal shares, of which small tasks
    are full.
    """
    n, n_classes = scores.shape
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_BEST]
    among = np.zeros((n, n_classes))
    np.put_along_axis(among, best, 1.0, axis=1)
    shares, means = np.zeros((2, n_classes, n_classes))
    for k in np.unique(labels):
        shares[k] = among[labels == k].mean(axis=0)
        means[k] = scores[labels == k].mean(axis=0)
    np.fill_diagonal(shares, 0.0)
    return np.where(shares >= _LEAST_CONFUSED, shares, 0.0), means
