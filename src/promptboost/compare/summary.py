"""Means and deviations of single results: as tables, as a figure, and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from promptboost.report.figures import as_text
from promptboost.report.svg import Series, accuracy_panels

Lines = Sequence[Mapping[str, Any]]

_HOW = {
    "text": "its text is embedded again",
    "emulated": "emulated (EFT): both encoders look at each image",
    "refit": "learned again from the images with this encoder",
}

#: Columns of the CSV file, one line for each result.
COLUMNS = (
    *("method", "encoder", "on", "via", "shots", "seed"),
    *("accuracy", "class_accuracy", "learn_accuracy", "prompts"),
    *("fit_s", "predict_ms", "image_passes"),
    *("unseen_accuracy", "leaked_images", "text_accuracy"),
)


@dataclass(frozen=True)
class Curve:
    """One method on one encoder: mean and deviation by number of shots."""

    method: str
    on: str  # the encoder
    via: str  # how it got there; empty where it was learned
    shots: tuple[int, ...]  # where something was measured, ascending
    means: tuple[float, ...]  # of the accuracy over seeds
    deviations: tuple[float, ...]  # with n − 1; 0 for a single seed
    fit_s: tuple[float | None, ...]  # mean seconds of a fit, where it is known
    predict_ms: float | None  # an image, from file to answer
    draws: tuple[int, ...] = ()  # how many results each mean is of; one has no deviation
    image_passes: int = 1  # how often an image goes through an image tower
    belongs_to: str = ""  # the method whose color this line has, in dashes

    def at(self, shots: int) -> tuple[float, float] | None:
        """Return mean and deviation at a number of shots."""
        if shots not in self.shots:
            return None
        i = self.shots.index(shots)
        return self.means[i], self.deviations[i]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation with n − 1."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), spread


def curves(lines: Lines, on: str) -> list[Curve]:
    """Put the results on one encoder together, methods in the order in which they are met."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["on"] == on:
            by_method.setdefault(line["method"], []).append(line)
    return [_curve(method, on, results) for method, results in by_method.items()]


def _curve(method: str, on: str, lines: Lines) -> Curve:
    shots = tuple(sorted({line["shots"] for line in lines}))
    by_shots = [[line for line in lines if line["shots"] == k] for k in shots]
    accuracies = [mean_and_spread([line["accuracy"] for line in part]) for part in by_shots]
    times = (line["predict_ms"] for line in lines if line.get("predict_ms") is not None)
    return Curve(
        method,
        on,
        lines[0]["via"],
        shots,
        tuple(mean for mean, _ in accuracies),
        tuple(spread for _, spread in accuracies),
        tuple(_mean_time(part) for part in by_shots),
        next(times, None),
        tuple(map(len, by_shots)),
        lines[0].get("image_passes", 1),
    )


def _mean_time(lines: Lines) -> float | None:
    """Return the mean seconds of a fit; None where only the file without times is left."""
    known = [line["fit_s"] for line in lines if line.get("fit_s") is not None]
    return float(np.mean(known)) if known else None


def with_times(lines: Sequence[dict[str, Any]], everything: Lines) -> list[dict[str, Any]]:
    """Add each method's time to predict, which was measured once and perhaps for another draw."""
    times: dict[tuple[str, ...], float] = {}
    for line in everything:
        if (time := line.get("predict_ms")) is not None:
            times.setdefault(_which(line), time)
    timed = {_which(line) for line in lines if line.get("predict_ms") is not None}
    complete = []
    for line in lines:
        if (which := _which(line)) not in timed:
            line = {**line, "predict_ms": times.get(which)}
            timed.add(which)
        complete.append(line)
    return complete


def _which(line: Mapping[str, Any]) -> tuple[str, ...]:
    return line["method"], line["encoder"], line["on"], line.get("code", "")


def best_at(curves_here: Sequence[Curve], shots: int) -> set[str]:
    """Name the methods with the highest mean as it is shown: in tenths of a point."""
    shown = {c.method: round(at[0], 3) for c in curves_here if (at := c.at(shots)) is not None}
    return {method for method, mean in shown.items() if mean == max(shown.values())}


