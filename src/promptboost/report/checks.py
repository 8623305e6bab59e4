"""Numbered checks of a run: what each looks at, what it means, what to type next.

Numbers never change their meaning: PB00x are about results, PB01x about images, PB02x about words.
"""

import bisect
import itertools
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from promptboost.baselines.measures import OURS, TEXT
from promptboost.model import PromptEnsemble
from promptboost.pool.text import NameFinder
from promptboost.report.figures import count, number, points, wilson
from promptboost.report.svg import percent
from promptboost.run.results import Results

if TYPE_CHECKING:
    from promptboost.report.page import Run

_MOST_DETAILS = 12
_LABEL_FACTOR = 3.0
# Where more than this share of the learning images is not recognized, the labels are not the reason.
_MOST_SUSPECTED = 0.25
# Below this share of the answers, the residual is the classifier, and the text an ornament.
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


def _found(summary: str, *, details: Sequence[str] = (), type_next: str) -> Answer:
    rest = len(details) - _MOST_DETAILS
    shown = [*details[:_MOST_DETAILS], *([f"… and {rest} more"] if rest > 0 else [])]
    return Answer("found", summary, tuple(shown), type_next)


def _fine_if(holds: bool, text: str, type_next: str) -> Answer:
    return _fine(text) if holds else _found(text, type_next=type_next)


_fine = partial(Answer, "fine")
_skipped = partial(Answer, "not applicable")
Look = Callable[["Run"], Answer]


@dataclass(frozen=True)
class CheckRule:
    """One numbered check: an issue makes a figure doubtful, a tip points at what could be better."""

    severity: Literal["issue", "tip"]
    code: str
    title: str
    meaning: str
    look: Look


@dataclass(frozen=True)
class Check:
    """A rule and what it says about one run."""

    rule: CheckRule
    answer: Answer


#: Every check that stands below, in the order of the numbers.
RULES: list[CheckRule] = []


def run_checks(run: "Run") -> tuple[Check, ...]:
    """Put every question to a run, in the order of the numbers."""
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
    "Accuracy on the images that taught the ensemble is not evidence: it says how well they "
    "are remembered. Try it on images it has not seen.",
)
def _nothing_held_out(run: "Run") -> Answer:
    task = run.results.task
    if run.results.held_out:
        return _fine(
            f"{count(task.held_out_images, 'image was', 'images were')} kept from learning."
        )
    return _found(
        "All images were used for learning.",
        type_next=f"promptboost evaluate {run.shell_name} OTHER_IMAGES",
    )


@_issue(
    "PB002",
    "Not better than zero-shot",
    "The class names in one template do as well. More images, or descriptions of what can be "
    "seen in them, may help; otherwise keep the simpler thing.",
)
def _no_better_than_zero_shot(run: "Run") -> Answer:
    pair = _pair(run.results, "zero-shot")
    if pair is None:
        return _skipped(_NOTHING)
    zero, boosted = pair
    text = (
        f"Zero-shot {percent(zero)}, boosted {percent(boosted)} ({points(zero, boosted)} points)."
    )
    return _fine_if(boosted > zero, text, f"promptboost show {run.shell_name}")


@_tip(
    "PB003",
    "Logistic regression is better",
    "On these images a classifier without words is more accurate. It cannot be read or moved "
    "to another encoder; a richer pool of prompts narrows the gap.",
)
def _behind_logistic(run: "Run") -> Answer:
    pair = _pair(run.results, "logistic")
    if pair is None:
        return _skipped("There is no logistic regression on held-out images to compare with.")
    logistic, boosted = pair
    text = f"Logistic regression {percent(logistic)}, boosted {percent(boosted)}."
    return _fine_if(boosted >= logistic, text, f"{_FIT} --prompts MORE.json")


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
    return _fine_if(high - low <= 0.1, text, f"promptboost evaluate {run.shell_name} MORE_IMAGES")


@_tip(
    "PB005",
    "Rounds still improving",
    "The curve rises where it ends, so more rounds may pay. A number of rounds chosen by "
    "looking at held-out images makes their accuracy look too good.",
)
def _still_improving(run: "Run") -> Answer:
    stages = run.results.staged
    fifth = len(stages) // 5
    if fifth < 2:
        return _skipped("There are fewer than ten rounds.")
    values = [s.accuracy if run.results.held_out else s.learn_accuracy for s in stages]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return _skipped("The curve has gaps.")
    before = sum(known[-2 * fifth : -fifth]) / fifth
    last = sum(known[-fifth:]) / fifth
    text = f"The last {fifth} rounds changed the mean by {points(before, last)} points."
    return _fine_if(last - before <= 0.005, text, f"{_FIT} --rounds {2 * len(stages)}")


