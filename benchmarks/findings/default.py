"""Is the default better than the paper's setting? Both, as ``promptboost fit`` fits them, and the probe."""

from typing import Any

from benchmarks.findings.fits import boosted, gradient_settings, measured, zero_shot
from benchmarks.findings.sets import VIEWS, ImageSet
from promptboost.boosting import BoostSettings
from promptboost.evaluation.cells import Key, Result
from promptboost.methods.logistic import fit_probe

VARIANTS = ("zero-shot", "paper", "default", "probe")


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one of them on one draw."""
    draw, words = images.draw(int(key["shots"]), int(key["seed"])), images.words()
    seed = int(key["seed"])
    if key["variant"] == "zero-shot":
        return [{**zero_shot(images, draw)}]
    if key["variant"] == "probe":
        weights, intercepts, _ = fit_probe(draw.rows, draw.labels, seed=seed)
        hits = (draw.held_out @ weights.T + intercepts).argmax(axis=1) == draw.held_out_labels
        return [{"source": 100 * float(hits.mean())}]
    options: dict[str, Any] = {"rounds": 50, "views_per_round": 4}
    if key["variant"] == "default":
        options = {"rounds": 1, "views_per_round": VIEWS}
        options["gradient"] = gradient_settings(draw, words, VIEWS)
    settings = BoostSettings(seed=seed, **options)
    return [measured(draw, fitted) for fitted in boosted(draw, words, settings, (settings.rounds,))]
