"""Small drawings, the staged curve, and plots of one share against another, as SVG text.

Ours, because matplotlib takes 3 to 35 times as long with its import, writes 2 to 6 times the bytes, and
is 75 MB to install: see ``benchmarks/charts.py``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from promptboost.report.phrases import percent, runs, spans


def bar(share: float | None, span: tuple[float, float] | None = None, kind: str = "") -> Markup:
    """Draw a share of one as a bar, with a whisker if its interval is known."""
    parts = [_tag("rect", class_="track", width="100%", height=10, rx=2)]
    if share is not None:
        parts.append(_tag("rect", class_=f"fill {kind}", width=_at(share), height=10, rx=2))
    if span is not None:
        low, high = map(_at, span)
        parts.append(_tag("line", class_="whisker", x1=low, x2=high, y1=5, y2=5))
        parts += [_tag("line", class_="whisker", x1=x, x2=x, y1=2, y2=8) for x in (low, high)]
    return _drawing("bar", 10, parts)


def dumbbell(before: float | None, after: float | None) -> Markup:
    """Draw the step from one share to another: a ring, a line and a dot."""
    parts = [_tag("line", class_="track", x1=0, x2="100%", y1=8, y2=8)]
    if before is not None and after is not None:
        kind = "step loss" if after < before else "step"
        parts.append(_tag("line", class_=kind, x1=_at(before), x2=_at(after), y1=8, y2=8))
    if before is not None:
        parts.append(_tag("circle", class_="before", cx=_at(before), cy=8, r=4))
    if after is not None:
        parts.append(_tag("circle", class_="after", cx=_at(after), cy=8, r=5))
    return _drawing("dumbbell", 16, parts)


def strip(rounds: Sequence[int], of: int) -> Markup:
    """Mark some of the rounds 1, 2, … on a strip that stands for all of them."""
    path = "".join(f"M{low - 1},4h{high - low + 1}" for low, high in runs(rounds))
    return Markup(
        "<svg class='strip' height='8' viewBox='0 0 {} 8' preserveAspectRatio='none' role='img'>"
        "<title>rounds {}</title><path d='{}'/></svg>"
    ).format(of, spans(rounds), path)


def wilson(share: float | None, n: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a share counted on n images, as Wilson defines it."""
    if share is None or n < 1:
        return None
    z = 1.959964
    centre = share + z * z / (2 * n)
    reach = z * math.sqrt(max(0.0, share * (1 - share) / n + z * z / (4 * n * n)))
    low, high = ((centre + sign * reach) / (1 + z * z / n) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)  # none or all right: but for rounding


def _at(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.4g}%"


def _tag(name: str, **attributes: object) -> Markup:
    """Return an empty element; markupsafe escapes every value."""
    pairs = [
        Markup(" {}='{}'").format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    ]
    return Markup("<{}{}/>").format(name, Markup("").join(pairs))


def _drawing(kind: str, height: int, parts: Iterable[Markup]) -> Markup:
    # The figures stand beside it in the table, so a screen reader need not stop here.
    return Markup("<svg class='{}' height='{}' aria-hidden='true'>{}</svg>").format(
        kind, height, Markup("").join(parts)
    )


_TOP, _BOTTOM, _LEFT = 14, 40, 44
_LABEL_GAP = 17


@dataclass(frozen=True)
class Line:
    """Values after round 1, 2, …; None where unknown."""

    label: str
    kind: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Reference:
    """A value that does not depend on the rounds."""

    label: str
    kind: str
    value: float


@dataclass(frozen=True)
class _Frame:
    """Where a round and a share lie on the drawing."""

    width: int
    height: int
    right: int
    rounds: int
    low: float
    high: float

    def x(self, number: int) -> float:
        """Place a round; a single one stands in the middle."""
        room = self.width - _LEFT - self.right
        return _LEFT + (room * (number - 1) / (self.rounds - 1) if self.rounds > 1 else room / 2)

    def y(self, share: float) -> float:
        """Place a share."""
        room = self.height - _TOP - _BOTTOM
        return _TOP + room * (self.high - share) / (self.high - self.low)