@_tip(
    "PB006",
    "A class got worse",
    "The average rose at the cost of some classes. Read their prompts below, and what their "
    "images are taken for.",
)
def _classes_that_lost(run: "Run") -> Answer:
    if not run.results.held_out:
        return _skipped(_NOTHING)
    rows = [
        (zero - boosted, zero, boosted, row)
        for row in run.results.per_class
        if (zero := row.accuracy.get("zero-shot")) is not None
        and (boosted := row.accuracy.get(OURS)) is not None
        and row.count >= 5
    ]
    if not rows:
        return _skipped("No class has five held-out images.")
    lost = sorted((row for row in rows if row[0] >= 0.1), key=lambda row: -row[0])
    if not lost:
        return _fine("No class with five held-out images lost ten points.")
    return _found(
        f"{count(len(lost), 'class', 'classes')} lost ten points or more.",
        details=[
            f"{row.class_name}: {percent(zero)} → {percent(boosted)} on {count(row.count, 'image')}"
            for _, zero, boosted, row in lost
        ],
        type_next=f"promptboost show {run.shell_name} --class {shlex.quote(lost[0][-1].class_name)}",
    )


@_issue(
    "PB007",
    "No gain after transfer",
    "On that encoder the sentences do no better than the class names: they may say what only "
    "the first encoder understood. Fit on that encoder instead.",
)
def _transfer_without_gain(run: "Run") -> Answer:
    rows = [
        (moved.encoder, zero, boosted)
        for moved in run.results.transfers
        if not moved.learned_on
        and (zero := moved.of("zero-shot")) is not None
        # A residual is learned there from images: what moved is the text.
        and (boosted := moved.accuracy.get(TEXT, moved.of(OURS))) is not None
    ]
    if not rows:
        return _skipped("The ensemble was not tried on another encoder.")
    bad = [row for row in rows if row[2] <= row[1]]
    if not bad:
        return _fine(f"It beats zero-shot on {number(len(rows))} of {number(len(rows))}.")
    return _found(
        f"It does not beat zero-shot on {number(len(bad))} of {number(len(rows))}.",
        details=[f"{name}: {percent(zero)} → {percent(boosted)}" for name, zero, boosted in bad],
        type_next=f"{_FIT} --encoder {shlex.quote(bad[0][0])}",
    )


@_issue(
    "PB008",
    "Figures of another text",
    "All accuracies are those of the text before it was edited; the prompts shown are those of "
    "now. Measure again on held-out images before quoting a figure.",
)
def _figures_of_another_text(run: "Run") -> Answer:
    if run.results.ensemble_fingerprint is None:
        return _skipped("The figures do not say which text they were measured on.")
    if not run.is_edited:
        return _fine("The figures were measured on the text as it is.")
    return _found(
        "The text was edited after these figures were measured.", type_next=run.measure_again
    )


def _pair(results: Results, other: str) -> tuple[float, float] | None:
    """Return held-out accuracies of another method and of the boosted ensemble."""
    first, second = results.measured(other), results.measured()
    return None if first is None or second is None or not results.held_out else (first, second)


@_tip(
    "PB009",
    "The words carry little",
    "The pool does not say what tells these classes apart: most of an answer is what the images taught. "
    "Add sentences, or rely on the images; on another encoder the text alone will do far worse.",
)
def _words_carry_little(run: "Run") -> Answer:
    residual = run.results.residual
    if residual is None or residual.penalty is None:
        return _skipped("There is no residual: the words carry everything.")
    text = f"{percent(residual.text_share)} of what decides an answer is words."
    if residual.text_share >= _LEAST_WORDS:
        return _fine(text)
    least = sorted(residual.class_text_shares.items(), key=lambda pair: pair[1])
    return _found(
        text,
        details=[f"{name}: {percent(share)}" for name, share in least],
        type_next=f"{_FIT} --prompts SENTENCES",
    )


