"""Fits by the names that ``promptboost compare`` knows, measured as it measures them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.sets import VIEWS, ImageSet
from promptboost.boosting import BoostRound, GradientSettings, Shots
from promptboost.boosting.composition import Composition
from promptboost.compare.cell_worker import Cell, figures
from promptboost.compare.cells import Key, Result
from promptboost.compare.comparison import FewShotTask
from promptboost.methods import FittedMethod, Method, make_method
from promptboost.methods.fitted import TextClassifier
from promptboost.methods.promptboost import Boosting
from promptboost.model import PromptEnsemble
from promptboost.training.trainer import boost_settings, settle_scale

ENCODER_SCALE = 10.0  # of both ConSE encoders
#: So little is left of a weight's change after division by this that all weights stay equal.
NO_REWEIGHTING = 1e9


@dataclass(frozen=True)
class Boosted:
    """An ensemble after some rounds, the weights of the images, and the last round."""

    rounds: int
    classifier: TextClassifier
    weights: NDArray[np.float64]
    composition: Composition
    scale: float | None  # of the gradient composer


def fit(images: ImageSet, draw: FewShotTask, spelling: str, key: Key) -> Result:
    """Fit a method by its name on one draw, and measure it."""
    fitted = _seeded(spelling, key).fit(draw.learn, images.words.pool, images.encoder)
    return measured(images, draw, fitted)


def boosted(
    images: ImageSet, draw: FewShotTask, spelling: str, key: Key, stops: Sequence[int] = ()
) -> list[Boosted]:
    """Boost by the name of a method, and return what there is after some rounds: the last by default."""
    method = _seeded(spelling, key)
    assert isinstance(method, Boosting)
    origin = method.origin(draw.learn, images.encoder)
    kept: list[Boosted] = []

    def keep(ensemble: PromptEnsemble, done: BoostRound) -> None:
        if len(ensemble) in (stops or (method.rounds,)):
            scale = ensemble.settings.get("logit_scale")
            kept.append(
                Boosted(
                    len(ensemble),
                    method.classifier(ensemble, origin),
                    np.asarray(done.state.weights),
                    done.composition,
                    scale if isinstance(scale, float) else None,
                )
            )

    method.train(draw.learn, images.words.pool, images.encoder, keep)
    return kept


def after_rounds(
    images: ImageSet, spelling: str, key: Key, stops: Sequence[int] = ()
) -> list[Result]:
    """Boost on one draw, and measure after some rounds."""
    draw = images.draw(key)
    return [
        {
            **measured(images, draw, one.classifier),
            "rounds": one.rounds if stops else None,
            "scale": one.scale,
            "heaviest": float(one.weights.max() * len(one.weights)),
        }
        for one in boosted(images, draw, spelling, key, stops)
    ]


def measured(
    images: ImageSet, draw: FewShotTask, fitted: FittedMethod, moved: FittedMethod | None = None
) -> Result:
    """Measure a classifier, and the same on the target encoder where it can move there."""
    result = figures(fitted, draw)
    if moved is None and fitted.words() is not None:
        moved = fitted.transfer(images.target)
    if moved is not None:
        result["target"] = figures(moved, draw, at_home=False)["accuracy"]
    return result


def gradient_settings(
    images: ImageSet, shots: Shots, spelling: str = "promptboost"
) -> GradientSettings:
    """Choose the logit scale of a method as a fit does."""
    method = make_method(spelling)
    assert isinstance(method, Boosting)
    asked = boost_settings(method, VIEWS)
    settled, *_ = settle_scale(shots, images.words.grid, asked, images.encoder.logit_scale)
    gradient = settled.gradient
    assert gradient is not None
    return gradient


def _seeded(spelling: str, key: Key) -> Method:
    return Cell(spelling, int(key["shots"]), int(key["seed"])).seeded()
