"""The paper's claims, each judged from the available cells.

A claim is that a paired difference is above zero: both sides have the same draw, prompts, encoders and
settings, except for the one that is compared. Zero-shot has no draw and pairs with every draw of its data
set. Pairs of one data set and seed are averaged first, as they share images. The interval is that of the
mean over data sets and seeds.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from promptboost.compare.cells import Result
from promptboost.paper.plans import TITLES

Verdict = Literal["holds", "does not hold", "not enough data"]
#: Least number of pairs for a verdict.
FEWEST = 4
_DRAW = ("dataset", "seed", "shots", "encoder", "on")
_INPUTS = ("prompts", "weights", "on_weights", "views")
# Compared settings; others only make a fit faster, or suit a data set.
_COMPARED = ("views_per_round", "max_copies", "sources")


@dataclass(frozen=True)
class Judgment:
    """A claim, the measured difference, and its interval."""

    claim: str
    measured: str  # what was compared
    verdict: Verdict
    difference: float | None = None  # in points
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    pairs: int = 0  # data sets times seeds

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.verdict}; {self.measured}"
        span = f"{self.difference:+.2f} points, 95 % {self.low:+.2f} to {self.high:+.2f}"
        return f"{self.verdict}: {self.measured}, {span}, {self.pairs} pairs"


#: Pairs of results: one of the cells, and the difference in accuracy.
Differences = list[tuple[Result, float]]


def interval(values: Sequence[float], looks: int = 1) -> tuple[float, float]:
    """Return the 95 % interval of a mean, by Student's distribution: there are few values.

    With several `looks`, it is Bonferroni-corrected.
    """
    from scipy.special import stdtrit

    count = len(values)
    error = float(np.std(values, ddof=1)) / count**0.5
    reach = float(stdtrit(count - 1, 1 - 0.025 / looks)) * error
    mean = float(np.mean(values))
    return mean - reach, mean + reach


def judge(claim: str, measured: str, differences: Differences, looks: int = 1) -> Judgment:
    """Judge the claim that differences are above zero, with a correction for several `looks`."""
    pairs: dict[tuple[str, int], list[float]] = {}
    for line, difference in differences:
        pairs.setdefault((line["dataset"], line["seed"]), []).append(difference)
    values = [100 * float(np.mean(of_pair)) for of_pair in pairs.values()]
    if len(values) < FEWEST:
        have = f"{measured}: {len(values)} pairs of data set and seed, and {FEWEST} are needed"
        return Judgment(claim, have, "not enough data", pairs=len(values))
    low, high = interval(values, looks)
    verdict: Verdict = "holds" if low > 0 else "does not hold" if high < 0 else "not enough data"
    return Judgment(claim, measured, verdict, float(np.mean(values)), low, high, len(values))


class Evidence:
    """Cells, found by method and by where they were measured."""

    def __init__(self, lines: Iterable[Result]) -> None:
        # The latest results count, if inputs have changed.
        by_age = sorted(lines, key=lambda line: line.get("measured_at") or 0.0)
        names = (*_DRAW, "method")
        last = {tuple(line[key] for key in names): line for line in by_age if not line["classes"]}
        self._by_method: dict[str, list[Result]] = {}
        for line in last.values():
            self._by_method.setdefault(_settings(line)[0], []).append(line)

    def of(self, method: str, *, carried: bool | None = None) -> list[Result]:
        """Return the cells of a method: on the encoder of the fit, transferred, or both."""
        lines = self._by_method.get(method, [])
        if carried is None:
            return lines
        return [line for line in lines if (line["on"] != line["encoder"]) == carried]

    def against(
        self, method: str, other: str, *, carried: bool, on: str | None = None
    ) -> Differences:
        """Return the paired differences in accuracy of two methods."""
        same = method.partition("?")[0] == other.partition("?")[0]
        theirs = {_pair(line, same): line["accuracy"] for line in self.of(other)}
        differences = []
        for line in self.of(method, carried=carried):
            value = theirs.get(_pair(line, same), theirs.get(_place(line)))
            if value is not None and on in (None, line["on"]):
                differences.append((line, line["accuracy"] - value))
        return differences

    def over_shots(self, method: str, *, carried: bool) -> Differences:
        """Return the differences in accuracy between the most and the fewest shots."""
        by_shots: dict[tuple[Any, ...], dict[int, Result]] = {}
        for line in self.of(method, carried=carried):
            drawn = tuple(line[key] for key in (*_DRAW, *_INPUTS) if key != "shots")
            name = drawn, _settings(line)
            by_shots.setdefault(name, {})[line["shots"]] = line
        return [
            (lines[max(lines)], lines[max(lines)]["accuracy"] - lines[min(lines)]["accuracy"])
            for lines in by_shots.values()
            if len(lines) > 1
        ]

    def over_rounds(self, measure: Callable[[list[float]], float]) -> Differences:
        """Return a measure of the accuracies by round, for fits with more than ten rounds."""
        fits = [
            (line, [held_out for _, held_out in line.get("by_round") or []])
            for line in self.of("tpb", carried=False)
        ]
        return [(line, measure(rounds)) for line, rounds in fits if len(rounds) > 10]

    def targets(self, method: str) -> list[str]:
        """Return the encoders that a method was transferred to."""
        return list(dict.fromkeys(line["on"] for line in self.of(method, carried=True)))


def _settings(line: Result) -> tuple[str, frozenset[str]]:
    """Return a method with its compared settings, and its other settings."""
    name, _, query = line["method"].partition("?")
    settings = query.split("&") if query else []
    compared = [setting for setting in settings if setting.partition("=")[0] in _COMPARED]
    plain = "?".join([name, "&".join(compared)] if compared else [name])
    return plain, frozenset(settings).difference(compared)


def _pair(line: Result, same: bool) -> tuple[Any, ...]:
    """Return the key that paired results share, with other settings for the `same` method."""
    if not line["shots"]:
        return _place(line)
    shared = tuple(line[key] for key in (*_DRAW, "split", *_INPUTS))
    return (*shared, _settings(line)[1]) if same else shared


def _place(line: Result) -> tuple[Any, ...]:
    """Return the key of results without a draw."""
    return line["dataset"], line["on"], line["on_weights"]


def judge_claims(lines: Iterable[Result]) -> list[Judgment]:
    """Judge the nine claims."""
    cells = Evidence(lines)
    judged = [
        _all_of(claim, [judge("", *comparison) for comparison in comparisons.items()])
        for claim, comparisons in _claims(cells).items()
    ]
    return [*judged, _brittle(cells)]


def _claims(cells: Evidence) -> dict[str, dict[str, Differences]]:
    """Return each claim with its comparisons, as differences by description."""

    def ours_less(other: str, *, carried: bool = False) -> Differences:
        return cells.against("tpb", other, carried=carried)

    copies = ours_less("tpb?max_copies=1") + ours_less("tpb?max_copies=1", carried=True)
    pez = cells.against("pez", "zero-shot", carried=True)
    return {
        "More shots help": {
            "TPB at the most shots less TPB at the fewest": cells.over_shots("tpb", carried=False)
        },
        "Ahead of other methods made of text": {
            f"TPB less {TITLES[peer]}": ours_less(peer) for peer in ("pez", "llmbo", "proapo")
        },
        "What is gained survives transfer": {
            "TPB carried less zero-shot": ours_less("zero-shot", carried=True),
            "TPB carried, at the most shots less at the fewest": cells.over_shots(
                "tpb", carried=True
            ),
        },
        "Views are needed": {"TPB with views less TPB without": ours_less("tpb?views_per_round=0")},
        "Rounds help, and flatten": {
            "round 10 less round 1": cells.over_rounds(lambda r: r[9] - r[0]),
            "the gain up to round 10 less the gain after it": cells.over_rounds(
                lambda r: 2 * r[9] - r[0] - r[-1]
            ),
        },
        "Bigger pools help": {
            "the whole pool less CuPL": ours_less("tpb?sources=cupl"),
            "the whole pool less CuPL+DCLIP": ours_less("tpb?sources=cupl,dclip"),
        },
        "Copies help": {"TPB with copies less TPB without": copies},
        "PEZ fails after transfer": {"zero-shot less PEZ carried": _turned(pez)},
    }


def _turned(differences: Differences) -> Differences:
    return [(line, -difference) for line, difference in differences]


def _brittle(cells: Evidence) -> Judgment:
    """Judge emulated fine-tuning by its worst target, where it should be below zero-shot."""
    looks = [(method, on) for method in ("coop", "promptsrc") for on in cells.targets(method)]
    judged = [
        judge(
            "",
            f"zero-shot less {TITLES[f'{method}+eft']} on {on}",
            _turned(cells.against(method, "zero-shot", carried=True, on=on)),
            len(looks),
        )
        for method, on in looks
    ]
    claim = "Emulated fine-tuning is brittle"
    decided = [judgment for judgment in judged if judgment.difference is not None]
    if not decided:
        have = "no cells of CoOp+EFT or PromptSRC+EFT with enough pairs on one target"
        return Judgment(claim, have, "not enough data")
    return replace(max(decided, key=lambda judgment: judgment.difference or 0.0), claim=claim)


def _all_of(claim: str, parts: Sequence[Judgment]) -> Judgment:
    """Judge a claim of several parts by the part that is furthest from holding."""
    # Parts without results are ignored, unless all are.
    there = [judgment for judgment in parts if judgment.pairs] or list(parts)
    order: list[Verdict] = ["does not hold", "not enough data", "holds"]
    worst = min(there, key=lambda judgment: (order.index(judgment.verdict), judgment.low or 0.0))
    lacking = [
        judgment.measured.partition(":")[0]
        for judgment in parts
        if not judgment.pairs and judgment not in there
    ]
    measured = worst.measured + (f" (nothing of: {', '.join(lacking)})" if lacking else "")
    return replace(worst, claim=claim, measured=measured)
