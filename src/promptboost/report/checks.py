"""Numbered checks of a run, each with its meaning and the command to type next.

Numbers never change their meaning: PB00x are about results, PB01x about images, PB02x about prompts.
"""

import bisect
import itertools
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from promptboost.baselines import OURS, TEXT
from promptboost.errors import count, percent
from promptboost.model import PromptEnsemble
from promptboost.pool.text import NameFinder
from promptboost.report.svg import number, points, wilson
from promptboost.run.overlap import CopyCount
from promptboost.run.results import HardImage, Results

if TYPE_CHECKING:
    from promptboost.report.page import Run

_MOST_DETAILS = 12
_LABEL_FACTOR = 3.0
_SIZE_FACTOR = 3  # between class sizes that are called uneven
# If a larger share of the training images is predicted wrongly, label errors are not the reason.
_MOST_SUSPECTED = 0.25
# Below this share of the margin, the residual decides most predictions.
_LEAST_WORDS = 0.25
_NOTHING = "Nothing was held out."
_FIT = "promptboost fit DATA -o NEW_RUN"
_CORRECTED = "promptboost fit CORRECTED_DATA -o NEW_RUN"


@dataclass(frozen=True)
class Answer:
    """The outcome of one check on one run."""

    outcome: Literal["found", "fine", "not applicable"]
    summary: str
    details: tuple[str, ...] = ()
    type_next: str | None = None


def _found_if(
    problem: object, text: str, type_next: str, *, fine: str = "", details: Sequence[str] = ()
) -> Answer:
    """Return a finding if there is a problem, else that the check passed: `fine`, or the same text."""
    if not problem:
        return Answer("fine", fine or text)
    left = len(details) - _MOST_DETAILS
    more = [f"… and {left} more"] if left > 0 else []
    return Answer("found", text, (*details[:_MOST_DETAILS], *more), type_next)


_skipped = partial(Answer, "not applicable")
Look = Callable[["Run"], Answer]


@dataclass(frozen=True)
class CheckRule:
    """One numbered check: an issue makes a metric doubtful, a tip suggests an improvement."""

    severity: Literal["issue", "tip"]
    code: str
    title: str
    meaning: str
    look: Look


class Check(NamedTuple):
    """A rule and its answer for one run."""

    rule: CheckRule
    answer: Answer


#: All checks, in the order of their numbers.
RULES: list[CheckRule] = []


def run_checks(run: "Run") -> tuple[Check, ...]:
    """Apply all rules to a run, in the order of their numbers."""
    return tuple(Check(rule, rule.look(run)) for rule in RULES)


def _rule(
    severity: Literal["issue", "tip"], code: str, title: str, meaning: str
) -> Callable[[Look], Look]:
    def add(look: Look) -> Look:
        RULES.append(CheckRule(severity, code, title, meaning, look))
        return look

    return add


_issue, _tip = partial(_rule, "issue"), partial(_rule, "tip")


@_issue(
    "PB001",
    "Nothing was held out",
    "Accuracy on the training images is no evidence of accuracy on new ones. Evaluate the run on images "
    "it was not trained on.",
)
def _nothing_held_out(run: "Run") -> Answer:
    return _found_if(
        not run.results.held_out,
        "All images were used for training.",
        f"promptboost evaluate {run.shell_name} OTHER_IMAGES",
        fine=f"{count(run.results.task.held_out_images, 'image was', 'images were')} held out.",
    )


@_issue(
    "PB002",
    "Not better than zero-shot",
    "The class names in one template do as well. More images, or descriptions of what they show, may "
    "help; otherwise use zero-shot.",
)
def _no_better_than_zero_shot(run: "Run") -> Answer:
    pair = _pair(run.results, "zero-shot")
    if pair is None:
        return _skipped(_NOTHING)
    zero, boosted = pair
    text = (
        f"Zero-shot {percent(zero)}, boosted {percent(boosted)} ({points(zero, boosted)} points)."
    )
    return _found_if(boosted <= zero, text, f"promptboost show {run.shell_name}")


