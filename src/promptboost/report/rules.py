"""Checks of what went in: pictures and words, and what boosting says about them."""

import bisect
import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from promptboost.model import PromptEnsemble
from promptboost.pool.text import NameFinder
from promptboost.report.drawings import wilson
from promptboost.report.phrases import count, number, percent, points
from promptboost.report.results import Metrics, Run

__all__ = [
    "Answer",
    "Outcome",
    "fine",
    "found",
    "skipped",
    "foreign_names",
    "behind_probe",
    "classes_that_lost",
    "figures_of_another_text",
    "no_better_than_zero_shot",
    "nothing_held_out",
    "still_improving",
    "transfer_without_gain",
    "wide_interval",
    "descriptions_missing",
    "descriptions_unused",
    "fewer_shots",
    "foreign_prompts",
    "pool_of_little_use",
    "round_that_dominates",
    "suspected_labels",
    "unreadable_pictures",
    "weight_on_few",
]

Outcome = Literal["found", "fine", "not applicable"]

_MOST_DETAILS = 12


@dataclass(frozen=True)
class Answer:
    """The outcome of one check on one run.

    Attributes
    ----------
    outcome : {"found", "fine", "not applicable"}
        Whether there is something to look at.
    summary : str
        One sentence with the figures.
    details : tuple of str
        Where it was found.
    type_next : str, optional
        A command or a line of Python that helps.
    """

    outcome: Outcome
    summary: str
    details: tuple[str, ...] = ()
    type_next: str | None = None


def found(summary: str, *, details: Sequence[str] = (), type_next: str) -> Answer:
    """Say what was found, where, and what to type next.

    Examples
    --------
    >>> found("20 things.", details=["thing"] * 20, type_next="ls").details[-1]
    '… and 8 more'
    """
    rest = len(details) - _MOST_DETAILS
    shown = [*details[:_MOST_DETAILS], *([f"… and {rest} more"] if rest > 0 else [])]
    return Answer("found", summary, tuple(shown), type_next)


def fine(summary: str) -> Answer:
    """Say that there is nothing to look at, and on what grounds."""
    return Answer("fine", summary)


def skipped(reason: str) -> Answer:
    """Say why a check has nothing to say about this run."""
    return Answer("not applicable", reason)


def foreign_names(ensemble: PromptEnsemble) -> Iterator[tuple[str, str, str]]:
    """Find prompts that hold the name of a class which is not theirs.

    Names are met as :class:`~promptboost.pool.text.NameFinder` meets them: word by word without
    regard to case, the longest first.

    Yields
    ------
    tuple of str
        The class, the prompt, and the class it names; one name a prompt.

    Examples
    --------
    >>> from promptboost.model import Round
    >>> banks = {"cat": {"A cat, no dog.": 1, "dogged": 1}, "dog": {"my dog": 1}}
    >>> list(foreign_names(PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.1, 0.1),))))
    [('cat', 'A cat, no dog.', 'dog')]
    """
    finder = NameFinder(ensemble.class_names)
    for own in ensemble.class_names:
        texts = dict.fromkeys(text for item in ensemble.rounds for text in item.banks[own])
        for text in texts:
            other = next((name for name in finder.named(text) if name != own), None)
            if other is not None:
                yield own, text, other


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
    """Return held-out accuracies of another method and of the boosted ensemble."""
    first, second = metrics.measured(other), metrics.measured("boosted")
    return None if first is None or second is None or not metrics.held_out else (first, second)


LABEL_FACTOR = 3.0
# Where more than this share of the learning pictures is not recognised, the labels are not the reason.
MOST_SUSPECTED = 0.25


def fewer_shots(run: Run) -> Answer:
    """PB010: a class may have had fewer pictures than asked."""
    task = run.metrics.task
    if task.shots is None:
        return skipped("All learning pictures were used; no number of shots was asked.")
    short = task.shots * task.classes - task.learn_pictures
    text = (
        f"{number(task.shots)} shots of {count(task.classes, 'class', 'classes')} were asked; "
        f"there are {count(task.learn_pictures, 'learning picture')}."
    )
    if short <= 0:
        return fine(text)
    return found(
        text, type_next=f"promptboost fit DATA -o NEW_RUN --shots {max(1, task.shots // 2)}"
    )


def unreadable_pictures(run: Run) -> Answer:
    """PB011: some files may not have been pictures."""
    bad = run.metrics.task.bad_pictures
    if not bad:
        return fine("Every file could be read.")
    return found(
        f"{count(len(bad), 'file was', 'files were')} left out.",
        details=[f"{item.path}: {item.reason}" for item in bad],
        type_next="promptboost fit DATA -o NEW_RUN",
    )