def markdown(curves_here: Sequence[Curve], shots: Sequence[int]) -> str:
    """Write a table for a page; the best of each column is bold."""
    carried = any(curve.via for curve in curves_here)
    head = ["", *map(str, shots), "fit again" if carried else "fit", "an image"]
    head += ["how it got there"] if carried else []
    rows = [f"|{'|'.join(f' {h} ' if h else ' ' for h in head)}|"]
    rows.append("|---|" + "---:|" * (len(shots) + 2) + "---|" * carried)
    best = {k: best_at(curves_here, k) for k in shots}
    for curve in curves_here:
        cells = [
            f"**{written(curve, k)}**" if curve.method in best[k] else written(curve, k)
            for k in shots
        ]
        cells += [fit_time(curve), predict_time(curve), *([how(curve)] if carried else [])]
        rows.append(f"| {' | '.join([as_text(curve.method), *cells])} |")
    return "\n".join(rows)


def written(curve: Curve, shots: int) -> str:
    """Write mean and deviation in percent; of one draw there is no deviation."""
    at = curve.at(shots)
    if at is None:
        return "–"
    if curve.draws and curve.draws[curve.shots.index(shots)] == 1:
        return f"{100 * at[0]:.1f}"
    return f"{100 * at[0]:.1f} ± {100 * at[1]:.1f}"


def how(curve: Curve) -> str:
    """Write how a method got to another encoder, and what that costs."""
    passes = f", {curve.image_passes} passes" if curve.image_passes > 2 else ""
    return _HOW[curve.via] + passes


def fit_time(curve: Curve) -> str:
    """Write how long a fit takes, at the largest number of shots; what is carried is not fitted."""
    if curve.via not in ("", "refit"):
        return "–"
    if (seconds := curve.fit_s[-1]) is None:
        return "–"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def predict_time(curve: Curve) -> str:
    """Write how long an image takes."""
    return "–" if curve.predict_ms is None else f"{curve.predict_ms:.0f} ms"


def unseen_lines(lines: Lines) -> list[str]:
    """Return each method's accuracy without leaked images, at the most shots where there are some."""
    there = [line for line in lines if line.get("unseen_accuracy") is not None]
    found = []
    for method, on in dict.fromkeys((line["method"], line["on"]) for line in there):
        part = [line for line in there if (line["method"], line["on"]) == (method, on)]
        shots = max(line["shots"] for line in part)
        part = [line for line in part if line["shots"] == shots]
        share = np.mean([line["unseen_accuracy"] for line in part])
        most = max(line.get("leaked_images", 0) for line in part)
        images = "image that was" if most == 1 else "images that were"
        found.append(
            f"{method} on {on}, {shots} shots: {100 * share:.1f} % without the {most:,} held-out "
            f"{images} learned from"
        )
    return found


def to_csv(lines: Lines) -> str:
    """Write results as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


# Distinct for color-blind readers, too; more methods than these repeat with dashes.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d00", "#6b4fa0", "#a03c3c")
_DASHES = ("", "7 4", "2 3")
_OURS = "#0b6e69"
_VIA = {"emulated": " + EFT", "refit": " (learned again)"}
_LONGEST_LABEL = 44


def accuracy_figure(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    shots: Sequence[int],
    axis: str = "images of each class to learn from",
    heading: Sequence[str] = (),
) -> str:
    """Draw accuracies as SVG: lines by shots or what else the `axis` names, a panel for each encoder."""
    every = [curve for _, curves in panels for curve in curves]
    names = list(dict.fromkeys(curve.method for curve in every if not curve.belongs_to))
    styles = {name: _style(number, name) for number, name in enumerate(names)}
    styles |= {
        curve.method: (styles[curve.belongs_to][0], "5 3", 1.6)
        for curve in every
        if curve.belongs_to
    }

    def series(curve: Curve) -> Series:
        color, dashes, width = styles[curve.method]
        name = curve.method
        if len(name) > _LONGEST_LABEL:  # settings differ at the end as often as at the beginning
            name = f"{name[: _LONGEST_LABEL // 2]}…{name[1 - _LONGEST_LABEL // 2 :]}"
        label = f"{100 * curve.means[-1]:.1f} {name}{_VIA.get(curve.via, '')}"
        values = curve.shots, curve.means, curve.deviations
        return Series(label, *values, color, dashes, width)

    drawn = [(title, [series(curve) for curve in curves]) for title, curves in panels]
    return accuracy_panels(drawn, shots, axis, heading)


def _style(number: int, name: str) -> tuple[str, str, float]:
    """Return color, dashes and width; promptboost has the thick line."""
    if name.partition("?")[0] == "promptboost":
        return _OURS, "", 3.0
    repeats, color = divmod(number, len(_COLORS))
    return _COLORS[color], _DASHES[repeats % len(_DASHES)], 1.6