@_tip(
    "PB003",
    "Logistic regression is better",
    "On these images a classifier without text is more accurate. It cannot be read or transferred "
    "to another encoder; a richer pool of prompts narrows the gap.",
)
def _behind_logistic(run: "Run") -> Answer:
    pair = _pair(run.results, "logistic")
    if pair is None:
        return _skipped("There is no logistic regression on held-out images to compare with.")
    logistic, boosted = pair
    text = f"Logistic regression {percent(logistic)}, boosted {percent(boosted)}."
    return _found_if(boosted < logistic, text, f"{_FIT} --prompts MORE.json")


@_tip(
    "PB004",
    "Accuracy known only roughly",
    "With so few held-out images the true accuracy may differ from the figure by more than "
    "five points.",
)
def _wide_interval(run: "Run") -> Answer:
    results = run.results
    span = wilson(results.measured(), results.task.held_out_images)
    if span is None or not results.held_out:
        return _skipped(_NOTHING)
    low, high = span
    text = f"The accuracy lies between {percent(low)} and {percent(high)} (95 % interval)."
    return _found_if(high - low > 0.1, text, f"promptboost evaluate {run.shell_name} MORE_IMAGES")


@_tip(
    "PB005",
    "Rounds still improving",
    "The curve still rises at its end, so more rounds may help. Choosing the number of rounds on the "
    "held-out images makes their accuracy too high.",
)
def _still_improving(run: "Run") -> Answer:
    stages = run.results.staged
    fifth = len(stages) // 5
    if fifth < 2:
        return _skipped("There are fewer than ten rounds.")
    values = [s.accuracy if run.results.held_out else s.learn_accuracy for s in stages]
    accuracies = [v for v in values if v is not None]
    if len(accuracies) < len(values):
        return _skipped("The curve has gaps.")
    previous = sum(accuracies[-2 * fifth : -fifth]) / fifth
    last = sum(accuracies[-fifth:]) / fifth
    text = f"The last {fifth} rounds changed the mean by {points(previous, last)} points."
    return _found_if(last - previous > 0.005, text, f"{_FIT} --rounds {2 * len(stages)}")


@_tip(
    "PB006",
    "A class got worse",
    "The average rose at the cost of some classes. Read their prompts and confusions below.",
)
def _classes_that_lost(run: "Run") -> Answer:
    if not run.results.held_out:
        return _skipped(_NOTHING)
    rows = [
        (boosted - zero, zero, boosted, row)
        for row in run.results.per_class
        if (zero := row.accuracy.get("zero-shot")) is not None
        and (boosted := row.accuracy.get(OURS)) is not None
        and row.count >= 5
    ]
    if not rows:
        return _skipped("No class has five held-out images.")
    rows.sort(key=lambda row: row[0])
    lost = [row for row in rows if row[0] <= -0.1]
    return _found_if(
        lost,
        f"{count(len(lost), 'class', 'classes')} lost ten points or more.",
        f"promptboost show {run.shell_name} --class {shlex.quote(rows[0][-1].class_name)}",
        fine="No class with five held-out images lost ten points.",
        details=[
            f"{row.class_name}: {percent(zero)} → {percent(boosted)} on {count(row.count, 'image')}"
            for _, zero, boosted, row in lost
        ],
    )


@_issue(
    "PB007",
    "No gain after transfer",
    "On that encoder the sentences do no better than the class names: their gain may be specific to the "
    "first encoder. Fit on that encoder instead.",
)
def _transfer_without_gain(run: "Run") -> Answer:
    rows = [
        (moved.encoder, zero, boosted)
        for moved in run.results.transfers
        if not moved.learned_on
        and (zero := moved.accuracy.get("zero-shot")) is not None
        # The text alone: a residual is fitted on that encoder.
        and (boosted := moved.accuracy.get(TEXT, moved.accuracy.get(OURS))) is not None
    ]
    if not rows:
        return _skipped("The ensemble was not transferred to another encoder.")
    bad = [row for row in rows if row[2] <= row[1]]
    return _found_if(
        bad,
        f"It does not beat zero-shot on {number(len(bad))} of {number(len(rows))}.",
        f"{_FIT} --encoder {shlex.quote((bad or rows)[0][0])}",
        fine=f"It beats zero-shot on {number(len(rows))} of {number(len(rows))}.",
        details=[f"{name}: {percent(zero)} → {percent(boosted)}" for name, zero, boosted in bad],
    )


