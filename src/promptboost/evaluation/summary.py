"""From single results to means and deviations: as tables, as CSV, and as a figure."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

Lines = Sequence[Mapping[str, Any]]

_HOW = {
    "text": "its text is embedded again",
    "emulated": "emulated (EFT): both encoders look at each image",
    "refit": "learnt again from the images with this encoder",
}

#: Columns of the CSV file, one line for each result.
COLUMNS = (
    *("method", "encoder", "on", "via", "shots", "seed"),
    *("accuracy", "class_accuracy", "learn_accuracy", "prompts"),
    *("fit_s", "predict_ms", "image_passes"),
    *("unseen_accuracy", "leaked_images"),
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
    fit_s: tuple[float | None, ...]  # mean seconds of a fit, where it is known
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
    return line["method"], line["encoder"], line["on"]


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
            f"{images} learnt from"
        )
    return found


def to_csv(lines: Lines) -> str:
    """Write results as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


_PLOT, _LEAST_HEIGHT, _LEFT, _TOP, _BOTTOM = 324, 420, 46, 44, 46
_LABEL_GAP, _SAMPLE = 14, 26
_TICKS, _DOTS = 12, 24
# Wide letters of the widest font that may be there; a label is never cut by the edge.
_LETTER, _LONGEST = 7.4, 44
# Told apart by those who see colours differently, too; more methods than these repeat with dashes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d00", "#6b4fa0", "#a03c3c")
_DASHES = ("", "7 4", "2 3")
_OURS = "#0b6e69"
_VIA = {"emulated": " + EFT", "refit": " (learnt again)"}
_STYLE = (
    "text{font:12px system-ui,'Segoe UI',Roboto,sans-serif;fill:#5c636b}"
    ".title{font-size:14px;font-weight:600;fill:#22262b}.axis{stroke:#e4e1db}"
    "polyline{fill:none;stroke-linejoin:round}"
)


@dataclass(frozen=True)
class _Panel:
    """Where shots and shares lie in one panel."""

    left: float
    height: float
    shots: Sequence[int]
    low: float
    high: float

    @property
    def right(self) -> float:
        return self.left + _PLOT

    def x(self, shots: int) -> float:
        """Place a number of shots; they mostly double, so they stand evenly."""
        steps = max(len(self.shots) - 1, 1)
        inset = 12
        room = self.right - self.left - 2 * inset
        return self.left + inset + room * self.shots.index(shots) / steps

    def y(self, share: float) -> float:
        """Place a share."""
        room = self.height - _TOP - _BOTTOM
        return _TOP + room * (self.high - share) / (self.high - self.low)


def accuracy_figure(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    shots: Sequence[int],
    axis: str = "images of each class to learn from",
) -> str:
    """Draw one panel for each encoder, all on one scale; thin lines are one standard deviation.

    Something else than shots may be counted along the `axis`, such as rounds.
    """
    low, high = _span([curve for _, curves_here in panels for curve in curves_here])
    names = list(dict.fromkeys(curve.method for _, curves_here in panels for curve in curves_here))
    looks = {name: _look(i, name) for i, name in enumerate(names)}
    labels = [_label(curve) for _, curves_here in panels for curve in curves_here]
    wide = _LEFT + _PLOT + _SAMPLE + 24 + _LETTER * max(map(len, labels))
    high_enough = _TOP + _BOTTOM + _LABEL_GAP * max(len(curves_here) for _, curves_here in panels)
    height = max(_LEAST_HEIGHT, high_enough)
    parts: list[Markup] = []
    for number, (title, curves_here) in enumerate(panels):
        panel = _Panel(number * wide + _LEFT, height, tuple(shots), low, high)
        parts += _frame(panel, title, axis)
        parts += [
            part for curve in curves_here for part in _line(panel, curve, *looks[curve.method])
        ]
        parts += _labels(panel, curves_here, looks)
    width = round(wide * len(panels))
    return str(
        Markup(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {w} {h}' width='{w}' height='{h}' "
            "role='img'><title>Accuracy against shots</title><style>{style}</style>"
            "<rect width='{w}' height='{h}' fill='#ffffff'/>{parts}</svg>\n"
        ).format(w=width, h=height, style=Markup(_STYLE), parts=Markup("").join(parts))
    )


def _span(curves_here: Sequence[Curve]) -> tuple[float, float]:
    """Return twentieths below and above everything that is drawn."""
    drawn = [
        (mean - spread, mean + spread)
        for curve in curves_here
        for mean, spread in zip(curve.means, curve.deviations, strict=True)
    ]
    low = max(0.0, int(min(bottom for bottom, _ in drawn) * 20) / 20)
    high = min(1.0, (int(max(top for _, top in drawn) * 20) + 1) / 20)
    return low, max(high, low + 0.05)


