"""Label noise: which fit suffers least, and whether anything points at the wrong labels.

A share of the few-shot labels is flipped; everything that is chosen, the logit scale for example, is chosen
on the labels as they then are. Accuracy is on held-out images with their right labels. Where labels were
flipped, a fit also says which images it suspects: "found" is the share of flipped ones among the most
suspected, as many as were flipped.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings import tables
from benchmarks.findings.fits import NO_REWEIGHTING, boosted, gradient_settings, measured
from benchmarks.findings.noise_finding import (
    cleanlab_doubt,
    doubt,
    in_sample,
    precision,
    probe_set_aside,
    set_aside,
)
from benchmarks.findings.sets import SETS, VIEWS, Draw, ImageSet, Words
from promptboost.boosting import BoostSettings
from promptboost.evaluation.cells import Key, Result
from promptboost.evaluation.measures import accuracy
from promptboost.methods.logistic import fit_probe

Found = dict[str, NDArray[np.float64]]

SHARES = (0, 10, 20)
METHODS: dict[str, dict[str, Any]] = {
    "paper": {"stops": (1, 50)},
    "no weights": {"stops": (50,), "temperature": NO_REWEIGHTING},
    "default": {"gradient": {}},
    "caution 0": {"gradient": {"caution": 0.0}},
    "caution 1": {"gradient": {"caution": 1.0}},
    "logistic": {},
}
VARIANTS = {f"{method}, {share} %": (method, share) for share in SHARES for method in METHODS}

#: With fewer, hardly a label can be flipped without leaving a class none of its own.
LEAST_SHOTS = 4


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one method on one draw with flipped labels; nothing below four shots."""
    if int(key["shots"]) < LEAST_SHOTS:
        return []
    method, share = VARIANTS[str(key["variant"])]
    seed = int(key["seed"])
    clean = images.draw(int(key["shots"]), seed)
    draw = replace(clean, labels=flipped(clean.labels, share / 100, seed))
    wrong = draw.labels != clean.labels
    if method == "logistic":
        fits = [_logistic(draw, seed)]
    elif "gradient" in METHODS[method]:
        fits = [_gradient(draw, images.words(), seed, METHODS[method]["gradient"])]
    else:
        fits = _greedy(draw, images.words(), seed, METHODS[method])
    results = []
    for result, suspicions in fits:
        if share:
            result["chance"] = 100 * float(wrong.mean())
            result["found"] = {name: precision(s, wrong) for name, s in suspicions.items()}
        results.append(result)
    return results


def flipped(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Flip a share of the labels to another class.

    Exactly ``round(share * n)`` labels change, each to one of the other classes, all equally likely. Every
    class keeps at least one image of its own, so images are drawn one after the other and
    one is passed over if it is the last of its class. The same labels and seed give the same
    flips, and a smaller share flips some of those that a larger one does.

    Examples
    --------
    >>> labels = np.repeat(np.arange(5), 4)
    >>> noisy = flipped(labels, 0.2, seed=1)
    >>> int((noisy != labels).sum()), np.unique(noisy[noisy == labels]).tolist()
    (4, [0, 1, 2, 3, 4])
    """
    rng = np.random.default_rng(seed)
    number, classes = round(share * len(labels)), int(labels.max()) + 1
    order = rng.permutation(len(labels))
    others = (labels + rng.integers(1, classes, size=len(labels))) % classes
    left = np.bincount(labels)
    noisy, done = labels.copy(), 0
    for image in order:
        label = labels[image]
        if done < number and left[label] > 1:
            noisy[image] = others[image]
            left[label] -= 1
            done += 1
    if done < number:
        raise ValueError(f"{number} of {len(labels)} labels are too many to flip")
    return noisy


def _greedy(
    draw: Draw, words: Words, seed: int, method: dict[str, Any]
) -> list[tuple[Result, Found]]:
    stops, temperature = method["stops"], method.get("temperature", 1.0)
    settings = BoostSettings(rounds=stops[-1], temperature=temperature, seed=seed)
    return [
        (
            measured(draw, one),
            {} if "temperature" in method else _by_weight(one.rounds, one.weights),
        )
        for one in boosted(draw, words, settings, stops)
    ]


def _by_weight(rounds: int, weights: NDArray[np.float64]) -> Found:
    return {f"boosting weight after round {rounds}": weights}


def _gradient(draw: Draw, words: Words, seed: int, options: dict[str, Any]) -> tuple[Result, Found]:
    gradient = gradient_settings(draw, words, VIEWS, **options)
    settings = BoostSettings(rounds=1, views_per_round=VIEWS, seed=seed, gradient=gradient)
    fitted = next(boosted(draw, words, settings, (1,)))
    result = {**measured(draw, fitted), "rounds": None, "scale": gradient.scale}
    apart = set_aside(draw, words, gradient)
    name = f"caution {gradient.caution:g}"
    found = {
        f"1 − p, {name}": doubt(in_sample(draw, fitted.source, gradient.scale), draw.labels),
        # By its default method, cleanlab's opinion of a label is p: so this is cleanlab with our p too.
        f"1 − p set aside, {name}": doubt(apart, draw.labels),
        f"cleanlab margin of p set aside, {name}": cleanlab_doubt(
            apart, draw.labels, "normalized_margin"
        ),
    }
    return result, found


def _logistic(draw: Draw, seed: int) -> tuple[Result, Found]:
    weights, intercepts, _ = fit_probe(draw.rows, draw.labels, seed=seed)
    guesses = (draw.held_out @ weights.T + intercepts).argmax(axis=1)
    apart = probe_set_aside(draw, seed)
    found = {
        "cleanlab, logistic": cleanlab_doubt(apart, draw.labels),
        "cleanlab margin, logistic": cleanlab_doubt(apart, draw.labels, "normalized_margin"),
    }
    return {"source": 100 * (accuracy(guesses, draw.held_out_labels) or 0.0)}, found


def show(results: list[Result]) -> None:
    """Print the accuracies, and how many of the flipped labels were found."""
    tables.show("noise", results)
    found = [r for r in results if "found" in r]
    names = [name for name in SETS if any(r["set"] == name for r in found)]
    for name in names:
        _show_found(f"flipped labels found: {name}", [r for r in found if r["set"] == name])
    if len(names) > 1:
        # A mean over fewer sets would compare unlike things.
        counts: dict[tuple[str, int], set[str]] = {}
        for r in found:
            counts.setdefault((r["variant"], r["shots"]), set()).add(r["set"])
        in_all = [r for r in found if len(counts[r["variant"], r["shots"]]) == len(names)]
        _show_found(f"flipped labels found: mean of {', '.join(names)}", in_all)


def _show_found(title: str, results: list[Result]) -> None:
    """Print precision at the number flipped in per cent: a row a detector, a column a share and shots."""
    columns = sorted({(VARIANTS[r["variant"]][1], r["shots"]) for r in results})
    print(f"\n### {title}\n")
    print("| | " + " | ".join(f"{share} %, {shots} shots" for share, shots in columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for detector in ["chance", *dict.fromkeys(name for r in results for name in r["found"])]:
        cells = []
        for share, shots in columns:
            here = [r for r in results if (VARIANTS[r["variant"]][1], r["shots"]) == (share, shots)]
            values = [
                r["chance"] if detector == "chance" else r["found"][detector]
                for r in here
                if detector == "chance" or detector in r["found"]
            ]
            cells.append(f"{np.mean(values):.0f}" if values else "–")
        print(f"| {detector} | " + " | ".join(cells) + " |")
