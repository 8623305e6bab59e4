"""Numbers, text and SVG charts of reports, comparisons and the paper.

Charts are drawn here, because matplotlib takes 3 to 35 times as long with its import, writes 2 to 6
times the bytes, and is 75 MB to install: see ``benchmarks/charts.py``.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from promptboost.errors import percent

NONE = "–"
_MARKS = re.compile(r"([\\`*_\[\]<>|~&$#])")
_SURROGATES = re.compile("[\ud800-\udfff]")


def points(before: float | None, after: float | None) -> str:
    """Write the difference of two shares in percentage points, with its sign."""
    if before is None or after is None:
        return NONE
    text = f"{100 * (after - before):+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def number(value: float | None) -> str:
    """Write a number with three significant digits."""
    if value is None:
        return NONE
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}"


def printable(text: str) -> str:
    r"""Replace what cannot be written as UTF-8: bytes of file names that are not text."""
    return _SURROGATES.sub("\ufffd", text)


def as_text(line: str) -> str:
    r"""Return a line for a page of Markdown, in which nothing is a mark.

    Examples
    --------
    >>> print(as_text("a_b |  [c]"))
    a\_b \| \[c\]
    """
    return _MARKS.sub(r"\\\1", " ".join(line.split()))


_ADDRESS = re.compile(r"(?i)(:|www)(//|\.)")


def escaped(text: str) -> str:
    r"""Escape text within a line of Markdown."""
    # Some renderers make links of bare addresses; a prompt should not become one.
    return _ADDRESS.sub(r"\1\\\2", as_text(text))


def fenced(code: str, language: str = "") -> str:
    """Set code between fences longer than any row of backticks in it."""
    longest = max((len(row) for row in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def wilson(share: float | None, n: int) -> tuple[float, float] | None:
    """Return the 95 % Wilson interval of a share counted on n images.

    ``scipy.stats.binomtest`` has it too, but takes a second to import.
    """
    if share is None or n < 1:
        return None
    z = 1.959964
    center = share + z * z / (2 * n)
    reach = z * math.sqrt(max(0.0, share * (1 - share) / n + z * z / (4 * n * n)))
    low, high = ((center + sign * reach) / (1 + z * z / n) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)  # rounding may go beyond


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an element; floats are written with one decimal, and all text is escaped."""
    pairs = (
        Markup(" {}='{}'").format(
            key.rstrip("_").replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    start = Markup("<{}{}").format(name, Markup("").join(pairs))
    if not content:
        return start + Markup("/>")
    return Markup("{}>{}</{}>").format(start, Markup("").join(content), name)


def text(x: float, y: float, content: str, kind: str = "", **attributes: object) -> Markup:
    """Return a line of text."""
    return element("text", content, class_=kind, x=float(x), y=float(y), **attributes)


def standalone(width: float, height: float, title: str, style: str, parts: Iterable[str]) -> str:
    """Return an SVG file on white ground."""
    w, h = round(width), round(height)
    return (
        element(
            "svg",
            element("title", title),
            element("style", Markup(_STYLE + style)),
            element("rect", width=w, height=h, fill="#ffffff"),
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {w} {h}",
            width=w,
            height=h,
            role="img",
        )
        + "\n"
    )


_STYLE = (
    "text{font:12px system-ui,'Segoe UI',Roboto,sans-serif;fill:#5c636b}"
    ".title{font-size:14px;font-weight:600;fill:#22262b}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.grid{stroke:#e4e1db}polyline{fill:none;stroke-linejoin:round}"
)


def apart(heights: Sequence[float], gap: float, limit: float) -> list[float]:
    """Push ascending heights apart, and those over the limit back up."""
    places: list[float] = []
    for y in heights:
        places.append(max(y, places[-1] + gap) if places else y)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return places


# --- drawings in table cells ----------------------------------------------------------------------


def bar(share: float | None, span: tuple[float, float] | None = None, kind: str = "") -> Markup:
    """Draw a share as a bar, with a whisker if its interval is known."""
    parts = [element("rect", class_="track", width="100%", height=10, rx=2)]
    if share is not None:
        parts.append(element("rect", class_=f"fill {kind}", width=_at(share), height=10, rx=2))
    if span is not None:
        low, high = map(_at, span)
        for x1, x2, y1, y2 in ((low, high, 5, 5), (low, low, 2, 8), (high, high, 2, 8)):
            parts.append(element("line", class_="whisker", x1=x1, x2=x2, y1=y1, y2=y2))
    return element("svg", *parts, class_="bar", height=10, aria_hidden="true")


def dumbbell(before: float | None, after: float | None) -> Markup:
    """Draw the step from one share to another: a ring, a line and a dot."""
    parts = [element("line", class_="track", x1=0, x2="100%", y1=8, y2=8)]
    if before is not None and after is not None:
        kind = "step loss" if after < before else "step"
        parts.append(element("line", class_=kind, x1=_at(before), x2=_at(after), y1=8, y2=8))
    if before is not None:
        parts.append(element("circle", class_="before", cx=_at(before), cy=8, r=4))
    if after is not None:
        parts.append(element("circle", class_="after", cx=_at(after), cy=8, r=5))
    # The figures are next to it in the table, so screen readers skip it.
    return element("svg", *parts, class_="dumbbell", height=16, aria_hidden="true")


def _at(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.4g}%"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of consecutive numbers."""
    spans: list[tuple[int, int]] = []
    for value in numbers:
        if spans and value == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    return spans


def spans(numbers: Iterable[int], most: int = 8) -> str:
    """Write increasing whole numbers, runs as ranges."""
    written = [f"{low}–{high}" if high > low else f"{low}" for low, high in runs(numbers)]
    return ", ".join(written if len(written) <= most else [*written[:most], "…"])


def strip(rounds: Sequence[int], of: int) -> Markup:
    """Mark rounds on a strip of all rounds."""
    path = "".join(f"M{low - 1},4h{high - low + 1}" for low, high in runs(rounds))
    return element(
        "svg",
        element("title", f"rounds {spans(rounds)}"),
        element("path", d=path),
        class_="strip",
        height=8,
        viewBox=f"0 0 {of} 8",
        preserveAspectRatio="none",
        role="img",
    )


def swatch(kind: str) -> Markup:
    """Draw a piece of a line for a legend."""
    line = (
        element("polyline", class_=kind, points="0,5 26,5")
        if kind in ("main", "learn")
        else element("line", class_=kind, x1=0, x2=26, y1=5, y2=5)
    )
    return element("svg", line, class_="curve", width=26, height=10, aria_hidden="true")


# --- charts with axes -----------------------------------------------------------------------------

_TOP, _BOTTOM, _LEFT = 14, 40, 44


@dataclass(frozen=True)
class Axes:
    """The plane of a chart in pixels: shares from `low` at the bottom to `high` at the top."""

    left: float
    right: float
    top: float
    bottom: float
    low: float = 0.0
    high: float = 1.0
    inset: float = 0.0  # room to the left and right of the first and last point

    def x(self, fraction: float) -> float:
        """Return the x coordinate at a fraction of the width."""
        return self.left + self.inset + (self.right - self.left - 2 * self.inset) * fraction

    def y(self, share: float) -> float:
        """Return the height of a share."""
        return self.top + (self.bottom - self.top) * (self.high - share) / (self.high - self.low)

    def level(self, share: float, kind: str) -> Markup:
        """Draw a line from left to right."""
        y = self.y(share)
        return element("line", class_=kind, x1=float(self.left), x2=self.right + 4, y1=y, y2=y)

    def grid(self, steps: int = 10, most: int = 5) -> list[Markup]:
        """Draw lines at multiples of 1 / `steps`, with percentages; of more than `most`, every other."""
        count, parts = round((self.high - self.low) * steps), []
        for i in range(0, count + 1, 1 if count <= most else 2):
            share = self.low + i / steps
            parts.append(self.level(share, "grid"))
            parts.append(text(self.left - 8, self.y(share) + 4, f"{100 * share:.0f}", "tick end"))
        return parts

    def ticks(self, ticks: Iterable[tuple[float, object]], name: str) -> list[Markup]:
        """Write labels at fractions of the width, and the name of the axis."""
        foot = self.bottom + 20
        labels = [
            text(self.x(position), foot, str(label), "tick middle") for position, label in ticks
        ]
        return [*labels, text(self.x(0.5), foot + 16, name, "tick middle")]

    def polyline(self, points: Iterable[tuple[float, float]], **attributes: object) -> Markup:
        """Draw a line through points: fractions of the width, and shares."""
        coordinates = " ".join(f"{self.x(x):.1f},{self.y(share):.1f}" for x, share in points)
        return element("polyline", points=coordinates, **attributes)


def _round_scale(values: Sequence[float], steps: int = 10) -> tuple[float, float]:
    """Return multiples of 1 / `steps` below and above all values."""
    low = max(0.0, int(min(values, default=0.0) * steps - 1e-9) / steps)
    high = -int(-max(values, default=1.0) * steps - 1 + 1e-9) / steps
    return low, max(min(1.0, high), low + 1 / steps)


class Line(NamedTuple):
    """Values after round 1, 2, …; None where unknown."""

    label: str
    kind: str
    values: Sequence[float | None]


class Reference(NamedTuple):
    """A value that does not depend on the rounds."""

    label: str
    kind: str
    value: float


def staged_curve(
    lines: Sequence[Line],
    references: Sequence[Reference],
    *,
    width: int,
    height: int,
    title: str,
    named: bool = True,
) -> Markup:
    """Draw lines over rounds and level lines to compare with, each with its last value."""
    labels = [line.label for line in lines] + [level.label for level in references]
    names = {label: f"{label} " if named else "" for label in labels}
    letters = max(map(len, names.values()), default=0) + len("100.0%")
    right = width - 16 - round(6.6 * letters)
    values = [value for line in lines for value in line.values if value is not None]
    low, high = _round_scale([*values, *(level.value for level in references)])
    axes = Axes(_LEFT, right, _TOP, height - _BOTTOM, low, high)
    rounds = max((len(line.values) for line in lines), default=1)

    def position(number: int) -> float:
        return (number - 1) / (rounds - 1) if rounds > 1 else 0.5

    parts = [
        *axes.grid(),
        *axes.ticks([(position(number), number) for number in _round_ticks(rounds)], "rounds"),
    ]
    ends: list[tuple[float, str, str]] = []
    for level in references:
        parts.append(axes.level(level.value, level.kind))
        end = names[level.label] + percent(level.value)
        ends.append((axes.y(level.value), end, level.kind))
    for line in lines:
        values_at = [(position(i), v) for i, v in enumerate(line.values, start=1) if v is not None]
        if values_at:
            x, y = axes.x(values_at[-1][0]), axes.y(values_at[-1][1])
            parts.append(axes.polyline(values_at, class_=line.kind))
            parts.append(element("circle", class_=line.kind, cx=x, cy=y, r=3.5))
            ends.append((y, names[line.label] + percent(values_at[-1][1]), line.kind))
    # Names are pushed apart where they would overlap; the lowest stays above the axis.
    ends.sort()
    places = apart([y for y, _, _ in ends], 17, axes.bottom + 4)
    for y, (_, end, kind) in zip(places, ends, strict=True):
        parts.append(text(right + 10, y + 4, end, f"name {kind}"))
    return _chart("curve", width, height, parts, title)


def _round_ticks(rounds: int) -> list[int]:
    """Choose the first round, the last, and about four even steps between."""
    step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 10**9) if rounds / s <= 5)
    inner = [n for n in range(step, rounds, step) if n - 1 >= step / 2 and rounds - n >= step / 2]
    return sorted({1, *inner, rounds})


