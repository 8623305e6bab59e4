"""Which pool? Templates alone, with sentences, and with template and sentence joined into one prompt."""

from benchmarks.findings.fits import fit
from benchmarks.findings.sets import ImageSet, PoolKind
from promptboost.compare.cells import Key, Result

POOLS: tuple[PoolKind, ...] = ("templates", "full", "one", "all")
VARIANTS = tuple(f"{method}, {pool}" for method in ("tpb", "promptboost") for pool in POOLS)


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit on one pool; nothing where a set has no sentences to make it of."""
    method, pool = str(key["variant"]).split(", ")
    if pool != "templates" and not images.has_sentences:
        return []
    return [fit(images, images.draw(key), method, key, pool)]  # type: ignore[arg-type]
