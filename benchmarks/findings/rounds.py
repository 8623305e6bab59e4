"""What are boosting rounds worth? Both composers, up to 50 rounds, with and without views and weights.

Variants: composer; views (4 of 8 a round, all 8, or the images alone); weights (SAMME.R with τ = 1, or
none: then rounds differ by their views only, so they average over draws); and for the gradient composer
rounds composed to be added to those before ("sum": their sum; "mean": their mean).
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from benchmarks.findings.fits import NO_REWEIGHTING, after_rounds, gradient_settings, measured
from benchmarks.findings.sets import VIEWS, ImageSet
from promptboost.boosting.gradient.compose import compose_by_gradient
from promptboost.compare.cells import Key, Result
from promptboost.methods.base import Origin
from promptboost.methods.fitted import TextClassifier, class_rows
from promptboost.training.learner import bank_texts

STOPS = (1, 5, 20, 50)
_EQUAL = f"temperature={NO_REWEIGHTING}"
_GRADIENT = "promptboost?rounds=50&views_per_round"
VARIANTS = {
    "greedy, views, weights": "tpb",
    "greedy, views": f"tpb?{_EQUAL}",
    "greedy, weights": "tpb?views_per_round=0",
    "greedy": f"tpb?views_per_round=0&{_EQUAL}",
    "gradient, views, weights": f"{_GRADIENT}=4",
    "gradient, views": f"{_GRADIENT}=4&{_EQUAL}",
    "gradient, weights": f"{_GRADIENT}=0",
    "gradient": f"{_GRADIENT}=0&{_EQUAL}",
    "gradient, all views": "promptboost",
    # Not methods one can ask for: what is composed here is not in the product.
    "gradient, added to the sum": "sum",
    "gradient, added to the mean": "mean",
}


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one variant on one draw."""
    spelling = VARIANTS[str(key["variant"])]
    if spelling in ("sum", "mean"):
        return _added(images, key, spelling)
    return after_rounds(images, spelling, key, (1,) if spelling == "promptboost" else STOPS)


def _added(images: ImageSet, key: Key, how: str) -> list[Result]:
    """Compose rounds that are good together with those before, and measure after some of them."""
    draw, words = images.draw(key), images.words()
    shots = images.shots(draw)
    settings = gradient_settings(images, shots, "promptboost?views_per_round=4")
    assert shots.views is not None
    n = len(shots.labels)
    y, weights = shots.labels.repeat(4), np.full(4 * n, 1 / n)
    origin = Origin(f"added to the {how}", images.class_names, images.encoder)
    earlier = np.zeros((len(words.grid.prompts), shots.originals.shape[1]), dtype=np.float32)
    sums: list[Counter[str]] = [Counter() for _ in images.class_names]
    results = []
    for number in range(1, STOPS[-1] + 1):
        rng = np.random.default_rng([int(key["seed"]), number])
        views = rng.permuted(np.tile(np.arange(VIEWS), (n, 1)), axis=1)[:, :4]
        X = np.ascontiguousarray(shots.views[np.arange(n)[:, None], views].reshape(len(y), -1))
        scale = settings.scale / (number if how == "mean" else 1)
        asked = replace(settings, logit_scale=scale)
        weak = compose_by_gradient(X, y, weights, words.grid, asked, rng=rng, earlier=earlier)
        banks = list(bank_texts(weak, words.texts).values())
        earlier = earlier + class_rows(banks, images.encoder, unit=False)
        for total, bank in zip(sums, banks, strict=True):
            total.update({text: copies / sum(bank.values()) for text, copies in bank.items()})
        if number in STOPS:
            classifier = TextClassifier(origin, tuple(map(dict, sums)), unit=False)
            results.append({**measured(images, draw, classifier), "rounds": number})
    return results
