"""Is the default better than the paper's setting? Both, and what they are compared with, by their names."""

from benchmarks.findings.fits import fit
from benchmarks.findings.sets import ImageSet
from promptboost.compare.cells import Key, Result

VARIANTS = ("zero-shot", "tpb", "promptboost", "logistic")


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one of them on one draw."""
    return [fit(images, images.draw(key), str(key["variant"]), key)]
