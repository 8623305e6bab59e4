"""A chart of accuracies: lines by shots or rounds, a panel for each encoder, as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from promptboost.compare.summary import Curve
from promptboost.report.drawings import apart

_PLOT, _LEAST_HEIGHT, _LEFT, _TOP, _BOTTOM = 324, 420, 46, 44, 46
_LABEL_GAP, _SAMPLE = 14, 26
_TICKS, _DOTS = 12, 24
# Wide letters of the widest font that may be there; a label is never cut by the edge.
_LETTER, _TITLE_LETTER, _LONGEST = 7.4, 8.6, 44
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
    heading: Sequence[str] = (),
) -> str:
    """Draw one panel for each encoder, all on one scale; thin lines are one standard deviation.

    Something else than shots may be counted along the `axis`, such as rounds. The first line of the
    `heading` is its title.
    """
    everything = [curve for _, curves_here in panels for curve in curves_here]
    low, high = _span(everything)
    names = list(dict.fromkeys(curve.method for curve in everything if not curve.beside))
    looks = {name: _look(i, name) for i, name in enumerate(names)}
    looks |= {one.method: (looks[one.beside][0], "5 3", 1.6) for one in everything if one.beside}
    wide = _LEFT + _PLOT + _SAMPLE + 24 + _LETTER * max(len(_label(curve)) for curve in everything)
    wide = max(wide, _LEFT + 8 + _TITLE_LETTER * max(len(title) for title, _ in panels))
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
    above = 22 * len(heading)
    lines = [
        _text(_LEFT, 22 + 20 * i, text, "start", "" if i else "title")
        for i, text in enumerate(heading)
    ]
    room = max((_LEFT + 8 + _TITLE_LETTER * len(text) for text in heading), default=0)
    return str(
        Markup(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {w} {h}' width='{w}' height='{h}' "
            "role='img'><title>{title}</title><style>{style}</style>"
            "<rect width='{w}' height='{h}' fill='#ffffff'/>{lines}"
            "<g transform='translate(0 {above})'>{parts}</g></svg>\n"
        ).format(
            w=round(max(wide * len(panels), room)),
            h=height + above,
            title=heading[0] if heading else f"Accuracy by {axis}",
            style=Markup(_STYLE),
            lines=Markup("").join(lines),
            above=above,
            parts=Markup("").join(parts),
        )
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
    parts.append(_text(panel.left - 8, _TOP - 12, "%", "end"))
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
