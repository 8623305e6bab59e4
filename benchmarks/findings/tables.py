"""Tables of results: means over seeds, in the columns a question is about."""

from typing import Any

import numpy as np

from benchmarks.findings.sets import SETS

Results = list[dict[str, Any]]


def show(question: str, results: Results) -> None:
    """Print the table of each set, and that of their mean.

    A cell is source / target accuracy in per cent, and in brackets accuracy on what was learned, distinct
    prompts and seconds; for a question about another figure that figure alone.
    """
    sets = [name for name in SETS if any(r["set"] == name for r in results)]
    for name in sets:
        _print_one(f"{question}: {name}", [r for r in results if r["set"] == name])
    if len(sets) > 1:
        _print_one(f"{question}: mean of {', '.join(sets)}", _over_sets(results, len(sets)))


def _print_one(title: str, results: Results) -> None:
    shots = sorted({r["shots"] for r in results})
    print(f"\n### {title}\n")
    print("| | " + " | ".join(f"{n} shot{'s' * (n > 1)}" for n in shots) + " |")
    print("|---|" + "--:|" * len(shots))
    for row in dict.fromkeys((r["variant"], r.get("rounds")) for r in results):
        cells = [_cell([r for r in results if _is(r, row, n)]) for n in shots]
        label = row[0] if row[1] is None else f"{row[0]}, M = {row[1]}"
        print(f"| {label} | " + " | ".join(cells) + " |")


def _is(result: dict[str, Any], row: tuple[str, int | None], shots: int) -> bool:
    return (result["variant"], result.get("rounds"), result["shots"]) == (*row, shots)


def _cell(results: Results) -> str:
    if not results:
        return "–"

    def mean(name: str) -> float:
        return float(np.mean([r[name] for r in results]))

    if "figure" in results[0]:
        return f"{mean('figure'):.1f}"
    parts = [f"{100 * mean('accuracy'):.1f}"]
    if all("target" in r for r in results):
        parts = [f"{parts[0]} / {100 * mean('target'):.1f}"]
        learned, prompts = 100 * mean("learn_accuracy"), mean("prompts")
        parts.append(f"({learned:.0f} %, {prompts:.0f}, {mean('seconds'):.1f} s)")
    return " ".join(parts)


def _over_sets(results: Results, number: int) -> Results:
    """Keep the variants that every set has; a mean over fewer sets would compare unlike things."""
    counts: dict[tuple[Any, ...], set[str]] = {}
    for r in results:
        counts.setdefault(_row(r), set()).add(r["set"])
    return [r for r in results if len(counts[_row(r)]) == number]


def _row(result: dict[str, Any]) -> tuple[Any, ...]:
    return result["variant"], result.get("rounds"), result["shots"]
