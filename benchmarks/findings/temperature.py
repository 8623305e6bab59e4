"""Which τ? The paper's setting with other temperatures; ConSE cosines spread wider than CLIP's."""

from benchmarks.findings.fits import NO_REWEIGHTING, after_rounds
from benchmarks.findings.sets import ImageSet
from promptboost.compare.cells import Key, Result

VARIANTS = {
    **{f"τ = {value}": f"tpb?temperature={value}" for value in ("0.1", "0.3", "1", "3", "10")},
    "no weights": f"tpb?temperature={NO_REWEIGHTING}",
}
STOPS = (5, 50)


def work(images: ImageSet, key: Key) -> list[Result]:
    """Boost greedily at one temperature."""
    return after_rounds(images, VARIANTS[str(key["variant"])], key, STOPS)
