"""Checks of what went in: pictures and words, and what boosting says about them."""

import bisect
import itertools

from promptboost.report.answers import Answer, fine, found, skipped
from promptboost.report.leaks import foreign_names
from promptboost.report.reading import Run
from promptboost.report.words import count, number, percent

__all__ = [
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
