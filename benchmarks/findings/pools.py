"""Which pool? Templates alone, with sentences, and with template and sentence joined into one prompt."""

from typing import Any

from benchmarks.findings.fits import boosted, gradient_settings, measured
from benchmarks.findings.sets import VIEWS, ImageSet, PoolKind
from promptboost.boosting import BoostSettings
from promptboost.evaluation.cells import Key, Result

POOLS: tuple[PoolKind, ...] = ("templates", "full", "one", "all")
VARIANTS = tuple(f"{who}, {pool}" for who in ("paper", "default") for pool in POOLS)


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit on one pool; nothing where a set has no sentences to make it of."""
    who, pool = str(key["variant"]).split(", ")
    if pool != "templates" and not images.has_sentences:
        return []
    draw = images.draw(int(key["shots"]), int(key["seed"]))
    words = images.words(pool)  # type: ignore[arg-type]
    options: dict[str, Any] = {"rounds": 50, "views_per_round": 4}
    if who == "default":
        options = {"rounds": 1, "views_per_round": VIEWS}
        options["gradient"] = gradient_settings(draw, words, VIEWS)
    settings = BoostSettings(seed=int(key["seed"]), **options)
    return [measured(draw, fitted) for fitted in boosted(draw, words, settings, (settings.rounds,))]
