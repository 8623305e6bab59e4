"""Figures of a report, ready for its templates, and text as pages write it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from promptboost.baselines.measures import OURS, TEXT, Answered, MethodResult, ReliabilityBin
from promptboost.model import PromptEnsemble
from promptboost.report.svg import (
    THIN,
    Line,
    Point,
    Reference,
    coverage_plot,
    percent,
    reliability_plot,
    staged_curve,
)
from promptboost.run.results import HardImage, Results

# A row is about 600 bytes; a page should stay under three million.
_TOTAL_ROWS = 3000
NONE = "–"
_MARKS = re.compile(r"([\\`*_\[\]<>|~&$#])")
_SURROGATES = re.compile("[\ud800-\udfff]")


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


class PromptRow(NamedTuple):
    """A prompt of a class."""

    text: str
    weight: float
    copies: int
    rounds: tuple[int, ...]


class BankTable(NamedTuple):
    """The heaviest prompts of a class, and the number and weight of all that are left out."""

    class_name: str
    rows: list[PromptRow]
    prompts: int
    left_out: int
    weight_shown: float


def rows_per_class(n_classes: int) -> int:
    """Choose how many prompts of a class to show, so that a page of many classes stays usable."""
    return max(3, min(25, _TOTAL_ROWS // n_classes))


def class_banks(ensemble: PromptEnsemble, most: int) -> Iterator[BankTable]:
    """Yield the heaviest prompts of every class."""
    for name in ensemble.class_names:
        weights = ensemble.prompts(name)
        heaviest = list(weights.items())[:most]
        rounds: dict[str, list[int]] = {prompt: [] for prompt, _ in heaviest}
        copies = dict.fromkeys(rounds, 0)
        for i, round_ in enumerate(ensemble.rounds, start=1):
            for prompt in rounds.keys() & round_.banks[name].keys():
                rounds[prompt].append(i)
                copies[prompt] += round_.banks[name][prompt]
        rows = [PromptRow(p, weight, copies[p], tuple(rounds[p])) for p, weight in heaviest]
        shown = sum(weight for _, weight in heaviest)
        yield BankTable(name, rows, len(weights), len(weights) - len(rows), shown)


# The curve is drawn twice, and the style sheet shows the one that fits: shrunk text is unreadable.
_SIZES = {"wide": (900, 340), "narrow": (360, 280)}
_REFERENCES = {"zero-shot": ("zero-shot", "zero"), "logistic": ("logistic regression", "probe")}
_TIMES = {
    "images_s": "reading and embedding images",
    "texts_s": "embedding prompts",
    "boost_s": "boosting",
    "total_s": "in all",
}


class MethodRow(NamedTuple):
    """A line of the comparison: all figures, the one to show, and its interval."""

    figures: MethodResult
    shown: float | None
    span: tuple[float, float] | None
    ours: bool


def method_rows(results: Results) -> list[MethodRow]:
    """Return the methods in the order of the file; intervals only for held-out images."""
    n = results.task.held_out_images
    return [
        MethodRow(
            method,
            results.measured(method.name),
            wilson(method.accuracy, n) if results.held_out else None,
            method.name == OURS,
        )
        for method in results.methods
    ]


def curves(results: Results) -> dict[str, Markup]:
    """Draw the staged curve for wide and for narrow screens; empty with fewer than two stages."""
    if len(results.staged) < 2:
        return {}
    lines, levels = _lines(results)
    ends = [lines[-1].values[0], lines[-1].values[-1]]
    where = "held-out" if results.held_out else "learning"
    others = "".join(f", {level.label} {percent(level.value)}" for level in levels)
    title = (
        f"Accuracy on {where} images against rounds: {percent(ends[0])} after round 1, "
        f"{percent(ends[1])} after round {results.staged[-1].round}{others}."
    )
    return {
        size: staged_curve(
            lines, levels, width=width, height=height, title=title, named=size == "wide"
        )
        for size, (width, height) in _SIZES.items()
    }


def legend(results: Results) -> list[tuple[str, str]]:
    """Return the style and the name of every line of the curve."""
    lines, levels = _lines(results)
    return [(line.kind, line.label) for line in reversed(lines)] + [
        (level.kind, level.label) for level in levels
    ]


def _lines(results: Results) -> tuple[list[Line], list[Reference]]:
    lines = [Line("learning", "learn", [stage.learn_accuracy for stage in results.staged])]
    if results.held_out:
        lines.append(Line("boosted", "main", [stage.accuracy for stage in results.staged]))
    levels = [
        Reference(label, kind, value)
        for name, (label, kind) in _REFERENCES.items()
        if (value := results.measured(name)) is not None
    ]
    return lines, levels


# Fewer answers than this say nothing about accuracy.
_FEWEST = 10


class Certainty(NamedTuple):
    """The probabilities of a run: two charts, and the figures behind them.

    Attributes
    ----------
    method, text : MethodResult
        The measures of the run, and of the text alone if there is a residual.
    reliability, coverage_curve : Markup
        The charts.
    rows : list
        The answers at each least probability, and those by the text alone.
    bins : list
        The bins of probability with the 95 % intervals of their accuracy.
    """

    method: MethodResult
    text: MethodResult | None
    reliability: Markup
    coverage_curve: Markup
    rows: list[tuple[Answered, Answered | None]]
    bins: list[tuple[ReliabilityBin, tuple[float, float] | None]]


def certainty(results: Results) -> Certainty | None:
    """Draw how reliable probabilities are; None without held-out images."""
    ours, text = results.method(OURS), results.method(TEXT)
    if not results.held_out or ours is None or not ours.reliability or not ours.coverage:
        return None
    text = text if text is not None and text.coverage_curve else None
    alone = {} if text is None else {a.min_probability: a for a in text.coverage}
    return Certainty(
        ours,
        text,
        _reliability(ours),
        _coverage(ours, text),
        [(answered, alone.get(answered.min_probability)) for answered in ours.coverage],
        [(bin_, wilson(bin_.accuracy, bin_.count)) for bin_ in ours.reliability],
    )


def _reliability(ours: MethodResult) -> Markup:
    bins = []
    for b in ours.reliability:
        span, few = wilson(b.accuracy, b.count), b.count < _FEWEST
        bins.append((Point(b.probability, b.accuracy, span, few=few), float(b.count)))
    return reliability_plot(
        bins,
        title="Share that is right against the probability of the answer, in per cent.",
        description="; ".join(
            f"{percent(b.probability)} probable: {percent(b.accuracy)} right of {b.count}"
            for b in ours.reliability
        ),
    )


def _coverage(ours: MethodResult, text: MethodResult | None) -> Markup:
    def point(answered: Answered, name: str = "") -> Point:
        return Point(answered.coverage, answered.accuracy or 0.0, name=name)

    drawn = [*([("learn", text)] if text else []), ("main", ours)]
    lines = [
        (kind, [point(a) for a in method.coverage_curve if a.answered >= _FEWEST])
        for kind, method in drawn
    ]
    shown = [a for a in ours.coverage if a.answered >= _FEWEST]
    return coverage_plot(
        lines,
        [point(a, f"{a.min_probability:g}") for a in shown if a.min_probability],
        title="Share that is right against the share of images that are answered, in per cent.",
        description="; ".join(
            f"at {a.min_probability:g}: {percent(a.accuracy)} right on {percent(a.coverage)} of images"
            for a in shown
        ),
    )


@dataclass(frozen=True)
class ClassRow:
    """A class before and after."""

    class_name: str
    count: int
    zero_shot: float | None
    boosted: float | None
    words: float | None  # share of the text in its answers, where there is a residual


def class_rows(results: Results) -> list[ClassRow]:
    """Return the classes, the least accurate first."""
    words = {} if results.residual is None else results.residual.class_text_shares
    rows = [
        ClassRow(
            each.class_name,
            each.count,
            each.accuracy.get("zero-shot"),
            each.accuracy.get(OURS),
            words.get(each.class_name),
        )
        for each in results.per_class
    ]
    return sorted(
        rows,
        key=lambda row: (row.boosted is None, row.boosted, row.zero_shot or 0.0, row.class_name),
    )


def hard_rows(results: Results) -> list[tuple[str, HardImage]]:
    """Return images that are predicted wrongly or weigh more than the average, with that multiple."""
    n = max(1, results.task.learn_images)
    return [
        (f"{n * image.weight:.1f}" if n * image.weight >= 0.1 else "under 0.1", image)
        for image in results.hardest
        # As it is shown: after one round half of all images weigh a hair more than the average.
        if round(n * image.weight, 1) > 1 or image.predicted != image.label
    ]


class TransferRow(NamedTuple):
    """A line of the transfer table, with the part of the gain that was kept."""

    encoder: str
    zero_shot: float | None
    templates: float | None
    pool: float | None
    text: float | None  # without the residual, where one was fitted there
    boosted: float | None
    kept: float | None


def transfer_rows(results: Results) -> list[TransferRow]:
    """Compare the gain on each other encoder with the gain on the encoder of the fit."""
    # What moves is the text, so its gain is compared, with or without a residual on either side.
    text = TEXT if results.method(TEXT) else OURS
    zero, boosted = results.measured("zero-shot"), results.measured(text)
    gain = None if zero is None or boosted is None or not results.held_out else boosted - zero
    rows = []
    for moved in results.transfers:
        there, after, kept = moved.of("zero-shot"), moved.accuracy.get(TEXT, moved.of(OURS)), None
        if gain is not None and gain > 0 and after is not None and there is not None:
            kept = (after - there) / gain
        name = moved.encoder + (", learned on too" if moved.learned_on else "")
        templates, pool = moved.of("zero-shot-80"), moved.of("pool-mean")
        rows.append(TransferRow(name, there, templates, pool, moved.of(TEXT), moved.of(OURS), kept))
    return rows


def timing_rows(results: Results) -> list[tuple[str, str]]:
    """Return the seconds that were spent, with descriptions of the known steps."""
    return [
        (_TIMES.get(name, name), f"{number(round(value, 1))} s")
        for name, value in results.timing.items()
        if isinstance(value, int | float)
    ]


def setting_tables(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Flatten TOML tables into titled lists of names and values, in the order of the file."""
    loose = [(name, _written(v)) for name, v in settings.items() if not isinstance(v, Mapping)]
    if loose:
        yield "", loose
    for title, table in settings.items():
        if isinstance(table, Mapping):
            for inner, rows in setting_tables(table):
                yield f"{title}.{inner}" if inner else title, rows


def _written(value: object) -> str:
    if isinstance(value, list):
        # The names of a thousand classes are no setting anyone would read here.
        return among([_written(each) for each in value], most=30) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


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
        return f"{int(value):,}".replace(",", THIN)
    return f"{value:.3g}"


def count(how_many: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things."""
    return f"{number(how_many)} {noun if how_many == 1 else plural or noun + 's'}"


def among(names: Sequence[str], most: int = 5) -> str:
    """List the first few of many names and say how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {number(rest)} more" if rest > 0 else "")


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