def staged_curve(
    lines: Sequence[Line],
    references: Sequence[Reference],
    *,
    width: int,
    height: int,
    title: str,
    named: bool = True,
) -> Markup:
    """Draw lines over rounds, with level lines to compare with, each with its value at the end."""
    labels = [line.label for line in lines] + [level.label for level in references]
    names = {label: f"{label} " if named else "" for label in labels}
    frame = _frame(lines, references, width, height, max(map(len, names.values()), default=0))
    parts = [*_grid(frame)]
    ends: list[tuple[float, str, str]] = []
    for level in references:
        y = frame.y(level.value)
        parts.append(_level(frame, y, level.kind))
        ends.append((y, names[level.label] + percent(level.value), level.kind))
    for line in lines:
        known = [(i, v) for i, v in enumerate(line.values, start=1) if v is not None]
        if known:
            parts.append(_path(frame, known, line.kind))
            last = known[-1][1]
            ends.append((frame.y(last), names[line.label] + percent(last), line.kind))
    parts += _labels(frame, ends)
    return Markup(
        "<svg class='curve' viewBox='0 0 {w} {h}' width='{w}' height='{h}' role='img'>"
        "<title>{title}</title>{parts}</svg>"
    ).format(w=width, h=height, title=title, parts=Markup("").join(parts))


def swatch(kind: str) -> Markup:
    """Draw a piece of a line for a legend."""
    shape = "polyline" if kind in ("main", "learn") else "line"
    ends = "points='0,5 26,5'" if shape == "polyline" else "x1='0' x2='26' y1='5' y2='5'"
    return Markup(
        "<svg class='curve' width='26' height='10' aria-hidden='true'><{} class='{}' {}/></svg>"
    ).format(shape, kind, Markup(ends))


def _frame(
    lines: Sequence[Line], references: Sequence[Reference], width: int, height: int, letters: int
) -> _Frame:
    values = [v for line in lines for v in line.values if v is not None]
    values += [level.value for level in references]
    low, high = min(values, default=0.0), max(values, default=1.0)
    # Whole tenths below and above, so that grid lines are round numbers and never coincide.
    low = max(0.0, int(low * 10 - 1e-9) / 10)
    high = max(min(1.0, -int(-high * 10 - 1 + 1e-9) / 10), low + 0.1)
    rounds = max((len(line.values) for line in lines), default=1)
    margin = 16 + round(6.6 * (letters + len("100.0 %")))
    return _Frame(width, height, margin, rounds, low, high)


def _levels(frame: "_Frame | _Shares") -> list[Markup]:
    tenths = round((frame.high - frame.low) * 10)
    step = 1 if tenths <= 5 else 2
    parts = []
    for i in range(0, tenths + 1, step):
        share = frame.low + i / 10
        y = frame.y(share)
        parts.append(_level(frame, y, "grid"))
        parts.append(_text(_LEFT - 8, y + 4, f"{100 * share:.0f}", "tick end"))
    return parts


def _grid(frame: _Frame) -> list[Markup]:
    parts = _levels(frame)
    foot = frame.height - _BOTTOM + 20
    for number in _round_ticks(frame.rounds):
        parts.append(_text(frame.x(number), foot, str(number), "tick middle"))
    middle = (_LEFT + frame.width - frame.right) / 2
    parts.append(_text(middle, frame.height - 4, "rounds", "tick middle"))
    return parts


def _round_ticks(rounds: int) -> list[int]:
    """Choose the first round, the last, and about four even steps between."""
    step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 10**9) if rounds / s <= 5)
    inner = [n for n in range(step, rounds, step) if n - 1 >= step / 2 and rounds - n >= step / 2]
    return sorted({1, *inner, rounds})


def _level(frame: "_Frame | _Shares", y: float, kind: str) -> Markup:
    return Markup("<line class='{}' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/>").format(
        kind, _LEFT, frame.width - frame.right + 4, y, y
    )


def _path(frame: _Frame, known: list[tuple[int, float]], kind: str) -> Markup:
    points = " ".join(f"{frame.x(i):.1f},{frame.y(v):.1f}" for i, v in known)
    last, value = known[-1]
    return Markup(
        "<polyline class='{kind}' points='{points}'/>"
        "<circle class='{kind}' cx='{x:.1f}' cy='{y:.1f}' r='3.5'/>"
    ).format(kind=kind, points=points, x=frame.x(last), y=frame.y(value))


def _labels(frame: _Frame, ends: list[tuple[float, str, str]]) -> list[Markup]:
    """Write the names at the right, pushed apart where they would overlap."""
    ends = sorted(ends)
    # The lowest must stay above the axis; it pushes the others back up.
    places = apart([y for y, _, _ in ends], _LABEL_GAP, frame.height - _BOTTOM + 4)
    x = frame.width - frame.right + 10
    return [
        _text(x, place + 4, text, f"name {kind}")
        for place, (_, text, kind) in zip(places, ends, strict=True)
    ]


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup("<text class='{}' x='{:.1f}' y='{:.1f}'>{}</text>").format(kind, x, y, text)


