"""Rejection, prediction sets, class priors, and the choice of images to label, on four image sets.

    python -m benchmarks.decisions QUESTION … --images DIR --pools DIR

QUESTION is ``reject``, ``coverage``, ``priors`` or ``suggest``. The folders are those of
``benchmarks.findings``. Fits are those of the estimator with its default settings, crops included except
for ``suggest``; images that are not drawn are the test images. The table of each question is
printed, in per cent, means over draws.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings.sets import SETS, ImageSet, Places
from promptboost import PromptBoostClassifier
from promptboost.config import FitConfig
from promptboost.data.shots import draw_shots, rest
from promptboost.encoders.embedder import Embedder
from promptboost.model import Head
from promptboost.model.decisions import adjust_to_priors, choose_images
from promptboost.pool import build_pool

Floats = NDArray[np.floating]
Indices = NDArray[np.int64]
Rows = Iterator[tuple[tuple[object, ...], list[float]]]
COVERAGES = (0.8, 0.9, 0.95)


class Decisions:
    """The image sets, embedded, and fits on draws of them."""

    def __init__(self, images: Path, pools: Path, sets: list[str], encoder: str) -> None:
        self.embedder = Embedder.open(encoder)
        self._heads: dict[tuple[str, int, int], Head] = {}
        places = Places(images, pools, encoder=encoder)
        self.sets = {name: ImageSet(name, places) for name in sets}
        self.rows = {
            name: self.embedder.originals(each.comparison.data) for name, each in self.sets.items()
        }
        self.labels = {
            name: np.array([image.label for image in each.comparison.data.images])
            for name, each in self.sets.items()
        }

    def fit(self, name: str, drawn: Indices, *, crops: bool = True) -> PromptBoostClassifier:
        """Fit on some of the images of a set, with the sentences of their classes."""
        data, labels = self.sets[name].comparison.data.subset(drawn), self.labels[name][drawn]
        classes, sentences = sorted(set(labels.tolist())), self.sets[name].sentences
        if sentences is not None:
            sentences = {each: sentences[each] for each in classes}
        views = None
        if crops:
            number = FitConfig().crops(len(data))
            views = self.embedder.images(data, views=number)[:, 1:].astype(np.float64)
        estimator = PromptBoostClassifier(
            self.embedder.id, pool=build_pool(classes, descriptions=sentences), random_state=0
        )
        rows = self.rows[name][drawn].astype(np.float64)
        return estimator.fit(rows, labels, views=views)

    def draw(self, name: str, shots: int, seed: int) -> tuple[Indices, Indices]:
        """Return the positions of training images, and of all others."""
        labels = self.sets[name].comparison.data.labels
        drawn = draw_shots(labels, shots, seed)
        return drawn, rest(len(labels), drawn)

    def head(self, name: str, shots: int, seed: int) -> tuple[Head, Floats, Indices]:
        """Return the head of a fit, and embeddings and labels of the test images."""
        if (name, shots, seed) not in self._heads:
            drawn, others = self.draw(name, shots, seed)
            self._heads[name, shots, seed] = self.fit(name, drawn).classifier_.head
        head = self._heads[name, shots, seed]
        others = self.draw(name, shots, seed)[1]
        numbers = [head.class_names.index(label) for label in self.labels[name][others]]
        return head, self.rows[name][others], np.array(numbers)


def _detection(known: Floats, foreign: Floats) -> list[float]:
    """Return AUROC, and the false-positive rate at which 95% of known images pass."""
    from sklearn.metrics import roc_auc_score

    truth = np.arange(len(known) + len(foreign)) < len(known)
    area = roc_auc_score(truth, np.concatenate([known, foreign]))
    return [100 * area, 100 * float((foreign >= np.quantile(known, 0.05)).mean())]


def _rejection(head: Head, known: Floats, foreign: Floats) -> list[float]:
    """Return both figures for probability and logit, and shares accepted at the threshold of the run."""
    chances = [head.predict_proba(X).max(axis=1) for X in (known, foreign)]
    logits = [head.logits(X).max(axis=1) for X in (known, foreign)]
    accepted = [100 * float((each >= head.least_logit()).mean()) for each in logits]
    return [*_detection(*chances), *_detection(*logits), *accepted]


def reject(task: Decisions, shots: tuple[int, ...], seeds: range) -> Rows:
    """Measure rejection: of images of other sets, and of 30% of the classes, unknown to the fit."""
    for name in task.sets:
        for number in shots:
            for seed in seeds:
                head, known, _ = task.head(name, number, seed)
                for other in task.sets:
                    if other != name:
                        figures = _rejection(head, known, task.rows[other])
                        yield ("far", name, number), figures
                drawn, others = task.draw(name, number, seed)
                labels = task.labels[name]
                classes = np.random.default_rng(seed).permutation(np.unique(labels))
                unknown = np.isin(labels, classes[: round(0.3 * len(classes))])
                fitted = task.fit(name, drawn[~unknown[drawn]]).classifier_.head
                rows = task.rows[name][others]
                new = unknown[others]
                yield ("near", name, number), _rejection(fitted, rows[~new], rows[new])


def coverage(task: Decisions, shots: tuple[int, ...], seeds: range) -> Rows:
    """Measure the coverage of prediction sets, and how many classes they have."""
    for name in task.sets:
        for number in shots:
            for seed in seeds:
                head, rows, labels = task.head(name, number, seed)
                chances = head.predict_proba(rows)
                figures = [100 * float((chances.argmax(axis=1) == labels).mean())]
                for wanted in COVERAGES:
                    sets = chances >= head.least_probability(wanted)
                    sets[np.arange(len(sets)), chances.argmax(axis=1)] = True
                    hit = sets[np.arange(len(sets)), labels]
                    figures += [100 * float(hit.mean()), float(sets.sum(axis=1).mean())]
                yield (name, number), figures


def priors(task: Decisions, shots: tuple[int, ...], seeds: range) -> Rows:
    """Measure class priors in folders with all classes, and with some of them."""
    for name in task.sets:
        for number in shots:
            for seed in seeds:
                head, rows, labels = task.head(name, number, seed)
                chances, names = head.predict_proba(rows), head.class_names
                classes = np.random.default_rng(seed).permutation(len(names))
                for share in (0.3, 0.5, 1.0):
                    some = np.isin(labels, classes[: round(share * len(names))])
                    values, truth = chances[some], labels[some]
                    sizes = np.bincount(truth, minlength=len(names))
                    true = dict(zip(names, sizes.tolist(), strict=True))
                    figures = [100 * float((values.argmax(axis=1) == truth).mean())]
                    for how in ("estimate", "equal", true):
                        adjusted, warning = adjust_to_priors(values, how, names)
                        figures.append(100 * float((adjusted.argmax(axis=1) == truth).mean()))
                        if how == "estimate":
                            figures.append(100.0 * (warning is not None))
                    yield (f"{share:.0%} of classes", name, number), figures


def suggest(task: Decisions, shots: tuple[int, ...], seeds: range) -> Rows:
    """Label as many images as there are classes, four times, and measure after each time."""
    for name in task.sets:
        for rule in ("random", "smallest margin", "promptboost"):
            for seed in seeds:
                yield (name, shots[0], rule), list(_labeled(task, name, rule, shots[0], seed))


def _labeled(
    task: Decisions, name: str, rule: str, shots: int, seed: int, rounds: int = 4
) -> Iterator[float]:
    """Yield the accuracy on half of the images, after each round of labels for the others."""
    rng, labels, rows = np.random.default_rng(seed), task.labels[name], task.rows[name]
    classes, order = np.unique(labels), rng.permutation(len(labels))
    test, pool = np.sort(order[::2]), np.sort(order[1::2])
    drawn = pool[draw_shots(np.searchsorted(classes, labels[pool]), shots, seed)]
    for done in range(rounds + 1):
        fitted = task.fit(name, np.sort(drawn), crops=False)
        X = rows.astype(np.float64)
        yield 100 * float((fitted.predict(X[test]) == labels[test]).mean())
        if done < rounds:
            pool = np.setdiff1d(pool, drawn)
            chances = fitted.predict_proba(X[pool])
            sizes = np.bincount(np.searchsorted(classes, labels[drawn]))
            if rule == "promptboost":
                new = choose_images(chances, X[pool], X[drawn], sizes, len(classes))
            elif rule == "random":
                new = rng.permutation(len(pool))[: len(classes)].tolist()
            else:
                ordered = np.sort(chances, axis=1)
                new = np.argsort(ordered[:, -1] - ordered[:, -2])[: len(classes)].tolist()
            drawn = np.concatenate([drawn, pool[new]])


HEADINGS = {
    reject: "probability: AUROC | FPR95 | logit: AUROC | FPR95 | own accepted | others accepted",
    coverage: "accuracy | " + " | ".join(f"{share:.0%}: covered | classes" for share in COVERAGES),
    priors: "as today | estimate | warned | equal | given",
    suggest: "start | 1 | 2 | 3 | 4",
}


def main() -> None:
    """Print the table of a question."""
    parser = argparse.ArgumentParser(description=__doc__)
    questions = {function.__name__: function for function in HEADINGS}
    parser.add_argument("questions", nargs="+", choices=list(questions))
    parser.add_argument("--images", type=Path, default=Path())
    parser.add_argument("--pools", type=Path, default=Path())
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 4, 16])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encoder", default="conse:lite0")
    options = parser.parse_args()
    task = Decisions(options.images, options.pools, options.sets, options.encoder)
    for question in map(questions.__getitem__, options.questions):
        print(f"\n{question.__name__}\n| |", HEADINGS[question], "|", flush=True)
        figures: dict[tuple[object, ...], list[list[float]]] = defaultdict(list)
        for key, values in question(task, tuple(options.shots), range(1, options.seeds + 1)):
            figures[key].append(values)
            print("draw", *key, *(f"{value:.1f}" for value in values), sep="\t", flush=True)
        for key, draws in figures.items():
            cells = " | ".join(f"{value:.1f}" for value in np.mean(draws, axis=0))
            print("|", ", ".join(map(str, key)), "|", cells, "|", flush=True)


if __name__ == "__main__":
    main()