def suspected_labels(run: Run) -> Answer:
    """PB012: pictures that boosting could not get right may be labelled wrongly."""
    weights = run.ensemble.sample_weights
    if not weights:
        return skipped("The ensemble does not know the weights of its pictures.")
    if len(run.ensemble) == 1:
        return _not_recognised(run)
    total = sum(weights.values()) or 1.0
    factors = {picture: len(weights) * w / total for picture, w in weights.items()}
    heavy = sorted((p for p, f in factors.items() if f >= LABEL_FACTOR), key=lambda p: -factors[p])
    if not heavy:
        return fine(f"No picture weighs {number(LABEL_FACTOR)} times the average.")
    taken = {
        h.picture: f", labelled {h.label}, taken for {h.predicted}" for h in run.metrics.hardest
    }
    return found(
        f"{number(len(heavy))} of {count(len(weights), 'picture')}: at least "
        f"{number(LABEL_FACTOR)} times the average weight.",
        details=[f"{p}: {factors[p]:.1f} ×{taken.get(p, '')}" for p in heavy],
        type_next="promptboost fit CORRECTED_DATA -o NEW_RUN",
    )


def _not_recognised(run: Run) -> Answer:
    """PB012 after one round, which moves weights too little to tell: what is still taken for another."""
    boosted = run.metrics.method("boosted")
    right = None if boosted is None else boosted.learn_accuracy
    if right is not None and right < 1 - MOST_SUSPECTED:
        return skipped("Too many learning pictures are not recognised to suspect any of them.")
    wrong = [item for item in run.metrics.hardest if item.predicted != item.label]
    if not wrong:
        return fine("The hardest learning pictures are recognised.")
    return found(
        f"{number(len(wrong))} of the {count(len(run.metrics.hardest), 'hardest learning picture')}: "
        "taken for another class.",
        details=[
            f"{item.picture}: labelled {item.label}, taken for {item.predicted}" for item in wrong
        ],
        type_next="promptboost fit CORRECTED_DATA -o NEW_RUN",
    )


def weight_on_few(run: Run) -> Answer:
    """PB013: boosting may have ended up looking at a handful of pictures."""
    if len(run.ensemble) == 1:
        return skipped("There is one round, and no later one that the weights could lead astray.")
    weights = sorted(run.ensemble.sample_weights.values(), reverse=True)
    if len(weights) < 20:
        return skipped("The weights of twenty learning pictures at least are needed.")
    sums = list(itertools.accumulate(weights))
    few = bisect.bisect_left(sums, sums[-1] / 2) + 1
    text = f"Half of all weight is on {number(few)} of {count(len(weights), 'picture')}."
    if few > 0.05 * len(weights):
        return fine(text)
    fewer = max(1, len(run.ensemble) // 2)
    return found(text, type_next=f"promptboost fit DATA -o NEW_RUN --rounds {fewer}")


def descriptions_missing(run: Run) -> Answer:
    """PB020: a class may have had templates only."""
    missing = run.metrics.pool.missing
    if not missing:
        return fine("Every class has descriptions, or none were asked for.")
    return found(
        f"{count(len(missing), 'class has', 'classes have')} no descriptions.",
        details=missing,
        type_next="promptboost fit DATA -o NEW_RUN --prompts COMPLETED.json",
    )


def descriptions_unused(run: Run) -> Answer:
    """PB021: descriptions may be filed under a name that is no class."""
    unused = run.metrics.pool.unused
    if not unused:
        return fine("All descriptions belong to a class.")
    return found(
        f"{count(len(unused), 'name', 'names')} in the descriptions: not among the classes.",
        details=unused,
        type_next="promptboost fit DATA -o NEW_RUN --prompts CORRECTED.json",
    )


def foreign_prompts(run: Run) -> Answer:
    """PB022: a prompt may name another class."""
    leaks = list(foreign_names(run.ensemble))
    if not leaks:
        return fine("No chosen prompt names another class.")
    own, text, _ = leaks[0]
    return found(
        f"{number(len(leaks))} of {count(run.ensemble.n_prompts, 'chosen prompt')}.",
        details=[f"{own}: “{text}” names {other}" for own, text, other in leaks],
        type_next=f"PromptEnsemble.load('ensemble.json').remove({text!r}, {own!r}).save('edited.json')",
    )


def pool_of_little_use(run: Run) -> Answer:
    """PB023: composing may not have improved on the templates."""
    rounds = run.ensemble.rounds
    idle = sum(item.error >= item.template_error for item in rounds)
    text = f"{number(idle)} of {count(len(rounds), 'round')} found nothing better than a template."
    if len(rounds) == 1:
        text = (
            f"Error on the crops learnt from: {percent(rounds[0].template_error)} with the template "
            f"alone, {percent(rounds[0].error)} with the chosen prompts."
        )
    if 2 * idle <= len(rounds):
        return fine(text)
    return found(text, type_next="promptboost fit DATA -o NEW_RUN --prompts MORE.json")


def round_that_dominates(run: Run) -> Answer:
    """PB024: with weighted votes one round can outvote all others."""
    if run.ensemble.algorithm == "samme.r":
        return skipped("In SAMME.R all rounds have the same vote.")
    if len(run.ensemble) < 3:
        return skipped("There are fewer than three rounds.")
    votes = run.ensemble.votes()
    text = f"Round {votes.index(max(votes)) + 1} has {percent(max(votes))} of the vote."
    if max(votes) <= 0.5:
        return fine(text)
    return found(text, type_next="promptboost fit DATA -o NEW_RUN")
