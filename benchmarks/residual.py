"""Text, text and residual, and other methods on the same draws, for any labelled images.

    python -m benchmarks.residual DATA [--prompts FILE ...] [--shots 1 2 4 8 16] [--seeds 1 2 3]

Learns on conse:lite0 and prints mean accuracies in per cent, and the seconds that the residual took.
Embeddings are kept in the store, so it can be stopped and run again. CoOp (--methods coop) takes minutes
a draw, the others seconds.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.images import merged_prompts
from promptboost.boosting import BoostSettings, GridPool, Shots, boost
from promptboost.boosting.composition import class_rows
from promptboost.boosting.gradient.compose import compose_by_gradient
from promptboost.boosting.gradient.scale import dealt
from promptboost.boosting.grid import from_grid
from promptboost.config import FitConfig
from promptboost.evaluation.cells import CompareRequest
from promptboost.evaluation.compare import Cell
from promptboost.evaluation.world import Draw, World
from promptboost.methods import make_method
from promptboost.model.residual import Residual, fit_residual
from promptboost.training import PoolTexts, boost_settings
from promptboost.training.learner import settle_scale

METHODS = ("logistic", "tip-adapter", "tip-adapter-f")
_FOLDS = 4


def fold_texts(
    shots: Shots, pool: GridPool, settings: BoostSettings
) -> tuple[NDArray[np.int64], list[NDArray[np.float32]]] | None:
    """Compose without the images of each fold, as the choice of the scale does."""
    folds = min(int(np.bincount(shots.labels).min()), _FOLDS)
    if folds < 2 or shots.views is None or settings.gradient is None:
        return None
    fold, texts = dealt(shots.labels, folds), []
    for part in range(folds):
        rows = shots.views[fold != part]
        labels = shots.labels[fold != part].repeat(rows.shape[1])
        flat = np.ascontiguousarray(rows.reshape(len(labels), -1))
        asked, rng = replace(settings.gradient, sweeps=12), np.random.default_rng(0)
        weak = compose_by_gradient(flat, labels, np.ones(len(labels)), pool, asked, rng=rng)
        texts.append(class_rows(weak, pool))
    return fold, texts


def measure(world: World, draw: Draw, pool: GridPool, seed: int) -> dict[str, float]:
    """Learn the text and its residual from one draw."""
    views = draw.learn.images.views(world.encoder)
    shots = Shots.from_rows(views[:, 0], draw.learn.labels, views[:, 1:])
    asked = boost_settings(FitConfig(seed=seed), views.shape[1] - 1)
    settings, _, _ = settle_scale(shots, pool, asked, world.encoder.logit_scale)
    (done,) = boost(shots, pool, settings)
    text = class_rows(done.composition, pool)
    unseen = from_grid(pool.templates).mean(axis=1)
    aside = fold_texts(shots, pool, settings)
    start = time.perf_counter()
    residual: Residual
    if aside is None:
        residual = fit_residual(views, shots.labels, text, unseen)
    else:
        residual = fit_residual(
            views, shots.labels, text, unseen, folds=aside[0], fold_rows=aside[1]
        )
    seconds = time.perf_counter() - start
    rows = draw.held_out.rows(world.encoder)
    right = [
        100 * float(((rows @ classes.T).argmax(axis=1) == draw.labels).mean())
        for classes in (text, residual.class_rows(text))
    ]
    return {"text": right[0], "text + residual": right[1], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--prompts", nargs="*", default=[])
    parser.add_argument("--shots", nargs="*", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    columns = ["text", *options.methods, "text + residual", "seconds"]
    with tempfile.TemporaryDirectory() as place:
        words = FitConfig(prompts=merged_prompts(options.prompts, options.data, Path(place)))
        world = World(
            CompareRequest(
                options.data,
                Path(place),
                shots=tuple(options.shots),
                seeds=tuple(options.seeds),
                words=words,
            )
        )
        pool = PoolTexts.of(world.pool).embed(world.encoder.encode_texts)
        print("| shots | " + " | ".join(columns) + " |")
        print("|" + "--:|" * (len(columns) + 1))
        for number in options.shots:
            table = []
            for seed in options.seeds:
                draw = world.draw(number, seed)
                row = measure(world, draw, pool, seed)
                for name in options.methods:
                    method = Cell(name, make_method(name), number, seed).seeded()
                    fitted = method.fit(draw.learn, world.pool, world.encoder)
                    guesses = fitted.predict(draw.held_out)
                    row[name] = 100 * float((guesses == draw.labels).mean())
                table.append([row[column] for column in columns])
            means = np.mean(table, axis=0)
            print(f"| {number} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |", flush=True)


if __name__ == "__main__":
    main()