def _look(number: int, name: str) -> tuple[str, str, float]:
    """Return colour, dashes and width; promptboost is the thick one."""
    if name.partition("?")[0] == "promptboost":
        return _OURS, "", 3.0
    repeats, colour = divmod(number, len(_COLOURS))
    return _COLOURS[colour], _DASHES[repeats % len(_DASHES)], 1.6


def _frame(panel: _Panel, title: str, axis: str) -> list[Markup]:
    parts = [_text(panel.left, 22, title, "start", "title")]
    steps = round((panel.high - panel.low) * 20)
    for step in range(0, steps + 1, 2 if steps > 10 else 1):
        share = panel.low + step / 20
        y = panel.y(share)
        parts.append(
            Markup("<line class='axis' x1='{:.1f}' x2='{:.1f}' y1='{y:.1f}' y2='{y:.1f}'/>").format(
                panel.left, panel.right, y=y
            )
        )
        parts.append(_text(panel.left - 8, y + 4, f"{100 * share:.0f}", "end"))
    bottom = panel.height
    # As many as there is room for.
    step = -(-len(panel.shots) // _TICKS)
    labelled = panel.shots[::-step][::-1]
    parts += [_text(panel.x(k), bottom - 26, str(k), "middle") for k in labelled]
    middle = (panel.left + panel.right) / 2
    parts.append(_text(middle, bottom - 8, axis, "middle"))
    return parts


def _line(panel: _Panel, curve: Curve, colour: str, dashes: str, width: float) -> list[Markup]:
    points = [
        (panel.x(k), mean, spread)
        for k, mean, spread in zip(curve.shots, curve.means, curve.deviations, strict=True)
        if k in panel.shots
    ]
    drawn = " ".join(f"{x:.1f},{panel.y(mean):.1f}" for x, mean, _ in points)
    parts = [
        Markup(
            "<polyline points='{}' stroke='{}' stroke-width='{}' stroke-dasharray='{}'/>"
        ).format(drawn, colour, width, dashes)
    ]
    for x, mean, spread in points if len(points) <= _DOTS else ():
        top = panel.y(min(mean + spread, panel.high))
        bottom = panel.y(max(mean - spread, panel.low))
        parts.append(
            Markup(
                "<line x1='{x:.1f}' x2='{x:.1f}' y1='{:.1f}' y2='{:.1f}' stroke='{c}' "
                "stroke-width='0.8'/><circle cx='{x:.1f}' cy='{:.1f}' r='{r:.1f}' fill='{c}'/>"
            ).format(top, bottom, panel.y(mean), x=x, c=colour, r=1 + width)
        )
    return parts


def _labels(
    panel: _Panel, curves_here: Sequence[Curve], looks: dict[str, tuple[str, str, float]]
) -> list[Markup]:
    """Name each line where it ends, pushed apart where they would lie on each other.

    Before a name stands a piece of its line: colours repeat, and then the dashes tell them apart.
    """
    ends = sorted(((panel.y(c.means[-1]), c) for c in curves_here), key=lambda pair: pair[0])
    parts: list[Markup] = []
    places = apart([y for y, _ in ends], _LABEL_GAP, panel.height - _BOTTOM)
    for y, (_, curve) in zip(places, ends, strict=True):
        colour, dashes, width = looks[curve.method]
        parts.append(
            Markup(
                "<line x1='{:.1f}' x2='{:.1f}' y1='{y:.1f}' y2='{y:.1f}' stroke='{}' "
                "stroke-width='{}' stroke-dasharray='{}'/>"
            ).format(panel.right + 8, panel.right + _SAMPLE + 2, colour, width, dashes, y=y)
        )
        parts.append(
            Markup("<text x='{:.1f}' y='{:.1f}' style='fill:{}'{}>{}</text>").format(
                panel.right + _SAMPLE + 10,
                y + 4,
                colour,
                Markup(" font-weight='650'") if colour == _OURS else Markup(""),
                _label(curve),
            )
        )
    return parts


def apart(heights: Sequence[float], gap: float, limit: float) -> list[float]:
    """Push ascending places apart, and what then runs over the limit back up."""
    places: list[float] = []
    for y in heights:
        places.append(max(y, places[-1] + gap) if places else y)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return places


def _label(curve: Curve) -> str:
    """Write the last figure and the name; not all that is in the image of a transfer is one."""
    name = curve.method
    if len(name) > _LONGEST:  # settings differ at the end as often as at the beginning
        name = f"{name[: _LONGEST // 2]}…{name[1 - _LONGEST // 2 :]}"
    return f"{100 * curve.means[-1]:.1f} {name}{_VIA.get(curve.via, '')}"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> Markup:
    return Markup("<text x='{:.1f}' y='{:.1f}' text-anchor='{}' class='{}'>{}</text>").format(
        x, y, anchor, kind, text
    )