def _chart(
    kind: str, width: int, height: int, parts: Iterable[Markup], title: str, description: str = ""
) -> Markup:
    about = [element("title", title), *([element("desc", description)] if description else [])]
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return element("svg", *about, *parts, class_=kind, **size, role="img")


class Point(NamedTuple):
    """Two shares, with an interval of the second or a name if there is one."""

    x: float
    y: float
    span: tuple[float, float] | None = None
    name: str = ""
    few: bool = False  # counted on too few images


_WIDTH, _HEIGHT = 360, 330
_SHARES = [(i / 5, 20 * i) for i in range(6)]


def reliability_plot(
    bins: Sequence[tuple[Point, float]], *, title: str, description: str
) -> Markup:
    """Draw accuracy against probability, with the number of images in each bin as columns.

    Dots on the diagonal are calibrated.
    """
    axes = Axes(_LEFT, _WIDTH - 14, _TOP, _HEIGHT - _BOTTOM)
    most = max((count for _, count in bins), default=1.0)
    parts = [*axes.grid(), *axes.ticks(_SHARES, "predicted probability, percent")]
    parts.append(
        element("line", class_="ideal", x1=axes.x(0), x2=axes.x(1), y1=axes.y(0), y2=axes.y(1))
    )
    for point, count in bins:
        x, tall = axes.x(point.x), 40 * count / most
        column = {"x": x - 5, "y": axes.bottom - tall, "width": 10, "height": float(tall)}
        parts.append(element("rect", class_="count", **column))
        if point.span is not None:
            low, high = map(axes.y, point.span)
            parts.append(element("line", class_="span", x1=x, x2=x, y1=low, y2=high))
    parts += [_dot(axes, point) for point, _ in bins]
    return _chart("curve plot", _WIDTH, _HEIGHT, parts, title, description)


