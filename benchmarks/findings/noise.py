"""Label noise: which fit suffers least, and whether anything points at the wrong labels.

A share of the few-shot labels is flipped; everything that is chosen, the logit scale for example, is chosen
on the labels as they then are. Accuracy is on held-out images with their right labels. Where labels were
flipped, a fit also says which images it suspects: "found" is the share of flipped ones among the most
suspected, as many as were flipped.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings import tables
from benchmarks.findings.fits import NO_REWEIGHTING, boosted, fit, gradient_settings, measured
from benchmarks.findings.noise_finding import (
    cleanlab_doubt,
    doubt,
    in_sample,
    precision,
    probe_set_aside,
    set_aside,
)
from benchmarks.findings.sets import SETS, ImageSet
from promptboost.compare.cells import Key, Result
from promptboost.compare.comparison import FewShotTask

Suspicions = dict[str, NDArray[np.float64]]

SHARES = (0, 10, 20)
METHODS = {
    "paper": "tpb",
    "no weights": f"tpb?temperature={NO_REWEIGHTING}",
    "default": "promptboost",
    "caution 0": "promptboost?caution=0",
    "caution 1": "promptboost?caution=1",
    "logistic": "logistic",
}
VARIANTS = {f"{method}, {share} %": (method, share) for share in SHARES for method in METHODS}

#: With fewer, hardly a label can be flipped without leaving a class none of its own.
LEAST_SHOTS = 4


def work(images: ImageSet, key: Key) -> list[Result]:
    """Fit one method on one draw with flipped labels; nothing below four shots."""
    if int(key["shots"]) < LEAST_SHOTS:
        return []
    method, share = VARIANTS[str(key["variant"])]
    clean = images.draw(key)
    labels = flipped(clean.learn.labels, share / 100, int(key["seed"]))
    draw = replace(clean, learn=replace(clean.learn, labels=labels))
    wrong = labels != clean.learn.labels
    if method == "logistic":
        fits = [_logistic(images, draw, key)]
    elif METHODS[method].startswith("promptboost"):
        fits = [_gradient(images, draw, METHODS[method], key)]
    else:
        fits = _greedy(images, draw, METHODS[method], key)
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
    images: ImageSet, draw: FewShotTask, spelling: str, key: Key
) -> list[tuple[Result, Suspicions]]:
    weighted = spelling == "tpb"
    return [
        (
            {**measured(images, draw, one.classifier), "rounds": one.rounds},
            {f"boosting weight after round {one.rounds}": one.weights} if weighted else {},
        )
        for one in boosted(images, draw, spelling, key, (1, 50) if weighted else (50,))
    ]


def _gradient(
    images: ImageSet, draw: FewShotTask, spelling: str, key: Key
) -> tuple[Result, Suspicions]:
    [fitted] = boosted(images, draw, spelling, key)
    shots, words, labels = images.shots(draw), images.words, draw.learn.labels
    settings = gradient_settings(images, shots, spelling)
    apart = set_aside(shots, words, settings)
    chances = in_sample(
        draw.learn.images.rows(images.encoder), fitted.classifier.rows, settings.scale
    )
    name = f"caution {settings.caution:g}"
    suspicions = {
        f"1 − p, {name}": doubt(chances, labels),
        # By its default method, cleanlab's opinion of a label is p: so this is cleanlab with our p too.
        f"1 − p set aside, {name}": doubt(apart, labels),
        f"cleanlab margin of p set aside, {name}": cleanlab_doubt(
            apart, labels, "normalized_margin"
        ),
    }
    return {**measured(images, draw, fitted.classifier), "scale": settings.scale}, suspicions


def _logistic(images: ImageSet, draw: FewShotTask, key: Key) -> tuple[Result, Suspicions]:
    labels = draw.learn.labels
    apart = probe_set_aside(draw.learn.images.rows(images.encoder), labels, int(key["seed"]))
    suspicions = {
        "cleanlab, logistic": cleanlab_doubt(apart, labels),
        "cleanlab margin, logistic": cleanlab_doubt(apart, labels, "normalized_margin"),
    }
    return fit(images, draw, "logistic", key), suspicions


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
