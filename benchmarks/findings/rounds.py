"""What are boosting rounds worth? Both composers, up to 50 rounds, with and without views and weights.

Variants: composer; views (4 of 8 a round, all 8, or the images alone); weights (SAMME.R with τ = 1, or
none: then rounds differ by their views only, so they average over draws); and for the gradient composer
rounds composed to be added to those before ("sum": their sum; "mean": their mean).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.findings.fits import (
    NO_REWEIGHTING,
    added_up,
    bank_texts,
    boosted,
    gradient_settings,
    measured,
)
from benchmarks.findings.sets import VIEWS, Draw, ImageSet, Words
from promptboost.boosting import BoostSettings, GradientSettings, compose_by_gradient
from promptboost.boosting.composition import Composition
from promptboost.evaluation.cells import Key, Result

STOPS = (1, 5, 20, 50)
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy, views, weights": {"composer": "greedy", "views": 4, "weights": True},
    "greedy, views": {"composer": "greedy", "views": 4, "weights": False},
    "greedy, weights": {"composer": "greedy", "views": 0, "weights": True},
    "greedy": {"composer": "greedy", "views": 0, "weights": False},
    "gradient, views, weights": {"composer": "gradient", "views": 4, "weights": True},
    "gradient, views": {"composer": "gradient", "views": 4, "weights": False},
    "gradient, weights": {"composer": "gradient", "views": 0, "weights": True},
    "gradient": {"composer": "gradient", "views": 0, "weights": False},
    "gradient, all views": {
        "composer": "gradient",
        "views": VIEWS,
        "weights": False,
        "stops": (1,),
    },
    "gradient, added to the sum": {"composer": "gradient", "views": 4, "added": "sum"},
    "gradient, added to the mean": {"composer": "gradient", "views": 4, "added": "mean"},
}


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one variant on one draw."""
    variant = VARIANTS[str(key["variant"])]
    draw, words = images.draw(int(key["shots"]), int(key["seed"])), images.words()
    views = variant["views"]
    gradient = None
    if variant["composer"] == "gradient":
        gradient = gradient_settings(draw, words, views)
    stops = variant.get("stops", STOPS)
    if "added" in variant:
        assert gradient is not None
        rounds = _added(draw, words, gradient, int(key["seed"]), variant["added"])
        return [measured(draw, fitted) for fitted in added_up(words, rounds, stops)]
    settings = BoostSettings(
        rounds=stops[-1],
        views_per_round=views,
        temperature=1.0 if variant["weights"] else NO_REWEIGHTING,
        seed=int(key["seed"]),
        gradient=gradient,
    )
    return [measured(draw, fitted) for fitted in boosted(draw, words, settings, stops)]


def _added(
    draw: Draw, words: Words, settings: GradientSettings, seed: int, how: str
) -> Iterator[tuple[Composition, np.ndarray[Any, np.dtype[np.float64]]]]:
    """Compose rounds that are good together with those before."""
    shots = draw.shots()
    assert shots.views is not None
    n = len(shots.labels)
    y, weights = shots.labels.repeat(4), np.full(n, 1 / n)
    earlier = np.zeros((len(words.grid.prompts), shots.originals.shape[1]), dtype=np.float32)
    for number in range(1, STOPS[-1] + 1):
        rng = np.random.default_rng([seed, number])
        views = rng.permuted(np.tile(np.arange(VIEWS), (n, 1)), axis=1)[:, :4]
        X = shots.views[np.arange(n)[:, None], views].reshape(len(y), -1)
        scale = settings.scale / (number if how == "mean" else 1)
        weak = compose_by_gradient(
            np.ascontiguousarray(X),
            y,
            weights.repeat(4),
            words.grid,
            replace(settings, logit_scale=scale),
            rng=rng,
            earlier=earlier,
        )
        earlier = earlier + words.class_rows(bank_texts(weak, words.texts))[0]
        yield weak, weights
