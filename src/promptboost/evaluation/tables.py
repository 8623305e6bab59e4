"""From single results to means and deviations, as tables and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Lines = Sequence[Mapping[str, Any]]

_HOW = {
    "text": "its text is embedded again",
    "emulated": "emulated (EFT): both encoders look at each image",
    "refit": "learnt again from the images with this encoder",
}

#: Columns of the CSV file, one line for each result.
COLUMNS = (
    "method",
    "encoder",
    "on",
    "via",
    "shots",
    "seed",
    "accuracy",
    "class_accuracy",
    "learn_accuracy",
    "prompts",
    "fit_s",
    "predict_ms",
    "image_passes",
)


@dataclass(frozen=True)
class Curve:
    """One method on one encoder: mean and deviation by number of shots."""

    method: str
    on: str  # the encoder
    via: str  # how it got there; empty where it was learnt
    shots: tuple[int, ...]  # where something was measured, ascending
    means: tuple[float, ...]  # of the accuracy over seeds
    deviations: tuple[float, ...]  # with n − 1; 0 for a single seed
    fit_s: tuple[float, ...]  # mean seconds of a fit
    predict_ms: float | None  # an image, from file to answer
    draws: tuple[int, ...] = ()  # how many results each mean is of; one has no deviation
    image_passes: int = 1  # how often an image goes through an image tower

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
    found = []
    here = [line for line in lines if line["on"] == on]
    for method in dict.fromkeys(line["method"] for line in here):
        own = [line for line in here if line["method"] == method]
        shots = sorted({line["shots"] for line in own})
        by_shots = [[line for line in own if line["shots"] == k] for k in shots]
        figures = [mean_and_spread([line["accuracy"] for line in part]) for part in by_shots]
        times = [line["predict_ms"] for line in own if line["predict_ms"] is not None]
        found.append(
            Curve(
                method,
                on,
                own[0]["via"],
                tuple(shots),
                tuple(mean for mean, _ in figures),
                tuple(spread for _, spread in figures),
                tuple(float(np.mean([line["fit_s"] for line in part])) for part in by_shots),
                times[0] if times else None,
                tuple(map(len, by_shots)),
                own[0].get("image_passes", 1),
            )
        )
    return found


def with_times(lines: Sequence[dict[str, Any]], everything: Lines) -> list[dict[str, Any]]:
    """Return each method its time to predict, which was measured once and perhaps for another draw."""
    times: dict[tuple[str, ...], float] = {}
    for line in everything:
        if (time := line.get("predict_ms")) is not None:
            times.setdefault(_which(line), time)
    timed = {_which(line) for line in lines if line.get("predict_ms") is not None}
    found = []
    for line in lines:
        if (which := _which(line)) not in timed:
            line = {**line, "predict_ms": times.get(which)}
            timed.add(which)
        found.append(line)
    return found


def _which(line: Mapping[str, Any]) -> tuple[str, ...]:
    return line["method"], line["encoder"], line["on"]


def best_at(found: Sequence[Curve], shots: int) -> set[str]:
    """Name the methods with the highest mean as it is shown: in tenths of a point."""
    shown = {c.method: round(at[0], 3) for c in found if (at := c.at(shots)) is not None}
    return {method for method, mean in shown.items() if mean == max(shown.values())}


def markdown(found: Sequence[Curve], shots: Sequence[int]) -> str:
    """Write a table for a page; the best of each column is bold."""
    carried = any(curve.via for curve in found)
    head = ["", *map(str, shots), "fit again" if carried else "fit", "an image"]
    head += ["how it got there"] if carried else []
    rows = [f"|{'|'.join(f' {h} ' if h else ' ' for h in head)}|"]
    rows.append("|---|" + "---:|" * (len(shots) + 2) + "---|" * carried)
    best = {k: best_at(found, k) for k in shots}
    for curve in found:
        cells = [
            f"**{written(curve, k)}**" if curve.method in best[k] else written(curve, k)
            for k in shots
        ]
        cells += [fit_time(curve), predict_time(curve), *([how(curve)] if carried else [])]
        rows.append(f"| {' | '.join([curve.method.replace('|', '/'), *cells])} |")
    return "\n".join(rows)


def written(curve: Curve, shots: int) -> str:
    """Write mean and deviation in per cent; of one draw there is no deviation."""
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
    seconds = curve.fit_s[-1]
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def predict_time(curve: Curve) -> str:
    """Write how long an image takes."""
    return "–" if curve.predict_ms is None else f"{curve.predict_ms:.0f} ms"


def to_csv(lines: Lines) -> str:
    """Write results as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
