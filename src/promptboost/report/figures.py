"""Figures made ready for a page: what to show, in which order, how much of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from promptboost.model import PromptEnsemble
from promptboost.report.drawings import Line, Reference, staged_curve, wilson
from promptboost.report.phrases import among, number, percent
from promptboost.report.results import ClassResult, HardPicture, Metrics, Transfer

__all__ = [
    "Bank",
    "PromptRow",
    "class_banks",
    "rows_per_class",
    "MethodRow",
    "TransferRow",
    "class_rows",
    "curves",
    "hard_rows",
    "legend",
    "method_rows",
    "setting_tables",
    "timing_rows",
    "transfer_rows",
]

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
    """Choose how many prompts of a class to show, so that a page of many classes stays usable.

    Examples
    --------
    >>> rows_per_class(20), rows_per_class(200), rows_per_class(1000)
    (25, 15, 3)
    """
    return max(3, min(25, _ROWS_IN_ALL // n_classes))


def class_banks(ensemble: PromptEnsemble, most: int) -> Iterator[Bank]:
    """Return the prompts of every class, heaviest first.

    Parameters
    ----------
    ensemble : PromptEnsemble
        The fitted text.
    most : int
        How many rows a class may have.

    Examples
    --------
    >>> from promptboost.model import Round
    >>> one = Round("a {}", {"cat": {"a cat": 3, "a tabby": 1}, "dog": {"a dog": 1}}, 0.1, 0.1)
    >>> bank, _ = class_banks(PromptEnsemble(("cat", "dog"), (one, one)), most=1)
    >>> bank.rows, bank.left_out
    ((PromptRow(text='a cat', weight=0.75, copies=6, rounds=(1, 2)),), 1)
    """
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
_LABELS = {"zero_shot": ("zero-shot", "zero"), "probe": ("logistic regression", "probe")}
_TIMES = {
    "pictures_s": "reading and embedding pictures",
    "texts_s": "embedding prompts",
    "boost_s": "boosting",
    "total_s": "in all",
}


@dataclass(frozen=True)
class MethodRow:
    """One line of the comparison."""

    name: str
    label: str
    shown: float | None
    span: tuple[float, float] | None
    class_accuracy: float | None
    learn_accuracy: float | None


@dataclass(frozen=True)
class TransferRow:
    """One line of the transfer table, with the part of the gain that was kept."""

    facts: Transfer
    kept: float | None


def method_rows(metrics: Metrics) -> list[MethodRow]:
    """Return the methods in the order of the file; intervals only where accuracy is evidence."""
    return [
        MethodRow(
            name=method.name,
            label=method.label,
            shown=metrics.measured(method.name),
            span=wilson(method.accuracy, metrics.task.held_out_pictures)
            if metrics.held_out
            else None,
            class_accuracy=method.class_accuracy,
            learn_accuracy=method.learn_accuracy,
        )
        for method in metrics.methods
    ]


def curves(metrics: Metrics) -> dict[str, Markup]:
    """Draw the staged curve for wide and for narrow screens; nothing if there are no two stages."""
    if len(metrics.staged) < 2:
        return {}
    lines, levels = _drawn(metrics)
    title = _curve_title(metrics, levels)
    return {
        size: staged_curve(
            lines, levels, width=width, height=height, title=title, named=size == "wide"
        )
        for size, (width, height) in _SIZES.items()
    }


def legend(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the line style and the name of everything on the curve."""
    lines, levels = _drawn(metrics)
    return [(line.kind, line.label) for line in reversed(lines)] + [
        (level.kind, level.label) for level in levels
    ]


def _drawn(metrics: Metrics) -> tuple[list[Line], list[Reference]]:
    learn = Line("learning", "learn", [stage.learn_accuracy for stage in metrics.staged])
    held = Line("boosted", "main", [stage.accuracy for stage in metrics.staged])
    levels = [
        Reference(label, kind, value)
        for name, (label, kind) in _LABELS.items()
        if (value := metrics.measured(name)) is not None
    ]
    return [learn, held] if metrics.held_out else [learn], levels


def _curve_title(metrics: Metrics, levels: list[Reference]) -> str:
    first, last = metrics.staged[0], metrics.staged[-1]
    ends = (
        (first.accuracy, last.accuracy)
        if metrics.held_out
        else (first.learn_accuracy, last.learn_accuracy)
    )
    where = "held-out" if metrics.held_out else "learning"
    beside = "".join(f", {level.label} {percent(level.value)}" for level in levels)
    return (
        f"Accuracy on {where} pictures against rounds: {percent(ends[0])} after round 1, "
        f"{percent(ends[1])} after round {last.round}{beside}."
    )


def class_rows(metrics: Metrics) -> list[ClassResult]:
    """Return the classes, those recognised least first: they are what one looks for."""
    return sorted(
        metrics.per_class,
        key=lambda row: (row.boosted is None, row.boosted, row.zero_shot or 0.0, row.class_name),
    )


def hard_rows(metrics: Metrics) -> list[tuple[str, HardPicture]]:
    """Return pictures that are not recognised, or weigh more than the average, with that multiple."""
    n = max(1, metrics.task.learn_pictures)
    return [
        (f"{n * item.weight:.1f}" if n * item.weight >= 0.1 else "under 0.1", item)
        for item in metrics.hardest
        # As it is shown: after one round half of all pictures weigh a hair more than the average.
        if round(n * item.weight, 1) > 1 or item.predicted != item.label
    ]


def transfer_rows(metrics: Metrics) -> list[TransferRow]:
    """Compare the gain on each other encoder with the gain on the encoder of the fit."""
    zero, boosted = metrics.measured("zero_shot"), metrics.measured("boosted")
    gain = None if zero is None or boosted is None or not metrics.held_out else boosted - zero
    return [TransferRow(item, _kept(item, gain)) for item in metrics.transfers]


def _kept(item: Transfer, gain: float | None) -> float | None:
    if gain is None or gain <= 0 or item.boosted is None or item.zero_shot is None:
        return None
    return (item.boosted - item.zero_shot) / gain


def timing_rows(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the seconds that were spent, with words for the steps that are known."""
    return [
        (_TIMES.get(name, name), f"{number(round(value, 1))} s")
        for name, value in metrics.timing.items()
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
