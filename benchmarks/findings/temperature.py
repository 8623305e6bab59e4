"""Which τ? The paper's setting with other temperatures; ConSE cosines spread wider than CLIP's."""

from benchmarks.findings.fits import NO_REWEIGHTING, boosted, measured
from benchmarks.findings.sets import ImageSet
from promptboost.boosting import BoostSettings
from promptboost.evaluation.cells import Key, Result

TEMPERATURES = {
    "0.1": 0.1,
    "0.3": 0.3,
    "1": 1.0,
    "3": 3.0,
    "10": 10.0,
    "no weights": NO_REWEIGHTING,
}
VARIANTS = tuple(f"τ = {name}" if name[0].isdigit() else name for name in TEMPERATURES)
STOPS = (5, 50)


def work(images: ImageSet, key: Key) -> list[Result]:
    """Boost greedily at one temperature."""
    draw, words = images.draw(int(key["shots"]), int(key["seed"])), images.words()
    temperature = TEMPERATURES[str(key["variant"]).removeprefix("τ = ")]
    settings = BoostSettings(rounds=STOPS[-1], temperature=temperature, seed=int(key["seed"]))
    return [measured(draw, fitted) for fitted in boosted(draw, words, settings, STOPS)]