@_issue(
    "PB010",
    "Fewer images than asked",
    "A class with fewer images counts for less while learning. Add images, or ask for fewer shots.",
)
def _fewer_shots(run: "Run") -> Answer:
    task = run.results.task
    if task.shots is None:
        return _skipped("All learning images were used; no number of shots was asked.")
    short = task.shots * task.classes - task.learn_images
    text = (
        f"{number(task.shots)} shots of {count(task.classes, 'class', 'classes')} were asked; "
        f"there are {count(task.learn_images, 'learning image')}."
    )
    return _fine_if(short <= 0, text, f"{_FIT} --shots {max(1, task.shots // 2)}")


@_tip(
    "PB011",
    "Unreadable images",
    "These files were skipped; the reasons are given. Repair or delete them, then fit again.",
)
def _unreadable_images(run: "Run") -> Answer:
    bad = run.results.task.bad_images
    if not bad:
        return _fine("Every file could be read.")
    return _found(
        f"{count(len(bad), 'file was', 'files were')} left out.",
        details=[f"{item.path}: {item.reason}" for item in bad],
        type_next=_FIT,
    )


@_tip(
    "PB012",
    "Suspected label errors",
    "They were learned from and stayed hard. Look at them: the label may be wrong, or the image "
    "may show two classes.",
)
def _suspected_labels(run: "Run") -> Answer:
    weights = run.ensemble.sample_weights
    if not weights:
        return _skipped("The ensemble does not know the weights of its images.")
    if len(run.ensemble) == 1:
        return _not_recognized(run)
    total = sum(weights.values()) or 1.0
    factors = {image: len(weights) * w / total for image, w in weights.items()}
    heavy = sorted((p for p, f in factors.items() if f >= _LABEL_FACTOR), key=lambda p: -factors[p])
    if not heavy:
        return _fine(f"No image weighs {number(_LABEL_FACTOR)} times the average.")
    taken = {h.image: f", labeled {h.label}, taken for {h.predicted}" for h in run.results.hardest}
    return _found(
        f"{number(len(heavy))} of {count(len(weights), 'image')}: at least "
        f"{number(_LABEL_FACTOR)} times the average weight.",
        details=[f"{p}: {factors[p]:.1f} ×{taken.get(p, '')}" for p in heavy],
        type_next=_CORRECTED,
    )


def _not_recognized(run: "Run") -> Answer:
    """PB012 after one round, which moves weights too little to tell: what is still taken for another."""
    boosted = run.results.method(OURS)
    right = None if boosted is None else boosted.learn_accuracy
    if right is not None and right < 1 - _MOST_SUSPECTED:
        return _skipped("Too many learning images are not recognized to suspect any of them.")
    wrong = [item for item in run.results.hardest if item.predicted != item.label]
    if not wrong:
        return _fine("The hardest learning images are recognized.")
    return _found(
        f"{number(len(wrong))} of the {count(len(run.results.hardest), 'hardest learning image')}: "
        "taken for another class.",
        details=[
            f"{item.image}: labeled {item.label}, taken for {item.predicted}" for item in wrong
        ],
        type_next=_CORRECTED,
    )


