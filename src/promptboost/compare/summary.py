"""Means and standard deviations of results, as tables, figure and CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from promptboost.errors import count
from promptboost.report.svg import Series, accuracy_panels, as_text

Lines = Sequence[Mapping[str, Any]]

_HOW = {
    "text": "its text is embedded again",
    "emulated": "emulated (EFT): both encoders embed each image",
    "refit": "fitted again on the images with this encoder",
}

#: Columns of the CSV file, one line for each result.
COLUMNS = (
    *("method", "encoder", "on", "via", "shots", "seed"),
    *("accuracy", "class_accuracy", "learn_accuracy"),
    *("log_loss", "expected_calibration_error", "prompts"),
    *("fit_s", "predict_ms", "image_passes"),
    *("unseen_accuracy", "leaked_images", "text_accuracy"),
)


@dataclass(frozen=True)
class Curve:
    """One method on one encoder: mean and deviation by number of shots."""

    method: str
    on: str  # the encoder
    via: str  # kind of transfer; empty on the encoder of the fit
    shots: tuple[int, ...]  # with results, ascending
    means: tuple[float, ...]  # of the accuracy over seeds
    deviations: tuple[float, ...]  # with n − 1; 0 for a single seed
    fit_s: tuple[float | None, ...]  # mean seconds of a fit, if known
    predict_ms: float | None  # per image, from file to prediction
    draws: tuple[int, ...] = ()  # number of results in each mean; one has no deviation
    image_passes: int = 1  # number of image towers
    belongs_to: str = ""  # method whose color this dashed line has

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
    """Return the curves of one encoder, methods in the order of the results."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["on"] == on:
            by_method.setdefault(line["method"], []).append(line)
    return [_curve(method, on, results) for method, results in by_method.items()]


def _curve(method: str, on: str, lines: Lines) -> Curve:
    shots = tuple(sorted({line["shots"] for line in lines}))
    by_shots = [[line for line in lines if line["shots"] == k] for k in shots]
    accuracies = [mean_and_spread([line["accuracy"] for line in group]) for group in by_shots]
    times = (line["predict_ms"] for line in lines if line.get("predict_ms") is not None)
    return Curve(
        method,
        on,
        lines[0]["via"],
        shots,
        tuple(mean for mean, _ in accuracies),
        tuple(spread for _, spread in accuracies),
        tuple(_mean_time(group) for group in by_shots),
        next(times, None),
        tuple(map(len, by_shots)),
        lines[0].get("image_passes", 1),
    )


def _mean_time(lines: Lines) -> float | None:
    """Return the mean seconds of a fit, if known."""
    seconds = [line["fit_s"] for line in lines if line.get("fit_s") is not None]
    return float(np.mean(seconds)) if seconds else None


def with_times(lines: Sequence[dict[str, Any]], everything: Lines) -> list[dict[str, Any]]:
    """Add each method's time to predict, which is measured once, perhaps on another draw."""
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
    """Return the methods with the highest mean, rounded as shown to tenths of a point."""
    shown = {c.method: round(at[0], 3) for c in curves_here if (at := c.at(shots)) is not None}
    return {method for method, mean in shown.items() if mean == max(shown.values())}


def rows(
    curves_here: Sequence[Curve], shots: Sequence[int], best: str, other: str = "{}"
) -> Iterator[list[str]]:
    """Yield the cells of a table: accuracies, formatted as the `best` of a column or not, and times."""
    highest = {k: best_at(curves_here, k) for k in shots}
    transferred = any(curve.via for curve in curves_here)
    for curve in curves_here:
        accuracies = [
            (best if curve.method in highest[k] else other).format(written(curve, k)) for k in shots
        ]
        via = [_how(curve)] if transferred else []
        yield [curve.method, *accuracies, _fit_time(curve), _predict_time(curve), *via]


