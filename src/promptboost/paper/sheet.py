"""Tables in the paper's layout, with our numbers, the paper's, and the differences."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from promptboost.compare.cells import Result
from promptboost.compare.summary import Curve, accuracy_figure, mean_and_spread, to_csv
from promptboost.io import write_text
from promptboost.paper.plans import DIFFERENCES, TITLES, PaperPlan, Slot
from promptboost.paper.published import PublishedNumber, published
from promptboost.paper.runner import KEY, PaperRequest, PlanResults
from promptboost.report.svg import as_text

_RIGHT, _WRONG = "✓", "✗"
_MEASURED = ("accuracy", "learn_accuracy", "bank_size", "repeated", "seconds")
_MOST_COLUMNS = 14
_LINE = 96  # letters of a line above a figure


@dataclass(frozen=True)
class Number:
    """One number of a table: ours and the paper's."""

    slot: Slot
    mean: float | None  # in percent; None without results
    deviation: float | None  # mean of the deviations over seeds; None for one seed
    cells: int  # number of measurements in the mean
    of: int  # number of measurements if complete
    paper: PublishedNumber | None = None  # None if the paper has none, or of another experiment
    tolerance: float = 0.0
    why_not: str = ""  # why it is missing, incomplete, or not compared
    reasons: tuple[str, ...] = ()  # why cells are missing

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        if self.mean is None or self.paper is None or self.cells < self.of:
            return None
        return self.mean - self.paper.value

    @property
    def within(self) -> bool | None:
        """Whether the difference, rounded as shown, is within the tolerance; None without one."""
        off = self.difference
        return None if off is None else round(abs(off), 2) <= self.tolerance

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable record."""
        paper = self.paper
        return {
            "ours": self.mean,
            "deviation": self.deviation,
            "cells": self.cells,
            "of": self.of,
            "paper": None if paper is None else paper.value,
            "paper_deviation": None if paper is None else paper.deviation,
            "difference": self.difference,
            "tolerance": None if paper is None else self.tolerance,
            "within": self.within,
            "why_not": self.why_not,
        }

    def __str__(self) -> str:
        paper = None if self.paper is None else f"{self.paper.value:.2f}"
        if self.mean is None:
            return "–" if paper is None else f"– (paper {paper})"
        ours = f"{self.mean:.2f}"
        if self.deviation is not None:
            ours += f" ± {self.deviation:.2f}"
        if self.cells < self.of:
            ours += f" [{self.cells} of {self.of}]"
        if self.difference is None:
            return ours
        sign = "+" if self.difference >= 0 else "−"
        mark = _RIGHT if self.within else _WRONG
        return f"{ours} ({paper}, {sign}{abs(self.difference):.2f} {mark})"


@dataclass(frozen=True)
class Sheet:
    """A table or figure with its numbers."""

    plan: PaperPlan
    numbers: tuple[Number, ...]
    measured: PlanResults

    @property
    def columns(self) -> list[str]:
        """The column names, in order."""
        return list(dict.fromkeys(number.slot.column for number in self.numbers))

    def rows(self) -> dict[tuple[str, ...], dict[str, Number]]:
        """Return the numbers by row and column."""
        rows: dict[tuple[str, ...], dict[str, Number]] = {}
        for number in self.numbers:
            rows.setdefault(number.slot.row, {})[number.slot.column] = number
        return rows

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows as text; tables with many columns are thinned."""
        columns = self.columns
        step = -(-len(columns) // _MOST_COLUMNS)
        columns = columns[::-step][::-1]
        marks = self.measured.marks()
        lines = [
            [*row, *(_marked(numbers[name], marks) if name in numbers else "" for name in columns)]
            for row, numbers in self.rows().items()
        ]
        return [*self.plan.entry.head, *columns], lines

    @property
    def compared(self) -> list[Number]:
        """The numbers that are compared with the paper's."""
        return [number for number in self.numbers if number.within is not None]

    def notes(self) -> list[str]:
        """Return notes about the numbers."""
        notes: list[str] = []
        if self.compared:
            good = sum(bool(number.within) for number in self.compared)
            notes.append(
                f"Ours ± deviation (the paper's, difference): {good} of {len(self.compared)} within "
                f"tolerance {_RIGHT}, which is {self.plan.entry.tolerance:g} points, or the deviation "
                "that the paper prints where that is more."
            )
        elif any(number.mean is not None and not number.paper for number in self.numbers):
            notes.append("Not compared with the paper's numbers: this is another experiment.")
        seeds = ", ".join(map(str, self.plan.seeds))
        notes.append(f"Percent; draws {seeds}; deviation is the mean over data sets and encoders.")
        changed = dict.fromkeys(why for number in self.numbers for why in number.slot.changed)
        if changed:
            notes.append(f"Other than in the paper: {'; '.join(changed)}.")
        if self.measured.samples:
            names = ", ".join(sorted(self.measured.samples))
            notes.append(f"Not the paper's data: {names}.")
        if self.measured.undivided and len({bool(slot.shots) for slot in self.plan.slots}) == 2:
            names = ", ".join(sorted(self.measured.undivided))
            notes.append(
                f"Without test images of their own: {names}. Methods that learn are measured on the "
                "images that their draw leaves, others once, on those that draw 1 of 1 shot leaves."
            )
        ran = dict.fromkeys(n.slot.method for n in self.numbers if n.mean is not None)
        notes += [f"{TITLES[m]}: {DIFFERENCES[m]}." for m in ran if m in DIFFERENCES]
        notes += [f"Pool of {name}: {text}." for name, text in self.measured.pools.items()]
        return notes + self._words()

    def _words(self) -> list[str]:
        """Return notes about prompts: copies, examples, and those in the paper."""
        lines = self.measured.lines.values()
        notes = []
        repeated = [
            line["repeated"]
            for line in lines
            if line.get("repeated") is not None and "max_copies" not in line["method"]
        ]
        if self.plan.name == "duplication" and repeated:
            share = 100 * float(np.mean(repeated))
            notes.append(f"{share:.0f} % of the chosen prompts have several copies in a bank.")
        if self.plan.name == "pez-failure":
            made = {line["dataset"]: line["example"] for line in lines if line.get("example")}
            notes += [f"PEZ on {name}: “{text}”" for name, text in made.items()]
        printed = [
            f"{prompt.class_name}{f', round {prompt.round}' if prompt.round else ''}: “{prompt.text}”"
            for prompt in self.plan.entry.prompts
        ]
        return [*notes, f"In the paper – {'; '.join(printed)}"] if printed else notes

    def markdown(self) -> str:
        """Return the table as a Markdown page."""
        head, rows = self.grid()
        left = len(self.plan.entry.head)
        page = [
            f"# {self.plan.entry.title}\n",
            f"{self.plan.entry.place} of the paper. {as_text(self.plan.at_hand)}\n",
            f"| {' | '.join(map(as_text, head))} |",
            "|" + "---|" * left + "---:|" * (len(head) - left),
            *(f"| {' | '.join(map(as_text, row))} |" for row in rows),
            "",
            *(f"- {as_text(line)}" for line in self.notes()),
        ]
        if self.measured.reasons:
            page += ["", "Not there:", ""]
            page += [f"- {as_text(line)}" for line in self.measured.reason_lines()]
        return "\n".join(page) + "\n"

    def csv(self) -> str:
        """Return the numbers as CSV."""
        head = [*map(str.lower, self.plan.entry.head), "column"]
        rows = [
            dict(zip(head, (*number.slot.row, number.slot.column), strict=True)) | number.record()
            for number in self.numbers
        ]
        return to_csv([{name: _rounded(value) for name, value in row.items()} for row in rows])

    def cells_csv(self) -> str:
        """Return the cells and their keys as CSV."""
        return to_csv(list(self.measured.lines.values()), (*KEY, *_MEASURED))

    def figure(self) -> str:
        """Return our numbers and the paper's as SVG."""
        shots = sorted({int(name) for name in self.columns})
        panels: dict[str, list[Curve]] = {}
        for row, numbers in self.rows().items():
            title, name = (row[0], row[1]) if len(row) > 1 else (self.plan.source, row[0])
            points = {int(c): number for c, number in numbers.items() if number.mean is not None}
            panels.setdefault(title, [])
            lacking = next((number for number in points.values() if number.cells < number.of), None)
            if lacking is not None:
                name = f"{name} [{lacking.cells} of {lacking.of}]"
            if points:
                panels[title].append(_curve(name, points))
            theirs = {k: number for k, number in points.items() if number.difference is not None}
            if theirs:
                panels[title].append(_curve(name, theirs, theirs=True))
        drawn = [(title, curves) for title, curves in panels.items() if curves]
        several = "Mean of " if len(self.plan.datasets) > 1 else "On "
        datasets = f"{several}{', '.join(self.plan.datasets)}."
        heading = [self.plan.entry.title]
        heading += [line for text in (self.plan.at_hand, datasets) for line in wrap(text, _LINE)]
        return accuracy_figure(drawn, shots, self.plan.entry.axis, heading) if drawn else ""


def _marked(number: Number, marks: Mapping[str, str]) -> str:
    """Return a number as text, with the marks of its reasons."""
    letters = ", ".join(marks[reason] for reason in number.reasons)
    return f"{number} [{letters}]" if letters else str(number)


def _curve(name: str, points: Mapping[int, Number], *, theirs: bool = False) -> Curve:
    at = sorted(points)
    values = [
        (
            number.paper.value if theirs and number.paper else number.mean or 0.0,
            number.deviation or 0.0,
        )
        for number in (points[k] for k in at)
    ]
    return Curve(
        *(f"{name}, the paper" if theirs else name, "", "", tuple(at)),
        tuple(mean / 100 for mean, _ in values),
        tuple(0.0 if theirs else spread / 100 for _, spread in values),
        (0.0,) * len(at),
        None,
        belongs_to=name if theirs else "",
    )


def make_sheet(plan: PaperPlan, measured: PlanResults) -> Sheet:
    """Return the results of a plan with the paper's numbers."""
    paper = {number.key: number for number in published(plan.name)}
    return Sheet(plan, tuple(_number(slot, plan, measured, paper) for slot in plan.slots), measured)


def _number(
    slot: Slot, plan: PaperPlan, measured: PlanResults, by_key: Mapping[Any, PublishedNumber]
) -> Number:
    means: list[float] = []
    deviations: list[float] = []
    cells = 0
    by_seed = plan.cells_of(slot)
    keys = [key for seeds in by_seed for key in seeds]
    reasons = tuple(dict.fromkeys(measured.reasons[k] for k in keys if k in measured.reasons))
    for seeds in by_seed:
        lines = [measured.lines[key] for key in seeds if key in measured.lines]
        values = [value for line in lines if (value := _value(slot, line)) is not None]
        cells += len(values)
        if values:
            mean, spread = mean_and_spread(values)
            means.append(100 * mean)
            if len(values) > 1:
                deviations.append(100 * spread)
    source = plan.source if slot.shots else ""
    key = slot.dataset, slot.method, slot.shots or None, source, slot.target, slot.setting
    strange = measured.samples.intersection(slot.datasets)
    paper = None if slot.changed or strange else by_key.get(key)
    return Number(
        slot,
        float(np.mean(means)) if means else None,
        float(np.mean(deviations)) if deviations else None,
        cells,
        len(keys),
        paper,
        0.0 if paper is None else plan.entry.allowed(paper),
        "; ".join(reasons or slot.changed) or ("not the paper's data" if strange else ""),
        reasons,
    )


def _value(slot: Slot, line: Result) -> float | None:
    """Return the accuracy of a slot."""
    if slot.rounds is None:
        return float(line["accuracy"])
    rounds = line.get("by_round") or []
    return float(rounds[slot.rounds - 1][not slot.on_shots]) if len(rounds) >= slot.rounds else None


def _rounded(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return round(value, 4) if isinstance(value, float) else value


def write_sheet(sheet: Sheet, request: PaperRequest) -> list[Path]:
    """Write the files of one table or figure into its folder."""
    folder = request.out / sheet.plan.name
    files = {"table.md": sheet.markdown(), "table.csv": sheet.csv(), "cells.csv": sheet.cells_csv()}
    if sheet.plan.entry.pair is not None:
        from promptboost.paper.scene import draw_scene

        for line in sheet.measured.lines.values():
            if line.get("scene"):
                files["figure.svg"] = draw_scene(line["scene"], sheet.plan.at_hand)
    elif sheet.plan.entry.kind == "figure" and (drawn := sheet.figure()):
        files["figure.svg"] = drawn
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_text(folder / name, text, follow=False)
    return [folder / name for name in files]