@_tip(
    "PB013",
    "A few images hold the weight",
    "Late rounds were composed for these images alone. If they are odd ones, fewer rounds do "
    "as well; correct or leave out those that are wrong.",
)
def _weight_on_few(run: "Run") -> Answer:
    if len(run.ensemble) == 1:
        return _skipped("There is one round, and no later one that the weights could lead astray.")
    weights = sorted(run.ensemble.sample_weights.values(), reverse=True)
    if len(weights) < 20:
        return _skipped("The weights of twenty learning images at least are needed.")
    sums = list(itertools.accumulate(weights))
    few = bisect.bisect_left(sums, sums[-1] / 2) + 1
    text = f"Half of all weight is on {number(few)} of {count(len(weights), 'image')}."
    fewer = max(1, len(run.ensemble) // 2)
    return _fine_if(few > 0.05 * len(weights), text, f"{_FIT} --rounds {fewer}")


_BEFORE = "The figures are of a promptboost that did not look for copies."


@_issue(
    "PB014",
    "Held-out images were learned from",
    "They are copies of images that taught the ensemble, byte for byte or to the eye. Accuracy on them "
    "says how well they are remembered: quote the accuracy without them, and take them out.",
)
def _leaked_images(run: "Run") -> Answer:
    overlap = run.results.overlap
    if overlap is None:
        return _skipped(_BEFORE)
    if not run.results.held_out:
        return _skipped(_NOTHING)
    leaks = overlap.leaks
    if not leaks.images:
        return _fine("No held-out image is a copy of one that was learned from.")
    boosted = run.results.method(OURS)
    unseen = None if boosted is None else boosted.unseen_accuracy
    return _found(
        f"{number(leaks.images)} of {count(run.results.task.held_out_images, 'held-out image')}, "
        f"{number(leaks.exact)} byte for byte; boosted "
        f"{percent(run.results.measured())}, {percent(unseen)} {overlap.without}.",
        details=leaks.names(),
        type_next=_CORRECTED,
    )


@_issue(
    "PB015",
    "One image under two labels",
    "One of the labels is wrong, or the classes overlap: no classifier can be right about both.",
)
def _contradictory_labels(run: "Run") -> Answer:
    if run.results.overlap is None:
        return _skipped(_BEFORE)
    mixed = run.results.overlap.contradictions
    if not mixed.images:
        return _fine("No image has a copy under another label.")
    return _found(
        f"{count(mixed.images, 'image has', 'images have')} a copy under another label; "
        f"{number(mixed.learned)} of them were learned from.",
        details=mixed.names(labels=True),
        type_next=_CORRECTED,
    )


@_tip(
    "PB016",
    "Repeated images",
    "An image that is there several times counts several times, while learning and in the accuracy.",
)
def _repeated_images(run: "Run") -> Answer:
    if run.results.overlap is None:
        return _skipped(_BEFORE)
    repeats = run.results.overlap.repeats
    if not repeats.images:
        return _fine("No image has a copy in its own class.")
    return _found(
        f"{count(repeats.images, 'image has', 'images have')} a copy in the same class; "
        f"{number(repeats.learned)} of them were learned from.",
        details=repeats.names(),
        type_next=_CORRECTED,
    )


@_tip(
    "PB020",
    "Classes without descriptions",
    "For these classes the fit could choose among templates only.",
)
def _descriptions_missing(run: "Run") -> Answer:
    missing = run.results.pool.missing
    if not missing:
        return _fine("Every class has descriptions, or none were asked for.")
    return _found(
        f"{count(len(missing), 'class has', 'classes have')} no descriptions.",
        details=missing,
        type_next=f"{_FIT} --prompts COMPLETED.json",
    )


@_tip(
    "PB021",
    "Descriptions of no class",
    "These descriptions were not used. Is the name spelled as the class is?",
)
def _descriptions_unused(run: "Run") -> Answer:
    unused = run.results.pool.unused
    if not unused:
        return _fine("All descriptions belong to a class.")
    return _found(
        f"{count(len(unused), 'name', 'names')} in the descriptions: not among the classes.",
        details=unused,
        type_next=f"{_FIT} --prompts CORRECTED.json",
    )


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


@_tip(
    "PB022",
    "A prompt names another class",
    "It may be right (“larger than a cat”), or a slip in the descriptions that makes two classes "
    "alike.",
)
def _foreign_prompts(run: "Run") -> Answer:
    leaks = list(foreign_names(run.ensemble))
    if not leaks:
        return _fine("No chosen prompt names another class.")
    own, text, _ = leaks[0]
    return _found(
        f"{number(len(leaks))} of {count(run.ensemble.n_prompts, 'chosen prompt')}.",
        details=[f"{own}: “{text}” names {other}" for own, text, other in leaks],
        type_next=f"promptboost edit {run.shell_name} -o NEW_RUN "
        f"--remove {shlex.quote(f'{own}={text}')}",
    )


@_tip(
    "PB023",
    "The pool adds little to the templates",
    "No choice of prompts made the template better, or seldom. Descriptions that say what can be "
    "seen give something to choose from.",
)
def _pool_of_little_use(run: "Run") -> Answer:
    rounds = run.ensemble.rounds
    idle = sum(item.error >= item.template_error for item in rounds)
    text = f"{number(idle)} of {count(len(rounds), 'round')} found nothing better than a template."
    if len(rounds) == 1:
        text = (
            f"Error on the crops learned from: {percent(rounds[0].template_error)} with the template "
            f"alone, {percent(rounds[0].error)} with the chosen prompts."
        )
    return _fine_if(2 * idle <= len(rounds), text, f"{_FIT} --prompts MORE.json")