def coverage_plot(
    lines: Sequence[tuple[str, Sequence[Point]]],
    marks: Sequence[Point],
    *,
    title: str,
    description: str,
) -> Markup:
    """Draw accuracy against the share of images that are answered; marks are named points."""
    values = [point.y for _, points in lines for point in points] + [point.y for point in marks]
    low = min(0.9, _round_scale(values)[0])
    # Room for the name of a point at the end.
    axes = Axes(_LEFT, _WIDTH - 30, _TOP, _HEIGHT - _BOTTOM, low)
    parts = [*axes.grid(), *axes.ticks(_SHARES, "coverage, percent")]
    for kind, points in lines:
        parts.append(axes.polyline([(point.x, point.y) for point in points], class_=kind))
    last = float("-inf")
    for point in sorted(marks, key=lambda point: point.x):
        x = axes.x(point.x)
        parts.append(_dot(axes, point))
        # A name that would run into the one before it is left out: the table has it.
        if x - last >= 30:
            parts.append(text(x + 4, axes.y(point.y) - 6, point.name, "name main"))
            last = x
    return _chart("curve plot", _WIDTH, _HEIGHT, parts, title, description)


def _dot(axes: Axes, point: Point) -> Markup:
    kind = "few" if point.few else "main"
    return element("circle", class_=kind, cx=axes.x(point.x), cy=axes.y(point.y), r=3.5)