@_issue(
    "PB008",
    "Results of another text",
    "All accuracies were measured before the text was edited; the prompts shown are the edited ones. "
    "Measure again on held-out images before quoting an accuracy.",
)
def _figures_of_another_text(run: "Run") -> Answer:
    if run.results.ensemble_fingerprint is None:
        return _skipped("The results do not record the text they were measured on.")
    return _found_if(
        run.is_edited,
        "The text was edited after it was measured.",
        run.measure_again,
        fine="The results are of the current text.",
    )


def _pair(results: Results, other: str) -> tuple[float, float] | None:
    """Return held-out accuracies of another method and of the boosted ensemble."""
    first, second = results.measured(other), results.measured()
    return None if first is None or second is None or not results.held_out else (first, second)


@_tip(
    "PB009",
    "The sentences contribute little",
    "The prompts of the pool do not separate these classes: the residual decides most predictions. Add "
    "sentences, or rely on the images; on another encoder the text alone will do far worse.",
)
def _words_carry_little(run: "Run") -> Answer:
    residual = run.results.residual
    if residual is None or not residual.used:
        return _skipped("There is no residual.")
    least = sorted(residual.class_text_shares.items(), key=lambda pair: pair[1])
    return _found_if(
        residual.text_share < _LEAST_WORDS,
        f"The sentences account for {percent(residual.text_share)} of the margin.",
        f"{_FIT} --prompts SENTENCES",
        details=[f"{name}: {percent(share)}" for name, share in least],
    )


@_issue(
    "PB010",
    "Fewer images than shots",
    "All classes have the same weight in the fit, but a class with fewer images is learned from less. Add "
    "images, or use fewer shots.",
)
def _fewer_shots(run: "Run") -> Answer:
    task = run.results.task
    if task.shots is None:
        return _skipped("All training images were used; there is no number of shots.")
    short = task.shots * task.classes - task.learn_images
    text = (
        f"{number(task.shots)} shots of {count(task.classes, 'class', 'classes')}, but "
        f"{count(task.learn_images, 'training image')}."
    )
    return _found_if(short > 0, text, f"{_FIT} --shots {max(1, task.shots // 2)}")


@_tip(
    "PB011",
    "Unreadable images",
    "These files were skipped; the reasons are given. Repair or delete them, then fit again.",
)
def _unreadable_images(run: "Run") -> Answer:
    bad = run.results.task.bad_images
    return _found_if(
        bad,
        f"{count(len(bad), 'file was', 'files were')} left out.",
        _FIT,
        fine="Every file could be read.",
        details=[f"{image.path}: {image.reason}" for image in bad],
    )


@_tip(
    "PB012",
    "Suspected label errors",
    "These training images stayed hard. Their label may be wrong, or the image may show two classes.",
)
def _suspected_labels(run: "Run") -> Answer:
    weights = run.ensemble.sample_weights
    if not weights:
        return _skipped("The ensemble has no weights of its images.")
    if len(run.ensemble) == 1:
        return _wrong_after_one_round(run)
    total = sum(weights.values()) or 1.0
    factors = {image: len(weights) * w / total for image, w in weights.items()}
    heavy = sorted((p for p, f in factors.items() if f >= _LABEL_FACTOR), key=lambda p: -factors[p])
    labels = {h.image: f", {_labels(h)}" for h in run.results.hardest}
    return _found_if(
        heavy,
        f"{number(len(heavy))} of {count(len(weights), 'image')}: at least "
        f"{number(_LABEL_FACTOR)} times the average weight.",
        _CORRECTED,
        fine=f"No image weighs {number(_LABEL_FACTOR)} times the average.",
        details=[f"{p}: {factors[p]:.1f} ×{labels.get(p, '')}" for p in heavy],
    )


def _labels(image: HardImage) -> str:
    return f"labeled {image.label}, predicted {image.predicted}"


