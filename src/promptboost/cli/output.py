"""How commands speak: results on stdout, notes on stderr, or one JSON object."""

import functools
import json
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

__all__ = [
    "Output",
    "percent",
    "plain",
    "sparkline",
    "speaks",
    "table",
    "device_option",
    "no_cache_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])

_BARS = "▁▂▃▄▅▆▇█"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, direction marks, surrogates, line ends


@dataclass(frozen=True)
class Output:
    """Where a command's words go.

    Attributes
    ----------
    json : bool
        One JSON object on stdout instead of text.
    quiet : bool
        No notes, no progress bars.
    """

    json: bool = False
    quiet: bool = False

    @property
    def progress(self) -> bool:
        """Whether progress bars may be shown; they appear on a terminal only."""
        return not (self.quiet or self.json)

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        if not self.quiet:
            click.echo(plain(text), err=True)

    def result(self, found: Any, text: str | Callable[[], str]) -> None:
        """Return the result, as JSON or as text."""
        if self.json:
            click.echo(json.dumps(found, allow_nan=False))
        else:
            click.echo(text if isinstance(text, str) else text())


def speaks(command: Command) -> Command:
    """Return a command the options ``--json``, ``--quiet`` and ``--debug``, and an `out` to speak by."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--quiet", "-q", is_flag=True, help="No notes and no progress bars.")
    @click.option("--debug", is_flag=True, hidden=True, expose_value=False)
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        return command(*args, out=Output(as_json, quiet), **options)

    return wrapped  # type: ignore[return-value]


def plain(text: str) -> str:
    r"""Take out what a terminal would obey instead of show.

    Examples
    --------
    >>> plain("cat\x1b[2J\n.jpg")
    'cat�[2J�.jpg'
    """
    if text.isascii() and text.isprintable():
        return text
    hidden = "\N{REPLACEMENT CHARACTER}"
    return "".join(hidden if unicodedata.category(c) in _HIDDEN else c for c in text)


def percent(share: float | None) -> str:
    """Write a share for a terminal.

    Examples
    --------
    >>> percent(0.4337), percent(None)
    ('43.4 %', '–')
    """
    from promptboost.report.phrases import percent as written

    return written(share).replace("\u202f", " ")  # terminals have no thin space


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Lay out rows: the columns in `left` to the left, the others to the right.

    Examples
    --------
    >>> print(table(["class", "right"], [["bird", "50.0 %"], ["fish", "7.5 %"]]))
    class   right
    bird   50.0 %
    fish    7.5 %
    """
    clean = [[plain(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(map(_width, column)) for column in zip(*clean, strict=True)]
    return "\n".join(
        "  ".join(_padded(cell, widths[i], left=i in left) for i, cell in enumerate(row)).rstrip()
        for row in clean
    )


def sparkline(values: Sequence[float], width: int = 50) -> str:
    """Draw a curve in one line of text.

    Examples
    --------
    >>> sparkline([0.1, 0.2, 0.4, 0.8])
    '▁▂▄█'
    """
    step = max(1.0, len(values) / width)
    shown = [values[min(len(values) - 1, int(i * step))] for i in range(min(width, len(values)))]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text


device_option = click.option(
    "--device", help="Where the encoder runs, such as cpu or cuda:1. Default: the fastest there is."
)

no_cache_option = click.option(
    "--no-cache", is_flag=True, help="Compute all embeddings, and keep none."
)
