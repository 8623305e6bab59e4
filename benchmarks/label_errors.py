"""How many wrong labels are found, beside cleanlab: on images some of whose labels are made wrong.

``python -m benchmarks.label_errors DATA [DATA …] [--prompts FILE …]`` changes a share of all labels at
random, those of images to learn from and of held-out ones alike, and asks which they are:

* ``promptboost``: what ``promptboost issues`` does, :mod:`promptboost.quality.suspects`;
* ``cleanlab, same probabilities``: cleanlab's ``find_label_issues`` on the same probabilities;
* ``cleanlab, logistic regression``: cleanlab as it is mostly used, with scikit-learn's logistic regression
  of the same embeddings in five folds.

With several DATA, a few images of the others are mixed in as well, and outliers looked for. cleanlab is
optional: ``pip install cleanlab``.
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import pool_heads
from promptboost.config import FitConfig
from promptboost.data.shots import divide, load_classes
from promptboost.data.source import DataSource
from promptboost.encoders.embedder import Embedder
from promptboost.quality.suspects import find_outliers, held_out_probabilities, label_errors
from promptboost.run.fit import pool_for

Floats = NDArray[np.float64]
OURS = "promptboost"
SAME, LOGISTIC = "cleanlab, same probabilities", "cleanlab, logistic regression"


@dataclass(frozen=True)
class Images:
    """Embedded images of one source, those to learn from first."""

    name: str
    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    learned: int
    words: NDArray[np.float32]  # (K, D)


def read(name: str, prompts: str | None, encoder: str, shots: int) -> Images:
    """Embed the images that a fit of so many shots learns from and holds out, and the mean of its pool."""
    source, embedder = DataSource.parse(name), Embedder.open(encoder)
    task = divide(source, load_classes(source), shots, 0)
    pool = pool_for(FitConfig(prompts=prompts), source, task.class_names)
    rows = np.concatenate([embedder.originals(part) for part in (task.learn, task.held_out)])
    labels = np.concatenate([task.learn.labels, task.held_out.labels])
    words = pool_heads(pool, embedder)["pool-mean"].weights
    return Images(name, rows, labels, len(task.learn), words)


def flipped(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Give a share of the images another label, any one with the same probability."""
    rng = np.random.default_rng([seed, round(100 * share)])
    which = rng.choice(len(labels), round(share * len(labels)), replace=False)
    noisy, classes = labels.copy(), int(labels.max()) + 1
    noisy[which] = (labels[which] + rng.integers(1, classes, len(which))) % classes
    return noisy


def figures(chosen: NDArray[np.integer], scores: Floats, wrong: NDArray[np.bool_]) -> Floats:
    """Return how many are to be looked at for each that is wrong, precision, recall, average precision."""
    from sklearn.metrics import average_precision_score

    hits = wrong[chosen].sum()
    share = len(chosen) / wrong.sum()
    precision = hits / max(len(chosen), 1)
    return np.array([share, precision, hits / wrong.sum(), average_precision_score(wrong, scores)])


def measure_labels(images: Images, share: float, seed: int) -> dict[str, Floats]:
    """Return the figures of each way to find wrong labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    noisy = flipped(images.labels, share, seed)
    wrong, rows = noisy != images.labels, images.rows
    ours = held_out_probabilities(rows, noisy, images.words)
    found = label_errors(ours, noisy)
    chosen = found.order[: found.count]
    results = {OURS: figures(chosen, found.scores, wrong)}
    learned = np.arange(len(noisy)) < images.learned
    results["promptboost, learned images"] = figures(
        np.flatnonzero(np.isin(np.flatnonzero(learned), chosen)),
        found.scores[learned],
        wrong[learned],
    )
    if (clean := cleanlab()) is not None:
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        regression = LogisticRegression(max_iter=1000)
        usual = cross_val_predict(regression, rows, noisy, cv=folds, method="predict_proba")
        for name, chances in ((SAME, ours), (LOGISTIC, usual)):
            order = clean.filter.find_label_issues(
                noisy, chances, return_indices_ranked_by="self_confidence", n_jobs=1
            )
            quality = clean.rank.get_label_quality_scores(noisy, chances)
            results[name] = figures(order, 1 - quality, wrong)
    return results


def measure_outliers(images: Images, others: list[Images], seed: int) -> dict[str, Floats]:
    """Mix images of other sources in, two of a hundred, and look for them."""
    rng = np.random.default_rng(seed)
    few = max(len(images.rows) // 50 // len(others), 1)
    mixed = [one.rows[rng.choice(len(one.rows), few, replace=False)] for one in others]
    rows = np.concatenate([images.rows, *mixed])
    foreign = np.arange(len(rows)) >= len(images.rows)
    strange = rng.integers(0, images.labels.max() + 1, foreign.sum())
    found = find_outliers(rows, np.concatenate([images.labels, strange]))
    results = {OURS: figures(found.order[: found.count], found.scores, foreign)}
    if (clean := cleanlab()) is not None:
        typical = clean.outlier.OutOfDistribution().fit_score(features=rows, verbose=False)
        # As many as were mixed in: it leaves the number open.
        chosen = np.flatnonzero(typical < np.quantile(typical, 0.02))
        results["cleanlab, least typical 2 %"] = figures(chosen, 1 - typical, foreign)
    return results


def cleanlab() -> Any:
    """Return the package, or None where it is not installed."""
    try:
        import cleanlab.filter
        import cleanlab.outlier
        import cleanlab.rank
    except ImportError:
        return None
    return cleanlab


def main() -> None:
    """Print a table of wrong labels, and one of outliers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--prompts", nargs="*", default=[], help="one for each DATA, or - for none")
    parser.add_argument("--encoder", default="conse:lite0")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.02, 0.1, 0.2])
    asked = parser.parse_args()
    if cleanlab() is None:
        print("cleanlab is not installed and left out; to have it beside: pip install cleanlab")
    prompts = [None if file == "-" else file for file in asked.prompts]
    prompts += [None] * (len(asked.data) - len(prompts))
    every = [
        read(name, file, asked.encoder, asked.shots)
        for name, file in zip(asked.data, prompts, strict=True)
    ]
    heads = ("to look at / wrong", "precision", "recall", "average precision")
    print("| labels | wrong | way |", " | ".join(heads), "|\n|---|--:|---|--:|--:|--:|--:|")
    for images in every:
        for share in asked.shares:
            print_rows(images.name, f"{share:.0%}", asked.seeds, measure_labels, images, share)
    if len(every) > 1:
        print(
            "\n| outliers | mixed in | way |", " | ".join(heads), "|\n|---|--:|---|--:|--:|--:|--:|"
        )
        for images in every:
            others = [one for one in every if one is not images]
            print_rows(images.name, "2%", asked.seeds, measure_outliers, images, others)


def print_rows(name: str, share: str, seeds: int, measure: Any, *arguments: Any) -> None:
    """Print a row for each way: the means over seeds."""
    results = defaultdict(list)
    for seed in range(seeds):
        for way, values in measure(*arguments, seed).items():
            results[way].append(values)
    for way, values in results.items():
        ratio, *rest = np.mean(values, axis=0)
        cells = " | ".join(f"{100 * value:.1f}" for value in rest)
        print(
            f"| {name.rsplit('/', 1)[-1]} | {share} | {way} | {ratio:.2f} | {cells} |", flush=True
        )


if __name__ == "__main__":
    main()
