"""Figures and text as pages write them: percentages, numbers, lists, and Markdown that stays text."""

import re
from collections.abc import Iterable, Sequence

from promptboost import errors

NONE = "–"
_THIN = "\u202f"
_MARKS = re.compile(r"([\\`*_\[\]<>|~&$#])")
_SURROGATES = re.compile("[\ud800-\udfff]")


def percent(share: float | None) -> str:
    """Write a share as a percentage with one decimal and a thin space."""
    return errors.percent(share).replace(" ", _THIN)


def points(before: float | None, after: float | None) -> str:
    """Write the step from one share to another in percentage points, with its sign."""
    if before is None or after is None:
        return NONE
    text = f"{100 * (after - before):+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def number(value: float | None) -> str:
    """Write a number with as many digits as are of use."""
    if value is None:
        return NONE
    if value == int(value):
        return f"{int(value):,}".replace(",", _THIN)
    return f"{value:.3g}"


def count(how_many: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things."""
    return f"{number(how_many)} {noun if how_many == 1 else plural or noun + 's'}"


def among(names: Sequence[str], most: int = 5) -> str:
    """List the first few of many names and say how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {number(rest)} more" if rest > 0 else "")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Find the first and the last of each row of neighbors among increasing whole numbers."""
    found: list[tuple[int, int]] = []
    for item in numbers:
        if found and item == found[-1][1] + 1:
            found[-1] = (found[-1][0], item)
        else:
            found.append((item, item))
    return found


def spans(numbers: Iterable[int], most: int = 8) -> str:
    """Write increasing whole numbers with runs drawn together."""
    written = [f"{low}–{high}" if high > low else f"{low}" for low, high in runs(numbers)]
    return ", ".join(written if len(written) <= most else [*written[:most], "…"])


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
    r"""Escape text that stands within a line."""
    # Some renderers make links of bare addresses; a prompt should not become one.
    return _ADDRESS.sub(r"\1\\\2", as_text(text))


def fenced(code: str, language: str = "") -> str:
    """Set code between fences longer than any row of backticks in it."""
    longest = max((len(row) for row in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"
