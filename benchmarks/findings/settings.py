"""What do the gradient composer's own settings do? One at a time, the others as they are by default."""

from typing import Any

from benchmarks.findings.fits import ENCODER_SCALE, boosted, gradient_settings, measured
from benchmarks.findings.sets import VIEWS, ImageSet
from promptboost.boosting import BoostSettings
from promptboost.evaluation.cells import Key, Result

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    **{f"scale × {f}": {"logit_scale": f * ENCODER_SCALE} for f in (1, 2, 3, 4, 6, 10)},
    **{f"spread {s}": {"spread": float(s)} for s in (0, 0.5, 8)},
    **{f"caution {q}": {"caution": q} for q in (0.0, 0.6, 1.0)},
    **{f"copies {n}": {"copies": n} for n in (8, 16, 128)},
    **{f"sweeps {n}": {"sweeps": n} for n in (3, 10, 100)},
    "fresh views": {"views": 4},
    "no views": {"views": 0},
}


def work(images: ImageSet, key: Key) -> list[Result]:
    """Compose one round."""
    options = dict(VARIANTS[str(key["variant"])])
    views = options.pop("views", VIEWS)
    draw, words = images.draw(int(key["shots"]), int(key["seed"])), images.words()
    gradient = gradient_settings(draw, words, views, **options)
    settings = BoostSettings(
        rounds=1, views_per_round=views, seed=int(key["seed"]), gradient=gradient
    )
    return [
        {**measured(draw, fitted), "rounds": None, "scale": gradient.logit_scale}
        for fitted in boosted(draw, words, settings, (1,))
    ]
