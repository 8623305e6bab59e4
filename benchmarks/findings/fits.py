"""Fits as the questions need them: rounds one after the other, measured after some of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.sets import Draw, Floats, Words
from promptboost.boosting import BoostSettings, GradientSettings, boost
from promptboost.boosting.composition import Composition
from promptboost.boosting.gradient.scale import choose_scale
from promptboost.evaluation.measures import accuracy
from promptboost.training import PoolTexts

ENCODER_SCALE = 10.0  # of both ConSE encoders
#: So little is left of a weight's change after division by this that all weights stay equal.
NO_REWEIGHTING = 1e9


@dataclass(frozen=True)
class Fitted:
    """An ensemble so far: summed class rows for both encoders, and its banks."""

    rounds: int
    source: Floats
    target: Floats
    banks: list[list[dict[str, int]]]
    weights: NDArray[np.float64]

    def distinct(self) -> float:
        """Distinct prompts a class, on average."""
        classes = zip(*self.banks, strict=True)
        return float(np.mean([len({t for bank in rounds for t in bank}) for rounds in classes]))


def gradient_settings(draw: Draw, words: Words, views: int, **options: Any) -> GradientSettings:
    """Choose the logit scale as the product does, unless it is given."""
    if "logit_scale" in options:
        return GradientSettings(**options)
    asked = GradientSettings(logit_scale=1.0, **options)
    choice = choose_scale(draw.shots(), words.grid, asked, ENCODER_SCALE, views=views)
    return GradientSettings(logit_scale=choice.logit_scale, **options)


def boosted(
    draw: Draw, words: Words, settings: BoostSettings, stops: Sequence[int]
) -> Iterator[Fitted]:
    """Boost, and give what there is after each of some rounds."""
    return added_up(
        words,
        ((r.composition, r.state.weights) for r in boost(draw.shots(), words.grid, settings)),
        stops,
    )


def added_up(
    words: Words,
    rounds: Iterator[tuple[Composition, NDArray[np.float64]]],
    stops: Sequence[int],
) -> Iterator[Fitted]:
    """Add up weak classifiers."""
    banks: list[list[dict[str, int]]] = []
    source: Floats | float = 0.0
    target: Floats | float = 0.0
    for number, (weak, weights) in enumerate(rounds, start=1):
        banks.append(bank_texts(weak, words.texts))
        one, other = words.class_rows(banks[-1])
        source, target = source + one, target + other
        if number in stops:
            yield Fitted(number, np.asarray(source), np.asarray(target), list(banks), weights)


def bank_texts(weak: Composition, texts: PoolTexts) -> list[dict[str, int]]:
    """Put the banks of a weak classifier into words."""
    found = []
    for k, own in enumerate(texts.prompt_texts):
        bank: dict[str, int] = {}
        if weak.template_copies[k]:
            bank[texts.template_texts[k][weak.template]] = weak.template_copies[k]
        for prompt, copies in weak.banks[k].items():
            bank[own[prompt]] = bank.get(own[prompt], 0) + copies
        found.append(bank)
    return found


def measured(draw: Draw, fitted: Fitted) -> dict[str, Any]:
    """Return accuracies in per cent, and what there is to read."""
    return {
        "rounds": fitted.rounds,
        "source": percent_right(draw.held_out, fitted.source, draw.held_out_labels),
        "target": percent_right(draw.held_out_target, fitted.target, draw.held_out_labels),
        "learnt": percent_right(draw.rows[:, 0], fitted.source, draw.labels),
        "distinct": fitted.distinct(),
        "heaviest": float(fitted.weights.max() * len(fitted.weights)),
    }


def percent_right(rows: Floats, classes: Floats, labels: NDArray[np.int64]) -> float:
    """Return the share of rows nearest to their class, in per cent."""
    return 100 * (accuracy((rows @ classes.T).argmax(axis=1), labels) or 0.0)
