"""Checks of the figures: is it better, is that known well enough, would more help."""

import shlex

from promptboost.report.answers import Answer, fine, found, skipped
from promptboost.report.metrics import Metrics
from promptboost.report.reading import Run
from promptboost.report.svg import wilson
from promptboost.report.words import count, number, percent, points

__all__ = [
    "behind_probe",
    "classes_that_lost",
    "figures_of_another_text",
    "no_better_than_zero_shot",
    "nothing_held_out",
    "still_improving",
    "transfer_without_gain",
    "wide_interval",
]

_NOTHING = "Nothing was held out."


def nothing_held_out(run: Run) -> Answer:
    """PB001: without held-out pictures no accuracy is evidence."""
    task = run.metrics.task
    if run.metrics.held_out:
        return fine(
            f"{count(task.held_out_pictures, 'picture was', 'pictures were')} kept from learning."
        )
    return found(
        "All pictures were used for learning.",
        type_next=f"promptboost evaluate {run.shell_name} OTHER_PICTURES",
    )


def no_better_than_zero_shot(run: Run) -> Answer:
    """PB002: the boosted ensemble should beat the class names alone."""
    pair = _pair(run.metrics, "zero_shot")
    if pair is None:
        return skipped(_NOTHING)
    zero, boosted = pair
    text = (
        f"Zero-shot {percent(zero)}, boosted {percent(boosted)} ({points(zero, boosted)} points)."
    )
    if boosted > zero:
        return fine(text)
    return found(text, type_next=f"promptboost show {run.shell_name}")


def behind_probe(run: Run) -> Answer:
    """PB003: logistic regression on the same embeddings may do better."""
    pair = _pair(run.metrics, "probe")
    if pair is None:
        return skipped("There is no logistic regression on held-out pictures to compare with.")
    probe, boosted = pair
    text = f"Logistic regression {percent(probe)}, boosted {percent(boosted)}."
    if boosted >= probe:
        return fine(text)
    return found(text, type_next="promptboost fit DATA -o NEW_RUN --prompts MORE.json")


def wide_interval(run: Run) -> Answer:
    """PB004: few held-out pictures leave the accuracy uncertain."""
    metrics = run.metrics
    span = wilson(metrics.measured("boosted"), metrics.task.held_out_pictures)
    if span is None or not metrics.held_out:
        return skipped(_NOTHING)
    low, high = span
    text = f"The accuracy lies between {percent(low)} and {percent(high)} (95 % interval)."
    if high - low <= 0.1:
        return fine(text)
    return found(text, type_next=f"promptboost evaluate {run.shell_name} MORE_PICTURES")


def still_improving(run: Run) -> Answer:
    """PB005: the curve may still rise where it ends."""
    stages = run.metrics.staged
    fifth = len(stages) // 5
    if fifth < 2:
        return skipped("There are fewer than ten rounds.")
    values = [s.accuracy if run.metrics.held_out else s.learn_accuracy for s in stages]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return skipped("The curve has gaps.")
    before = sum(known[-2 * fifth : -fifth]) / fifth
    last = sum(known[-fifth:]) / fifth
    text = f"The last {fifth} rounds changed the mean by {points(before, last)} points."
    if last - before <= 0.005:
        return fine(text)
    return found(text, type_next=f"promptboost fit DATA -o NEW_RUN --rounds {2 * len(stages)}")


def classes_that_lost(run: Run) -> Answer:
    """PB006: a better average can hide a class that got worse."""
    if not run.metrics.held_out:
        return skipped(_NOTHING)
    rows = [
        (row.zero_shot - row.boosted, row)
        for row in run.metrics.per_class
        if row.zero_shot is not None and row.boosted is not None and row.count >= 5
    ]
    if not rows:
        return skipped("No class has five held-out pictures.")
    lost = sorted(((drop, r) for drop, r in rows if drop >= 0.1), key=lambda pair: -pair[0])
    if not lost:
        return fine("No class with five held-out pictures lost ten points.")
    return found(
        f"{count(len(lost), 'class', 'classes')} lost ten points or more.",
        details=[
            f"{row.class_name}: {percent(row.zero_shot)} → {percent(row.boosted)} "
            f"on {count(row.count, 'picture')}"
            for _, row in lost
        ],
        type_next=f"promptboost show {run.shell_name} --class {shlex.quote(lost[0][1].class_name)}",
    )


def transfer_without_gain(run: Run) -> Answer:
    """PB007: the text should also help the encoders it was moved to."""
    rows = [t for t in run.metrics.transfers if t.zero_shot is not None and t.boosted is not None]
    if not rows:
        return skipped("The ensemble was not tried on another encoder.")
    bad = [t for t in rows if (t.boosted or 0.0) <= (t.zero_shot or 0.0)]
    if not bad:
        return fine(f"It beats zero-shot on {number(len(rows))} of {number(len(rows))}.")
    return found(
        f"It does not beat zero-shot on {number(len(bad))} of {number(len(rows))}.",
        details=[f"{t.encoder}: {percent(t.zero_shot)} → {percent(t.boosted)}" for t in bad],
        type_next=f"promptboost fit DATA -o NEW_RUN --encoder {shlex.quote(bad[0].encoder)}",
    )


def figures_of_another_text(run: Run) -> Answer:
    """PB008: figures hold for the text they were measured on."""
    if run.metrics.ensemble_fingerprint is None:
        return skipped("The figures do not say which text they were measured on.")
    if not run.is_edited:
        return fine("The figures were measured on the text as it is.")
    return found(
        "The text was edited after these figures were measured.", type_next=run.measure_again
    )


def _pair(metrics: Metrics, other: str) -> tuple[float, float] | None:
    """Give held-out accuracies of another method and of the boosted ensemble."""
    first, second = metrics.measured(other), metrics.measured("boosted")
    return None if first is None or second is None or not metrics.held_out else (first, second)