def _wrong_after_one_round(run: "Run") -> Answer:
    """Return PB012 after one round: wrong predictions, as weights hardly differ yet."""
    boosted = run.results.method(OURS)
    right = None if boosted is None else boosted.learn_accuracy
    if right is not None and right < 1 - _MOST_SUSPECTED:
        return _skipped("Too many training images are predicted wrongly to suspect any of them.")
    wrong = [image for image in run.results.hardest if image.predicted != image.label]
    return _found_if(
        wrong,
        f"{number(len(wrong))} of the {count(len(run.results.hardest), 'hardest training image')}: "
        "predicted wrongly.",
        _CORRECTED,
        fine="The hardest training images are predicted correctly.",
        details=[f"{image.image}: {_labels(image)}" for image in wrong],
    )


@_tip(
    "PB013",
    "A few images hold the weight",
    "Late rounds were composed for these images alone. If they are outliers, fewer rounds do as well; "
    "correct or remove those that are wrong.",
)
def _weight_on_few(run: "Run") -> Answer:
    if len(run.ensemble) == 1:
        return _skipped("There is only one round.")
    weights = sorted(run.ensemble.sample_weights.values(), reverse=True)
    if len(weights) < 20:
        return _skipped("There are fewer than twenty training images.")
    sums = list(itertools.accumulate(weights))
    few = bisect.bisect_left(sums, sums[-1] / 2) + 1
    text = f"Half of all weight is on {number(few)} of {count(len(weights), 'image')}."
    fewer = max(1, len(run.ensemble) // 2)
    return _found_if(few <= 0.05 * len(weights), text, f"{_FIT} --rounds {fewer}")


_BEFORE = "Copies were not searched for."


@_issue(
    "PB014",
    "Held-out images in the training set",
    "They are copies of training images, byte for byte or visually, and make the accuracy too high: quote "
    "the accuracy without them, and remove them.",
)
def _leaked_images(run: "Run") -> Answer:
    overlap = run.results.overlap
    if overlap is None:
        return _skipped(_BEFORE)
    if not run.results.held_out:
        return _skipped(_NOTHING)
    leaks, boosted = overlap.leaks, run.results.method(OURS)
    unseen = None if boosted is None else boosted.unseen_accuracy
    return _found_if(
        leaks.images,
        f"{number(leaks.images)} of {count(run.results.task.held_out_images, 'held-out image')}, "
        f"{number(leaks.exact)} byte for byte; boosted "
        f"{percent(run.results.measured())}, {percent(unseen)} {overlap.without}.",
        _CORRECTED,
        fine="No held-out image is a copy of a training image.",
        details=leaks.names(),
    )


@_issue(
    "PB015",
    "One image under two labels",
    "One of the labels is wrong, or the classes overlap: no classifier can be right about both.",
)
def _contradictory_labels(run: "Run") -> Answer:
    return _copied(run, "contradictions", "under another label", labels=True)


@_tip(
    "PB016",
    "Repeated images",
    "A repeated image counts several times, in the fit and in the accuracy.",
)
def _repeated_images(run: "Run") -> Answer:
    return _copied(run, "repeats", "in the same class")


def _copied(run: "Run", kind: str, where: str, *, labels: bool = False) -> Answer:
    if run.results.overlap is None:
        return _skipped(_BEFORE)
    copies: CopyCount = getattr(run.results.overlap, kind)
    return _found_if(
        copies.images,
        f"{count(copies.images, 'image has', 'images have')} a copy {where}; "
        f"{number(copies.learned)} of them are training images.",
        _CORRECTED,
        fine=f"No image has a copy {where}.",
        details=copies.names(labels),
    )


@_tip(
    "PB017",
    "Uneven classes",
    "All classes have the same weight in the fit, so an image of a small class counts more than one of a "
    "large class, and a small class is learned from less. Add images to the small classes.",
)
def _uneven_classes(run: "Run") -> Answer:
    recorded = run.results.task.class_sizes or {}
    sizes = {name: size for name, size in recorded.items() if size}
    if not sizes:
        return _skipped("The results do not record the class sizes.")
    smallest, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    low, high = sizes[smallest], sizes[largest]
    small = sorted((n for n in sizes if sizes[n] * _SIZE_FACTOR < high), key=sizes.__getitem__)
    return _found_if(
        small,
        f"The smallest class, {smallest}, has {count(low, 'training image')}, the largest, {largest}, has "
        f"{number(high)}.",
        "promptboost fit MORE_IMAGES -o NEW_RUN",
        fine=f"Classes have {number(low)} to {count(high, 'training image')}.",
        details=[f"{name}: {count(sizes[name], 'image')}" for name in small],
    )


@_tip(
    "PB020",
    "Classes without descriptions",
    "For these classes the fit could choose among templates only.",
)
def _descriptions_missing(run: "Run") -> Answer:
    missing = run.results.pool.missing
    return _found_if(
        missing,
        f"{count(len(missing), 'class has', 'classes have')} no descriptions.",
        f"{_FIT} --prompts COMPLETED.json",
        fine="Every class has descriptions, or there are none at all.",
        details=missing,
    )


@_tip(
    "PB021",
    "Descriptions of unknown classes",
    "These descriptions were not used. Is the name spelled as the class is?",
)
def _descriptions_unused(run: "Run") -> Answer:
    unused = run.results.pool.unused
    return _found_if(
        unused,
        f"{count(len(unused), 'name', 'names')} in the descriptions: not among the classes.",
        f"{_FIT} --prompts CORRECTED.json",
        fine="All descriptions belong to a class.",
        details=unused,
    )


def foreign_names(ensemble: PromptEnsemble) -> Iterator[tuple[str, str, str]]:
    """Find prompts with the name of another class; see :class:`~promptboost.pool.text.NameFinder`."""
    finder = NameFinder(ensemble.class_names)
    for class_name in ensemble.class_names:
        for text in dict.fromkeys(t for r in ensemble.rounds for t in r.banks[class_name]):
            other = next((name for name in finder.named(text) if name != class_name), None)
            if other is not None:
                yield class_name, text, other


@_tip(
    "PB022",
    "A prompt names another class",
    "It may be right (“larger than a cat”), or a slip in the descriptions that makes two classes "
    "alike.",
)
def _foreign_prompts(run: "Run") -> Answer:
    leaks = list(foreign_names(run.ensemble))
    first = next((f"{name}={text}" for name, text, _ in leaks), "")
    return _found_if(
        leaks,
        f"{number(len(leaks))} of {count(run.ensemble.n_prompts, 'chosen prompt')}.",
        f"promptboost edit {run.shell_name} -o NEW_RUN --remove {shlex.quote(first)}",
        fine="No chosen prompt names another class.",
        details=[f"{name}: “{text}” names {other}" for name, text, other in leaks],
    )


@_tip(
    "PB023",
    "The pool adds little to the templates",
    "Chosen prompts were rarely better than the template alone. Descriptions of what images show give the "
    "fit more to choose from.",
)
def _pool_of_little_use(run: "Run") -> Answer:
    rounds = run.ensemble.rounds
    idle = sum(round_.error >= round_.template_error for round_ in rounds)
    text = f"{number(idle)} of {count(len(rounds), 'round')} found nothing better than a template."
    if len(rounds) == 1:
        text = (
            f"Error on the training crops: {percent(rounds[0].template_error)} with the template "
            f"alone, {percent(rounds[0].error)} with the chosen prompts."
        )
    return _found_if(2 * idle > len(rounds), text, f"{_FIT} --prompts MORE.json")


@_tip(
    "PB024",
    "The descriptions do not matter",
    "Refitted with descriptions of other classes, or with random words, the text is as accurate: it gains "
    "nothing from what its descriptions say. Use sentences that say how a class looks.",
)
def _descriptions_without_effect(run: "Run") -> Answer:
    controls = run.results.controls
    if controls is None:
        return _skipped("Fewer than two classes have descriptions among their prompts.")
    text = f"{controls}{'' if run.results.held_out else ' (training images)'}."
    return _found_if(controls.gain <= 0, text, f"{_FIT} --prompts BETTER.json")
