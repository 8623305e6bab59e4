"""Random and adversarial instances of the search, as hypothesis strategies."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from promptboost.boosting.grid import ROW_UNIT, weights_to_grid


@dataclass
class Instance:
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    prompts: list[np.ndarray]
    first: np.ndarray
    options: dict = field(default_factory=dict)

    @property
    def search_arguments(self):
        return self.X, self.y, self.weights, self.prompts, self.first


def coarse_rows(rng, count, dim, levels):
    """Rows on a very coarse grid, so that equal cosines, equal scores and repeated rows abound."""
    rows = rng.integers(-levels, levels + 1, (count, dim)).astype(float)
    rows[(rows == 0).all(axis=1), 0] = 1
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.rint(rows * ROW_UNIT).astype(np.int16)


def near_rows(rng, count, dim, center):
    """Rows within a few grid steps of each other, so that flips need huge numbers of copies."""
    rows = np.rint(center * ROW_UNIT) + rng.integers(-3, 4, (count, dim))
    return rows.astype(np.int16)


WEIGHTS = {
    "uniform": lambda rng, n: np.ones(n),
    "few values and zeros": lambda rng, n: rng.integers(0, 3, n) + 1e-12 * (np.arange(n) == 0),
    "continuous": lambda rng, n: rng.random(n) + 1e-3,
    "one dominates": lambda rng, n: np.where(np.arange(n) == n // 2, 1.0, 1e-9),
}


def make_instance(seed, *, kind="coarse", weights="uniform", options=None, dim=None):
    rng = np.random.default_rng(seed)
    K, n, drawn = (int(rng.integers(*r)) for r in ((2, 7), (2, 45), (2, 7)))
    dim = dim or drawn
    levels = int(rng.integers(1, 6))
    center = np.full(dim, 1 / np.sqrt(dim))

    def rows(count):
        if kind == "coarse":
            return coarse_rows(rng, count, dim, levels)
        if kind == "near":
            return near_rows(rng, count, dim, center)
        values = rng.standard_normal((count, dim))
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        return np.rint(values * ROW_UNIT).astype(np.int16)

    prompts = [rows(int(rng.integers(1, 16))) for _ in range(K)]
    if seed % 3 == 0:  # the same prompt several times, also in other classes
        prompts = [np.concatenate([P, prompts[0][:2], P]) for P in prompts]
    first = rows(K)
    if seed % 5 == 0:
        first[:] = first[0]  # all classes start with equal scores
    return Instance(
        X=rows(n),
        y=rng.integers(K, size=n),
        weights=weights_to_grid(WEIGHTS[weights](rng, n), n),
        prompts=prompts,
        first=first,
        options=options or {},
    )


instances = st.builds(
    make_instance,
    st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["coarse", "near", "random"]),
    weights=st.sampled_from(list(WEIGHTS)),
    options=st.fixed_dictionaries(
        {"max_copies": st.sampled_from([None, 1, 2, 3, 5, 9]), "penalty": st.booleans()}
    ),
    dim=st.sampled_from([None, 16, 48]),  # None: rows too short for tiles of products
)