# --- accuracy by shots or rounds, one panel for each encoder --------------------------------------

_PANEL, _LEAST_HEIGHT, _GAP, _SAMPLE, _TICKS, _DOTS = 324, 420, 14, 26, 12, 24
# Wide letters of the widest font that may be there; a label is never cut by the edge.
_LETTER, _TITLE_LETTER = 7.4, 8.6


class Series(NamedTuple):
    """A line of an accuracy figure; points are shots, mean and standard deviation."""

    label: str
    points: Sequence[tuple[int, float, float]]
    color: str
    dashes: str = ""
    width: float = 1.6


def accuracy_panels(
    panels: Sequence[tuple[str, Sequence[Series]]],
    shots: Sequence[int],
    axis: str,
    heading: Sequence[str] = (),
) -> str:
    """Draw titled panels on one scale; thin lines are one standard deviation.

    Shots mostly double, so they are spaced evenly. The first line of the `heading` is its title.
    """
    everything = [series for _, each in panels for series in each]
    points = [point for series in everything for point in series.points]
    values = [mean + sign * deviation for _, mean, deviation in points for sign in (-1, 1)]
    low, high = _round_scale(values, 20)
    wide = 46 + _PANEL + _SAMPLE + 24 + _LETTER * max(len(series.label) for series in everything)
    wide = max(wide, 54 + _TITLE_LETTER * max(len(title) for title, _ in panels))
    height = max(_LEAST_HEIGHT, 90 + _GAP * max(len(each) for _, each in panels))
    parts: list[Markup] = []
    for number, (title, each) in enumerate(panels):
        left = number * wide + 46
        axes = Axes(left, left + _PANEL, 44, height - 46, low, high, inset=12)
        parts.append(text(left, 22, title, "title"))
        parts += axes.grid(20, most=10)
        parts.append(text(left - 8, 32, "%", "end"))
        places = {k: i / max(len(shots) - 1, 1) for i, k in enumerate(shots)}
        # As many labels as there is room for.
        step = -(-len(shots) // _TICKS)
        ticks = list(shots)[::-step][::-1]
        parts += axes.ticks([(places[k], k) for k in ticks], axis)
        for series in each:
            parts += _series(axes, series, places)
        parts += _series_labels(axes, each)
    above = 22 * len(heading)
    lines = [text(46, 22 + 20 * i, line, "" if i else "title") for i, line in enumerate(heading)]
    room = max((54 + _TITLE_LETTER * len(line) for line in heading), default=0)
    shifted = element("g", *parts, transform=f"translate(0 {above})")
    title = heading[0] if heading else f"Accuracy by {axis}"
    width = max(wide * len(panels), room)
    return standalone(width, height + above, title, "", [*lines, shifted])


def _series(axes: Axes, series: Series, places: dict[int, float]) -> list[Markup]:
    points = [(places[k], mean, spread) for k, mean, spread in series.points if k in places]
    means = [(position, mean) for position, mean, _ in points]
    parts = [axes.polyline(means, **_stroke(series))]
    for position, mean, deviation in points if len(points) <= _DOTS else ():
        x, top = axes.x(position), axes.y(min(mean + deviation, axes.high))
        ends = {"x1": x, "x2": x, "y1": top, "y2": axes.y(max(mean - deviation, axes.low))}
        parts.append(element("line", **ends, stroke=series.color, stroke_width=0.8))
        dot = {"cx": x, "cy": axes.y(mean), "r": 1 + series.width}
        parts.append(element("circle", **dot, fill=series.color))
    return parts


def _series_labels(axes: Axes, each: Sequence[Series]) -> list[Markup]:
    """Label each line at its end, after a piece of it: colors repeat, and then the dashes differ."""
    ends = sorted(
        ((axes.y(series.points[-1][1]), series) for series in each), key=lambda end: end[0]
    )
    x, parts = axes.right + 8, []
    places = apart([y for y, _ in ends], _GAP, axes.bottom)
    for y, (_, series) in zip(places, ends, strict=True):
        sample = {"x1": x, "x2": x + _SAMPLE - 6, "y1": y, "y2": y}
        parts.append(element("line", **sample, **_stroke(series)))
        label = text(x + _SAMPLE + 2, y + 4, series.label, style=f"fill:{series.color}")
        parts.append(label)
    return parts


def _stroke(series: Series) -> dict[str, object]:
    return {"stroke": series.color, "stroke_width": series.width, "stroke_dasharray": series.dashes}
