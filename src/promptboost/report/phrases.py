"""Text inside Markdown, so that it stays text."""

import re
from collections.abc import Iterable, Sequence

__all__ = [
    "among",
    "count",
    "number",
    "percent",
    "points",
    "printable",
    "runs",
    "spans",
    "fenced",
    "plain",
]

NONE = "–"
_THIN = "\u202f"
_SURROGATES = re.compile("[\ud800-\udfff]")


def percent(share: float | None) -> str:
    """Write a share as a percentage with one decimal.

    Examples
    --------
    >>> percent(0.8342).replace("\u202f", " "), percent(None)
    ('83.4 %', '–')
    """
    return NONE if share is None else f"{100 * share:.1f}{_THIN}%"


def points(before: float | None, after: float | None) -> str:
    """Write the step from one share to another in percentage points, with its sign.

    Examples
    --------
    >>> points(0.5, 0.625), points(0.5, 0.4), points(0.5, 0.5), points(None, 0.5)
    ('+12.5', '−10.0', '0.0', '–')
    """
    if before is None or after is None:
        return NONE
    text = f"{100 * (after - before):+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def number(value: float | None) -> str:
    """Write a number with as many digits as are of use.

    Examples
    --------
    >>> number(12345), number(0.123456), number(3.0), number(None)
    ('12\u202f345', '0.123', '3', '–')
    """
    if value is None:
        return NONE
    if value == int(value):
        return f"{int(value):,}".replace(",", _THIN)
    return f"{value:.3g}"


def count(how_many: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things.

    Examples
    --------
    >>> count(1, "class", "classes"), count(20, "class", "classes"), count(2, "round")
    ('1 class', '20 classes', '2 rounds')
    """
    return f"{number(how_many)} {noun if how_many == 1 else plural or noun + 's'}"


def among(names: Sequence[str], most: int = 5) -> str:
    """List the first few of many names and say how many more there are.

    Examples
    --------
    >>> among(["cat", "dog"]), among(["a", "b", "c", "d"], most=2)
    ('cat, dog', 'a, b and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {number(rest)} more" if rest > 0 else "")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Find the first and the last of each row of neighbours among increasing whole numbers.

    Examples
    --------
    >>> runs([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    found: list[tuple[int, int]] = []
    for item in numbers:
        if found and item == found[-1][1] + 1:
            found[-1] = (found[-1][0], item)
        else:
            found.append((item, item))
    return found


def spans(numbers: Iterable[int], most: int = 8) -> str:
    """Write increasing whole numbers with runs drawn together.

    Examples
    --------
    >>> spans([1, 2, 3, 7, 9, 10]), spans(range(1, 40, 2), most=3)
    ('1–3, 7, 9–10', '1, 3, 5, …')
    """
    written = [f"{low}–{high}" if high > low else f"{low}" for low, high in runs(numbers)]
    return ", ".join(written if len(written) <= most else [*written[:most], "…"])


def printable(text: str) -> str:
    r"""Replace what cannot be written as UTF-8: bytes of file names that are not text.

    Examples
    --------
    >>> printable("caf\udce9.jpg")
    'caf�.jpg'
    """
    return _SURROGATES.sub("\ufffd", text)


_MARKS = re.compile(r"[\\`*_\[\]<>|~&$#]")
_ADDRESS = re.compile(r"(?i)(:|www)(//|\.)")


def plain(text: str) -> str:
    r"""Escape text that stands within a line.

    Examples
    --------
    >>> plain("a *big* <b>cat</b>\n| see http://x.y")
    'a \\*big\\* \\<b\\>cat\\</b\\> \\| see http:\\//x.y'
    """
    line = " ".join(text.split())
    line = _MARKS.sub(lambda match: "\\" + match[0], line)
    # Some renderers make links of bare addresses; a prompt should not become one.
    return _ADDRESS.sub(r"\1\\\2", line)


def fenced(code: str, language: str = "") -> str:
    """Set code between fences longer than any row of backticks in it.

    Examples
    --------
    >>> print(fenced("ls", "console"))
    ```console
    ls
    ```
    """
    longest = max((len(row) for row in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"
