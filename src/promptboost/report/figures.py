"""Figures made ready for a page: what to show, in which order, how much of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from promptboost.baselines.measures import OURS, TEXT, Answered, MethodResult, ReliabilityBin
from promptboost.model import PromptEnsemble
from promptboost.report.drawings import (
    Line,
    Point,
    Reference,
    coverage_plot,
    reliability_plot,
    staged_curve,
    wilson,
)
from promptboost.report.phrases import among, number, percent
from promptboost.run.results import HardImage, Results, TransferResult

# A row is about 600 bytes; a page should stay under three million.
_ROWS_IN_ALL = 3000


@dataclass(frozen=True)
class PromptRow:
    """One prompt of one class."""

    text: str
    weight: float
    copies: int
    rounds: tuple[int, ...]


@dataclass(frozen=True)
class Bank:
    """The heaviest prompts of a class, and what they leave out."""

    class_name: str
    rows: tuple[PromptRow, ...]
    prompts: int
    weight_shown: float

    @property
    def left_out(self) -> int:
        """How many prompts are not among the rows."""
        return self.prompts - len(self.rows)


def rows_per_class(n_classes: int) -> int:
    """Choose how many prompts of a class to show, so that a page of many classes stays usable."""
    return max(3, min(25, _ROWS_IN_ALL // n_classes))


def class_banks(ensemble: PromptEnsemble, most: int) -> Iterator[Bank]:
    """Return the prompts of every class, heaviest first."""
    for name in ensemble.class_names:
        weights = ensemble.prompts(name)
        heaviest = list(weights.items())[:most]
        entered: dict[str, list[int]] = {text: [] for text, _ in heaviest}
        copies = dict.fromkeys(entered, 0)
        for i, item in enumerate(ensemble.rounds, start=1):
            for text in entered.keys() & item.banks[name].keys():
                entered[text].append(i)
                copies[text] += item.banks[name][text]
        yield Bank(
            class_name=name,
            rows=tuple(
                PromptRow(text, weight, copies[text], tuple(entered[text]))
                for text, weight in heaviest
            ),
            prompts=len(weights),
            weight_shown=sum(weight for _, weight in heaviest),
        )


# The curve is drawn twice, and the style sheet shows the one that fits: shrunk text is unreadable.
_SIZES = {"wide": (900, 340), "narrow": (360, 280)}
_LABELS = {"zero-shot": ("zero-shot", "zero"), "logistic": ("logistic regression", "probe")}
_TIMES = {
    "images_s": "reading and embedding images",
    "texts_s": "embedding prompts",
    "boost_s": "boosting",
    "total_s": "in all",
}


@dataclass(frozen=True)
class MethodRow:
    """One line of the comparison: the figures, the one to show, and its interval."""

    figures: MethodResult
    shown: float | None
    span: tuple[float, float] | None

    @property
    def ours(self) -> bool:
        """Whether it is the boosted text."""
        return self.figures.name == OURS


@dataclass(frozen=True)
class ClassRow:
    """One class before and after."""

    class_name: str
    count: int
    zero_shot: float | None
    boosted: float | None
    words: float | None = None  # share of its answers that is words, where there is a residual


@dataclass(frozen=True)
class TransferRow:
    """One line of the transfer table, with the part of the gain that was kept."""

    encoder: str
    zero_shot: float | None
    templates: float | None
    pool: float | None
    text: float | None  # without the residual, where one was learnt there
    boosted: float | None
    kept: float | None


def method_rows(results: Results) -> list[MethodRow]:
    """Return the methods in the order of the file; intervals only where accuracy is evidence."""
    n = results.task.held_out_images
    return [
        MethodRow(
            method,
            results.measured(method.name),
            wilson(method.accuracy, n) if results.held_out else None,
        )
        for method in results.methods
    ]


def curves(results: Results) -> dict[str, Markup]:
    """Draw the staged curve for wide and for narrow screens; nothing if there are no two stages."""
    if len(results.staged) < 2:
        return {}
    lines, levels = _drawn(results)
    title = _curve_title(results, levels)
    return {
        size: staged_curve(
            lines, levels, width=width, height=height, title=title, named=size == "wide"
        )
        for size, (width, height) in _SIZES.items()
    }


def legend(results: Results) -> list[tuple[str, str]]:
    """Return the line style and the name of everything on the curve."""
    lines, levels = _drawn(results)
    return [(line.kind, line.label) for line in reversed(lines)] + [
        (level.kind, level.label) for level in levels
    ]


def _drawn(results: Results) -> tuple[list[Line], list[Reference]]:
    learn = Line("learning", "learn", [stage.learn_accuracy for stage in results.staged])
    held = Line("boosted", "main", [stage.accuracy for stage in results.staged])
    levels = [
        Reference(label, kind, value)
        for name, (label, kind) in _LABELS.items()
        if (value := results.measured(name)) is not None
    ]
    return [learn, held] if results.held_out else [learn], levels


def _curve_title(results: Results, levels: list[Reference]) -> str:
    first, last = results.staged[0], results.staged[-1]
    ends = (
        (first.accuracy, last.accuracy)
        if results.held_out
        else (first.learn_accuracy, last.learn_accuracy)
    )
    where = "held-out" if results.held_out else "learning"
    beside = "".join(f", {level.label} {percent(level.value)}" for level in levels)
    return (
        f"Accuracy on {where} images against rounds: {percent(ends[0])} after round 1, "
        f"{percent(ends[1])} after round {last.round}{beside}."
    )


# Fewer answers than this say nothing about the share that is right.
_FEWEST = 10


@dataclass(frozen=True)
class Certainty:
    """What a page shows about the probabilities of a run: two drawings, and the figures behind them."""

    method: MethodResult
    text: MethodResult | None  # the words alone, where there is a residual
    reliability: Markup
    coverage_curve: Markup

    @property
    def rows(self) -> list[tuple[Answered, Answered | None]]:
        """What is answered at each least probability, and by the words alone."""
        alone = {} if self.text is None else {a.min_probability: a for a in self.text.coverage}
        return [(one, alone.get(one.min_probability)) for one in self.method.coverage]

    @property
    def bins(self) -> list[tuple[ReliabilityBin, tuple[float, float] | None]]:
        """The bins with their 95 % intervals."""
        return [(one, wilson(one.accuracy, one.count)) for one in self.method.reliability]


def certainty(results: Results) -> Certainty | None:
    """Draw how far probabilities can be relied on; None where no image was held out."""
    ours, text = results.method(OURS), results.method(TEXT)
    if not results.held_out or ours is None or not ours.reliability or not ours.coverage:
        return None
    text = text if text is not None and text.coverage_curve else None
    return Certainty(ours, text, _reliability_drawing(ours), _coverage_drawing(ours, text))


def _reliability_drawing(ours: MethodResult) -> Markup:
    bins = [
        (
            Point(
                one.probability,
                one.accuracy,
                wilson(one.accuracy, one.count),
                few=one.count < _FEWEST,
            ),
            float(one.count),
        )
        for one in ours.reliability
    ]
    return reliability_plot(
        bins,
        title="Share that is right against the probability of the answer, in per cent.",
        description="; ".join(
            f"{percent(one.probability)} probable: {percent(one.accuracy)} right of {one.count}"
            for one in ours.reliability
        ),
    )


def _coverage_drawing(ours: MethodResult, text: MethodResult | None) -> Markup:
    drawn = [("learn", text)] if text else []
    lines = [
        (
            kind,
            [
                Point(a.coverage, a.accuracy or 0.0)
                for a in one.coverage_curve
                if a.answered >= _FEWEST
            ],
        )
        for kind, one in [*drawn, ("main", ours)]
    ]
    shown = [a for a in ours.coverage if a.answered >= _FEWEST]
    marks = [
        Point(a.coverage, a.accuracy or 0.0, name=f"{a.min_probability:g}")
        for a in shown
        if a.min_probability
    ]
    return coverage_plot(
        lines,
        marks,
        title="Share that is right against the share of images that are answered, in per cent.",
        description="; ".join(map(said_of, shown)),
    )


def said_of(one: Answered) -> str:
    """Return a phrase for what is answered at a least probability, and how much of it is right."""
    right = f"{percent(one.accuracy)} right on {percent(one.coverage)} of images"
    return f"at {one.min_probability:g}: {right}"


def class_rows(results: Results) -> list[ClassRow]:
    """Return the classes, those recognised least first: they are what one looks for."""
    words = {} if results.residual is None else results.residual.class_text_shares
    rows = [
        ClassRow(
            item.class_name,
            item.count,
            item.accuracy.get("zero-shot"),
            item.accuracy.get(OURS),
            words.get(item.class_name),
        )
        for item in results.per_class
    ]
    return sorted(
        rows,
        key=lambda row: (row.boosted is None, row.boosted, row.zero_shot or 0.0, row.class_name),
    )


def hard_rows(results: Results) -> list[tuple[str, HardImage]]:
    """Return images that are not recognised, or weigh more than the average, with that multiple."""
    n = max(1, results.task.learn_images)
    return [
        (f"{n * item.weight:.1f}" if n * item.weight >= 0.1 else "under 0.1", item)
        for item in results.hardest
        # As it is shown: after one round half of all images weigh a hair more than the average.
        if round(n * item.weight, 1) > 1 or item.predicted != item.label
    ]


def transfer_rows(results: Results) -> list[TransferRow]:
    """Compare the gain on each other encoder with the gain on the encoder of the fit."""
    # What moves is the text, so its gain is compared, with or without a residual on either side.
    text = TEXT if results.method(TEXT) else OURS
    zero, boosted = results.measured("zero-shot"), results.measured(text)
    gain = None if zero is None or boosted is None or not results.held_out else boosted - zero
    return [
        TransferRow(
            item.encoder + (", learnt on too" if item.learnt_on else ""),
            item.of("zero-shot"),
            item.of("zero-shot-80"),
            item.of("pool-mean"),
            item.of(TEXT),
            item.of(OURS),
            _kept(item, gain),
        )
        for item in results.transfers
    ]


def _kept(item: TransferResult, gain: float | None) -> float | None:
    zero, boosted = item.of("zero-shot"), item.accuracy.get(TEXT, item.of(OURS))
    if gain is None or gain <= 0 or boosted is None or zero is None:
        return None
    return (boosted - zero) / gain


def timing_rows(results: Results) -> list[tuple[str, str]]:
    """Return the seconds that were spent, with words for the steps that are known."""
    return [
        (_TIMES.get(name, name), f"{number(round(value, 1))} s")
        for name, value in results.timing.items()
        if isinstance(value, int | float)
    ]


def setting_tables(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Spread TOML tables into titled lists of names and values, in the order of the file."""
    loose = [(name, _written(v)) for name, v in settings.items() if not isinstance(v, Mapping)]
    if loose:
        yield "", loose
    for title, table in settings.items():
        if isinstance(table, Mapping):
            yield from (
                (f"{title}.{inner}" if inner else title, rows)
                for inner, rows in setting_tables(table)
            )


def _written(value: object) -> str:
    if isinstance(value, list):
        # The names of a thousand classes are no setting anyone would read here.
        return among([_written(item) for item in value], most=30) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
