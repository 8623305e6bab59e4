"""Small drawings. Colours and line styles are the page's: see its style sheet.

Drawings in table cells use percentages for coordinates, so they stretch with the cell.
"""

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from promptboost.report.words import runs, spans

__all__ = ["bar", "dumbbell", "strip", "wilson"]


def bar(share: float | None, span: tuple[float, float] | None = None, kind: str = "") -> Markup:
    """Draw a share of one as a bar, with a whisker if its interval is known.

    Examples
    --------
    >>> "width='25%'" in bar(0.25)
    True
    """
    parts = [_tag("rect", class_="track", width="100%", height=10, rx=2)]
    if share is not None:
        parts.append(_tag("rect", class_=f"fill {kind}", width=_at(share), height=10, rx=2))
    if span is not None:
        low, high = map(_at, span)
        parts.append(_tag("line", class_="whisker", x1=low, x2=high, y1=5, y2=5))
        parts += [_tag("line", class_="whisker", x1=x, x2=x, y1=2, y2=8) for x in (low, high)]
    return _drawing("bar", 10, parts)


def dumbbell(before: float | None, after: float | None) -> Markup:
    """Draw the step from one share to another: a ring, a line and a dot.

    Examples
    --------
    >>> "loss" in dumbbell(0.5, 0.25), "loss" in dumbbell(0.25, 0.5)
    (True, False)
    """
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
    """Mark some of the rounds 1, 2, … on a strip that stands for all of them.

    Examples
    --------
    >>> drawing = strip([1, 2, 3, 7], of=10)
    >>> "M0,4h3M6,4h1" in drawing, "rounds 1–3, 7" in drawing
    (True, True)
    """
    path = "".join(f"M{low - 1},4h{high - low + 1}" for low, high in runs(rounds))
    return Markup(
        "<svg class='strip' height='8' viewBox='0 0 {} 8' preserveAspectRatio='none' role='img'>"
        "<title>rounds {}</title><path d='{}'/></svg>"
    ).format(of, spans(rounds), path)


def wilson(share: float | None, n: int) -> tuple[float, float] | None:
    """Give the 95 % interval of a share counted on n pictures, as Wilson defines it.

    Examples
    --------
    >>> low, high = wilson(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    if share is None or n < 1:
        return None
    z = 1.959964
    centre = share + z * z / (2 * n)
    reach = z * math.sqrt(max(0.0, share * (1 - share) / n + z * z / (4 * n * n)))
    return (centre - reach) / (1 + z * z / n), (centre + reach) / (1 + z * z / n)


def _at(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.4g}%"


def _tag(name: str, **attributes: object) -> Markup:
    """Give an empty element; markupsafe escapes every value."""
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