def markdown(curves_here: Sequence[Curve], shots: Sequence[int]) -> str:
    """Return a Markdown table; the best of each column is bold."""
    transferred = any(curve.via for curve in curves_here)
    head = ["", *map(str, shots), "fit again" if transferred else "fit", "per image"]
    head += ["transfer"] if transferred else []
    lines = [f"|{'|'.join(f' {h} ' if h else ' ' for h in head)}|"]
    lines.append("|---|" + "---:|" * (len(shots) + 2) + "---|" * transferred)
    for method, *cells in rows(curves_here, shots, "**{}**"):
        lines.append(f"| {' | '.join([as_text(method), *cells])} |")
    return "\n".join(lines)


def written(curve: Curve, shots: int) -> str:
    """Return mean and deviation in percent; a single draw has no deviation."""
    at = curve.at(shots)
    if at is None:
        return "–"
    if curve.draws and curve.draws[curve.shots.index(shots)] == 1:
        return f"{100 * at[0]:.1f}"
    return f"{100 * at[0]:.1f} ± {100 * at[1]:.1f}"


def _how(curve: Curve) -> str:
    """Return the kind of transfer and its number of image passes."""
    passes = f", {curve.image_passes} passes" if curve.image_passes > 2 else ""
    return _HOW[curve.via] + passes


def _fit_time(curve: Curve) -> str:
    """Return the time of a fit at the most shots; – if it was transferred."""
    if curve.via not in ("", "refit"):
        return "–"
    if (seconds := curve.fit_s[-1]) is None:
        return "–"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _predict_time(curve: Curve) -> str:
    """Return the time per image."""
    return "–" if curve.predict_ms is None else f"{curve.predict_ms:.0f} ms"


def unseen_lines(lines: Lines) -> list[str]:
    """Return each method's accuracy without leaked images, at the most shots with such images."""
    by_method: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("unseen_accuracy") is not None:
            by_method.setdefault((line["method"], line["on"]), []).append(line)
    sentences = []
    for (method, on), leaking in by_method.items():
        shots = max(line["shots"] for line in leaking)
        at_most = [line for line in leaking if line["shots"] == shots]
        share = np.mean([line["unseen_accuracy"] for line in at_most])
        images = count(max(line.get("leaked_images", 0) for line in at_most), "test image")
        sentences.append(
            f"{method} on {on}, {shots} shots: {100 * share:.1f}% without the {images} that the "
            "training images contain"
        )
    return sentences


def to_csv(lines: Lines, columns: Sequence[str] = ()) -> str:
    """Return records as CSV, with all fields of the first or some columns."""
    text = io.StringIO()
    head = columns or [*lines[0]]
    writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


# Distinct for color-blind readers; further methods repeat them with dashes.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d00", "#6b4fa0", "#a03c3c")
_DASHES = ("", "7 4", "2 3")
_OURS = "#0b6e69"
_VIA = {"emulated": " + EFT", "refit": " (fitted again)"}
_LONGEST_LABEL = 44


def accuracy_figure(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    shots: Sequence[int],
    axis: str = "training images per class",
    heading: Sequence[str] = (),
) -> str:
    """Draw accuracies as SVG, a panel for each encoder; `axis` is the label of the x-axis."""
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
        if len(name) > _LONGEST_LABEL:
            name = f"{name[: _LONGEST_LABEL // 2]}…{name[1 - _LONGEST_LABEL // 2 :]}"
        label = f"{100 * curve.means[-1]:.1f} {name}{_VIA.get(curve.via, '')}"
        points = [*zip(curve.shots, curve.means, curve.deviations, strict=True)]
        return Series(label, points, color, dashes, width)

    drawn = [(title, [series(curve) for curve in curves]) for title, curves in panels]
    return accuracy_panels(drawn, shots, axis, heading)


def _style(number: int, name: str) -> tuple[str, str, float]:
    """Return color, dashes and width; promptboost has a thick line."""
    if name.partition("?")[0] == "promptboost":
        return _OURS, "", 3.0
    repeats, color = divmod(number, len(_COLORS))
    return _COLORS[color], _DASHES[repeats % len(_DASHES)], 1.6
