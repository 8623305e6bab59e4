"""What do the gradient composer's own settings do? One at a time, the others as they are by default."""

from benchmarks.findings.fits import ENCODER_SCALE, after_rounds
from benchmarks.findings.sets import ImageSet
from promptboost.compare.cells import Key, Result

VARIANTS = {
    "default": "promptboost",
    **{f"scale × {f}": f"promptboost?logit_scale={f * ENCODER_SCALE}" for f in (1, 2, 3, 4, 6, 10)},
    **{f"spread {s}": f"promptboost?spread={s}" for s in (0, 0.5, 8)},
    **{f"caution {q}": f"promptboost?caution={q}" for q in (0.0, 0.6, 1.0)},
    **{f"copies {n}": f"promptboost?copies={n}" for n in (8, 16, 128)},
    **{f"sweeps {n}": f"promptboost?sweeps={n}" for n in (3, 10, 100)},
    "fresh views": "promptboost?views_per_round=4",
    "no views": "promptboost?views_per_round=0",
}


def work(images: ImageSet, key: Key) -> list[Result]:
    """Compose one round."""
    return after_rounds(images, VARIANTS[str(key["variant"])], key)
