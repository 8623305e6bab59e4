"""What each check looks at: results, images, words, and what boosting says about them."""

import bisect
import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from promptboost.evaluation.measures import OURS
from promptboost.model import PromptEnsemble
from promptboost.pool.text import NameFinder
from promptboost.report.drawings import wilson
from promptboost.report.phrases import count, number, percent, points
from promptboost.report.run import Run
from promptboost.runs.results import Results

Outcome = Literal["found", "fine", "not applicable"]

_MOST_DETAILS = 12


@dataclass(frozen=True)
class Answer:
    """The outcome of one check on one run."""

    outcome: Outcome
    summary: str
    details: tuple[str, ...] = ()
    type_next: str | None = None


def found(summary: str, *, details: Sequence[str] = (), type_next: str) -> Answer:
    """Return what was found, where, and what to type next."""
    rest = len(details) - _MOST_DETAILS
    shown = [*details[:_MOST_DETAILS], *([f"… and {rest} more"] if rest > 0 else [])]
    return Answer("found", summary, tuple(shown), type_next)


def fine(summary: str) -> Answer:
    """Return that there is nothing to look at, and on what grounds."""
    return Answer("fine", summary)


def skipped(reason: str) -> Answer:
    """Return why a check does not apply to this run."""
    return Answer("not applicable", reason)