@dataclass(frozen=True)
class _Shares:
    """Where two shares lie on a drawing: one from left to right, one upwards from `low`."""

    width: int = 360
    height: int = 330
    right: int = 14
    low: float = 0.0
    high: float = 1.0

    def x(self, share: float) -> float:
        """Place a share from left to right."""
        return _LEFT + (self.width - _LEFT - self.right) * share

    def y(self, share: float) -> float:
        """Place a share upwards."""
        room = self.height - _TOP - _BOTTOM
        return _TOP + room * (self.high - share) / (self.high - self.low)


@dataclass(frozen=True)
class Point:
    """Two shares, with an interval of the second or a name beside it where there is one."""

    x: float
    y: float
    span: tuple[float, float] | None = None
    name: str = ""
    few: bool = False  # counted on so few images that it says little


def reliability_plot(
    bins: Sequence[tuple[Point, float]], *, title: str, description: str
) -> Markup:
    """Draw the share that is right against the probability, with the bins' shares of images below.

    A dot on the diagonal says what is the case.
    """
    frame = _Shares()
    floor, most = frame.y(0), max((share for _, share in bins), default=1.0)
    parts = [*_levels(frame), *_ticks(frame, "probability of the answer")]
    parts.append(_stroke("ideal", frame.x(0), floor, frame.x(1), frame.y(1)))
    for point, share in bins:
        x = frame.x(point.x)
        tall = 40 * share / most
        parts.append(
            _tag(
                "rect",
                class_="count",
                x=_fixed(x - 5),
                y=_fixed(floor - tall),
                width=10,
                height=_fixed(tall),
            )
        )
        if point.span is not None:
            low, high = map(frame.y, point.span)
            parts.append(_stroke("span", x, low, x, high))
    parts += [_dot(frame, point) for point, _ in bins]
    return _plot(frame, parts, title, description)


def coverage_plot(
    lines: Sequence[tuple[str, Sequence[Point]]],
    marks: Sequence[Point],
    *,
    title: str,
    description: str,
) -> Markup:
    """Draw accuracy against the share of images that are answered; marks are named points."""
    values = [point.y for _, points in lines for point in points] + [point.y for point in marks]
    low = min(0.9, max(0.0, int(min(values, default=0.0) * 10 - 1e-9) / 10))
    frame = _Shares(low=low, right=30)  # room for the name of a point at the end
    parts = [*_levels(frame), *_ticks(frame, "share of images answered")]
    for kind, points in lines:
        places = " ".join(f"{frame.x(point.x):.1f},{frame.y(point.y):.1f}" for point in points)
        parts.append(_tag("polyline", class_=kind, points=places))
    last: float | None = None
    for point in sorted(marks, key=lambda point: point.x):
        x = frame.x(point.x)
        parts.append(_dot(frame, point))
        # A name that would run into the one before it is left out: the table has it.
        if last is None or x - last >= 30:
            parts.append(_text(x + 4, frame.y(point.y) - 6, point.name, "name main"))
            last = x
    return _plot(frame, parts, title, description)


def _plot(frame: _Shares, parts: Iterable[Markup], title: str, description: str) -> Markup:
    return Markup(
        "<svg class='curve plot' viewBox='0 0 {w} {h}' width='{w}' height='{h}' role='img'>"
        "<title>{title}</title><desc>{desc}</desc>{parts}</svg>"
    ).format(
        w=frame.width,
        h=frame.height,
        title=title,
        desc=description,
        parts=Markup("").join(parts),
    )


def _ticks(frame: _Shares, name: str) -> list[Markup]:
    foot = frame.height - _BOTTOM + 20
    ticks = [_text(frame.x(i / 5), foot, f"{20 * i}", "tick middle") for i in range(6)]
    return [*ticks, _text(frame.x(0.5), frame.height - 4, f"{name}, per cent", "tick middle")]


def _dot(frame: _Shares, point: Point) -> Markup:
    x, y = _fixed(frame.x(point.x)), _fixed(frame.y(point.y))
    return _tag("circle", class_="few" if point.few else "main", cx=x, cy=y, r=3.5)


def _stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return _tag("line", class_=kind, x1=_fixed(x1), y1=_fixed(y1), x2=_fixed(x2), y2=_fixed(y2))


def _fixed(value: float) -> str:
    return f"{value:.1f}"


def apart(heights: Sequence[float], gap: float, limit: float) -> list[float]:
    """Push ascending places apart, and what then runs over the limit back up."""
    places: list[float] = []
    for y in heights:
        places.append(max(y, places[-1] + gap) if places else y)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return places
