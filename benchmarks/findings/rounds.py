"""What are boosting rounds worth? Both composers, up to 50 rounds, with and without views and weights.

Variants: composer; views (4 of 8 a round, all 8, or the images alone); weights (SAMME.R with τ = 1, or
none: then rounds differ by their views only, so they average over draws).
"""

from benchmarks.findings.fits import NO_REWEIGHTING, after_rounds
from benchmarks.findings.sets import ImageSet
from promptboost.compare.cells import Key, Result

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
}


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one variant on one draw."""
    spelling = VARIANTS[str(key["variant"])]
    return after_rounds(images, spelling, key, (1,) if spelling == "promptboost" else STOPS)