def foreign_names(ensemble: PromptEnsemble) -> Iterator[tuple[str, str, str]]:
    """Find prompts that hold the name of a class which is not theirs.

    Names are met as :class:`~promptboost.pool.text.NameFinder` meets them: word by word without
    regard to case, the longest first.
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
    """PB001: without held-out images no accuracy is evidence."""
    task = run.results.task
    if run.results.held_out:
        return fine(
            f"{count(task.held_out_images, 'image was', 'images were')} kept from learning."
        )
    return found(
        "All images were used for learning.",
        type_next=f"promptboost evaluate {run.shell_name} OTHER_IMAGES",
    )


def no_better_than_zero_shot(run: Run) -> Answer:
    """PB002: the boosted ensemble should beat the class names alone."""
    pair = _pair(run.results, "zero-shot")
    if pair is None:
        return skipped(_NOTHING)
    zero, boosted = pair
    text = (
        f"Zero-shot {percent(zero)}, boosted {percent(boosted)} ({points(zero, boosted)} points)."
    )
    if boosted > zero:
        return fine(text)
    return found(text, type_next=f"promptboost show {run.shell_name}")


def behind_logistic(run: Run) -> Answer:
    """PB003: logistic regression on the same embeddings may do better."""
    pair = _pair(run.results, "logistic")
    if pair is None:
        return skipped("There is no logistic regression on held-out images to compare with.")
    logistic, boosted = pair
    text = f"Logistic regression {percent(logistic)}, boosted {percent(boosted)}."
    if boosted >= logistic:
        return fine(text)
    return found(text, type_next="promptboost fit DATA -o NEW_RUN --prompts MORE.json")


def wide_interval(run: Run) -> Answer:
    """PB004: few held-out images leave the accuracy uncertain."""
    results = run.results
    span = wilson(results.measured(), results.task.held_out_images)
    if span is None or not results.held_out:
        return skipped(_NOTHING)
    low, high = span
    text = f"The accuracy lies between {percent(low)} and {percent(high)} (95 % interval)."
    if high - low <= 0.1:
        return fine(text)
    return found(text, type_next=f"promptboost evaluate {run.shell_name} MORE_IMAGES")


def still_improving(run: Run) -> Answer:
    """PB005: the curve may still rise where it ends."""
    stages = run.results.staged
    fifth = len(stages) // 5
    if fifth < 2:
        return skipped("There are fewer than ten rounds.")
    values = [s.accuracy if run.results.held_out else s.learn_accuracy for s in stages]
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
    if not run.results.held_out:
        return skipped(_NOTHING)
    rows = [
        (zero - boosted, zero, boosted, row)
        for row in run.results.per_class
        if (zero := row.accuracy.get("zero-shot")) is not None
        and (boosted := row.accuracy.get(OURS)) is not None
        and row.count >= 5
    ]
    if not rows:
        return skipped("No class has five held-out images.")
    lost = sorted((row for row in rows if row[0] >= 0.1), key=lambda row: -row[0])
    if not lost:
        return fine("No class with five held-out images lost ten points.")
    return found(
        f"{count(len(lost), 'class', 'classes')} lost ten points or more.",
        details=[
            f"{row.class_name}: {percent(zero)} → {percent(boosted)} on {count(row.count, 'image')}"
            for _, zero, boosted, row in lost
        ],
        type_next=f"promptboost show {run.shell_name} --class {shlex.quote(lost[0][-1].class_name)}",
    )


def transfer_without_gain(run: Run) -> Answer:
    """PB007: the text should also help the encoders it was moved to."""
    rows = [
        (moved.encoder, zero, boosted)
        for moved in run.results.transfers
        if (zero := moved.of("zero-shot")) is not None and (boosted := moved.of(OURS)) is not None
    ]
    if not rows:
        return skipped("The ensemble was not tried on another encoder.")
    bad = [row for row in rows if row[2] <= row[1]]
    if not bad:
        return fine(f"It beats zero-shot on {number(len(rows))} of {number(len(rows))}.")
    return found(
        f"It does not beat zero-shot on {number(len(bad))} of {number(len(rows))}.",
        details=[f"{name}: {percent(zero)} → {percent(boosted)}" for name, zero, boosted in bad],
        type_next=f"promptboost fit DATA -o NEW_RUN --encoder {shlex.quote(bad[0][0])}",
    )


def figures_of_another_text(run: Run) -> Answer:
    """PB008: figures hold for the text they were measured on."""
    if run.results.ensemble_fingerprint is None:
        return skipped("The figures do not say which text they were measured on.")
    if not run.is_edited:
        return fine("The figures were measured on the text as it is.")
    return found(
        "The text was edited after these figures were measured.", type_next=run.measure_again
    )


def _pair(results: Results, other: str) -> tuple[float, float] | None:
    """Return held-out accuracies of another method and of the boosted ensemble."""
    first, second = results.measured(other), results.measured()
    return None if first is None or second is None or not results.held_out else (first, second)


LABEL_FACTOR = 3.0
# Where more than this share of the learning images is not recognised, the labels are not the reason.
MOST_SUSPECTED = 0.25


def fewer_shots(run: Run) -> Answer:
    """PB010: a class may have had fewer images than asked."""
    task = run.results.task
    if task.shots is None:
        return skipped("All learning images were used; no number of shots was asked.")
    short = task.shots * task.classes - task.learn_images
    text = (
        f"{number(task.shots)} shots of {count(task.classes, 'class', 'classes')} were asked; "
        f"there are {count(task.learn_images, 'learning image')}."
    )
    if short <= 0:
        return fine(text)
    return found(
        text, type_next=f"promptboost fit DATA -o NEW_RUN --shots {max(1, task.shots // 2)}"
    )


def unreadable_images(run: Run) -> Answer:
    """PB011: some files may not have been images."""
    bad = run.results.task.bad_images
    if not bad:
        return fine("Every file could be read.")
    return found(
        f"{count(len(bad), 'file was', 'files were')} left out.",
        details=[f"{item.path}: {item.reason}" for item in bad],
        type_next="promptboost fit DATA -o NEW_RUN",
    )


def suspected_labels(run: Run) -> Answer:
    """PB012: images that boosting could not get right may be labelled wrongly."""
    weights = run.ensemble.sample_weights
    if not weights:
        return skipped("The ensemble does not know the weights of its images.")
    if len(run.ensemble) == 1:
        return _not_recognised(run)
    total = sum(weights.values()) or 1.0
    factors = {image: len(weights) * w / total for image, w in weights.items()}
    heavy = sorted((p for p, f in factors.items() if f >= LABEL_FACTOR), key=lambda p: -factors[p])
    if not heavy:
        return fine(f"No image weighs {number(LABEL_FACTOR)} times the average.")
    taken = {h.image: f", labelled {h.label}, taken for {h.predicted}" for h in run.results.hardest}
    return found(
        f"{number(len(heavy))} of {count(len(weights), 'image')}: at least "
        f"{number(LABEL_FACTOR)} times the average weight.",
        details=[f"{p}: {factors[p]:.1f} ×{taken.get(p, '')}" for p in heavy],
        type_next="promptboost fit CORRECTED_DATA -o NEW_RUN",
    )


def _not_recognised(run: Run) -> Answer:
    """PB012 after one round, which moves weights too little to tell: what is still taken for another."""
    boosted = run.results.method(OURS)
    right = None if boosted is None else boosted.learn_accuracy
    if right is not None and right < 1 - MOST_SUSPECTED:
        return skipped("Too many learning images are not recognised to suspect any of them.")
    wrong = [item for item in run.results.hardest if item.predicted != item.label]
    if not wrong:
        return fine("The hardest learning images are recognised.")
    return found(
        f"{number(len(wrong))} of the {count(len(run.results.hardest), 'hardest learning image')}: "
        "taken for another class.",
        details=[
            f"{item.image}: labelled {item.label}, taken for {item.predicted}" for item in wrong
        ],
        type_next="promptboost fit CORRECTED_DATA -o NEW_RUN",
    )


def weight_on_few(run: Run) -> Answer:
    """PB013: boosting may have ended up looking at a handful of images."""
    if len(run.ensemble) == 1:
        return skipped("There is one round, and no later one that the weights could lead astray.")
    weights = sorted(run.ensemble.sample_weights.values(), reverse=True)
    if len(weights) < 20:
        return skipped("The weights of twenty learning images at least are needed.")
    sums = list(itertools.accumulate(weights))
    few = bisect.bisect_left(sums, sums[-1] / 2) + 1
    text = f"Half of all weight is on {number(few)} of {count(len(weights), 'image')}."
    if few > 0.05 * len(weights):
        return fine(text)
    fewer = max(1, len(run.ensemble) // 2)
    return found(text, type_next=f"promptboost fit DATA -o NEW_RUN --rounds {fewer}")


def descriptions_missing(run: Run) -> Answer:
    """PB020: a class may have had templates only."""
    missing = run.results.pool.missing
    if not missing:
        return fine("Every class has descriptions, or none were asked for.")
    return found(
        f"{count(len(missing), 'class has', 'classes have')} no descriptions.",
        details=missing,
        type_next="promptboost fit DATA -o NEW_RUN --prompts COMPLETED.json",
    )


def descriptions_unused(run: Run) -> Answer:
    """PB021: descriptions may be filed under a name that is no class."""
    unused = run.results.pool.unused
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
