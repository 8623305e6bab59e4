"""Classes that are alike: k-means of their rows, with as many clusters as tell them apart best."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_clusters", "silhouette"]

Rows = NDArray[np.floating]

_LEAST_CLUSTERS = 5
_ROUNDS = 30


def best_clusters(rows: Rows, rng: np.random.Generator) -> NDArray[np.intp]:
    """Divide rows into an odd number of clusters, from 5 to a fifth of the rows.

    Fewer than 25 rows are one cluster.

    Parameters
    ----------
    rows : array of shape (K, D)
        Unit rows.
    rng : Generator
        Draws where clusters begin.

    Returns
    -------
    array of int, shape (K,)
        The cluster of each row; the division with the highest silhouette.

    Examples
    --------
    >>> rows = np.repeat(np.eye(5), 5, axis=0)
    >>> np.unique(best_clusters(rows, np.random.default_rng(0)).reshape(5, 5), axis=1).shape
    (5, 1)
    """
    distances = np.sqrt(np.maximum(0.0, _squared(rows, rows)))
    best, worth = np.zeros(len(rows), dtype=np.intp), -np.inf
    for k in range(_LEAST_CLUSTERS, len(rows) // 5 + 1, 2):
        clusters = _k_means(rows, k, rng)
        if (found := silhouette(distances, clusters)) > worth:
            best, worth = clusters, found
    return best


def silhouette(distances: Rows, clusters: NDArray[np.intp]) -> float:
    """Say how much nearer rows are to their own cluster than to the next: from -1 to 1.

    Examples
    --------
    >>> distances = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 4.0], [4.0, 4.0, 0.0]])
    >>> round(silhouette(distances, np.array([0, 0, 1])), 2)
    0.5
    """
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
    clusters = _nearest(rows, centres)
    for _ in range(_ROUNDS):
        for c in np.unique(clusters):
            centres[c] = rows[clusters == c].mean(axis=0)
        moved = _nearest(rows, centres)
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


def _nearest(rows: Rows, centres: Rows) -> NDArray[np.intp]:
    return np.asarray(_squared(rows, centres).argmin(axis=1))


def _squared(one: Rows, other: Rows) -> NDArray[np.float64]:
    a, b = one.astype(np.float64), other.astype(np.float64)
    return np.asarray((a**2).sum(axis=1)[:, None] - 2 * a @ b.T + (b**2).sum(axis=1))
