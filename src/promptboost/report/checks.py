"""Numbered checks of a run: what to look at, what it means, what to type next.

Numbers never change their meaning: PB00x are about results, PB01x about images, PB02x about words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from promptboost.report import rules
from promptboost.report.rules import Answer
from promptboost.report.run import Run

Severity = Literal["issue", "tip"]


@dataclass(frozen=True)
class CheckRule:
    """One numbered check: an issue makes a figure doubtful, a tip points at what could be better."""

    code: str
    severity: Severity
    title: str
    meaning: str
    look: Callable[[Run], Answer]


@dataclass(frozen=True)
class Check:
    """A rule and what it says about one run."""

    rule: CheckRule
    answer: Answer


RULES = (
    CheckRule(
        "PB001",
        "issue",
        "Nothing was held out",
        "Accuracy on the images that taught the ensemble is not evidence: it says how well they "
        "are remembered. Try it on images it has not seen.",
        rules.nothing_held_out,
    ),
    CheckRule(
        "PB002",
        "issue",
        "Not better than zero-shot",
        "The class names in one template do as well. More images, or descriptions of what can be "
        "seen in them, may help; otherwise keep the simpler thing.",
        rules.no_better_than_zero_shot,
    ),
    CheckRule(
        "PB003",
        "tip",
        "Logistic regression is better",
        "On these images a classifier without words is more accurate. It cannot be read or moved "
        "to another encoder; a richer pool of prompts narrows the gap.",
        rules.behind_logistic,
    ),
    CheckRule(
        "PB004",
        "tip",
        "Accuracy known only roughly",
        "With so few held-out images the true accuracy may differ from the figure by more than "
        "five points.",
        rules.wide_interval,
    ),
    CheckRule(
        "PB005",
        "tip",
        "Rounds still improving",
        "The curve rises where it ends, so more rounds may pay. A number of rounds chosen by "
        "looking at held-out images makes their accuracy look too good.",
        rules.still_improving,
    ),
    CheckRule(
        "PB006",
        "tip",
        "A class got worse",
        "The average rose at the cost of some classes. Read their prompts below, and what their "
        "images are taken for.",
        rules.classes_that_lost,
    ),
    CheckRule(
        "PB007",
        "issue",
        "No gain after transfer",
        "On that encoder the sentences do no better than the class names: they may say what only "
        "the first encoder understood. Fit on that encoder instead.",
        rules.transfer_without_gain,
    ),
    CheckRule(
        "PB008",
        "issue",
        "Figures of another text",
        "All accuracies are those of the text before it was edited; the prompts shown are those of "
        "now. Measure again on held-out images before quoting a figure.",
        rules.figures_of_another_text,
    ),
    CheckRule(
        "PB010",
        "issue",
        "Fewer images than asked",
        "A class with fewer images counts for less while learning. Add images, or ask for fewer "
        "shots.",
        rules.fewer_shots,
    ),
    CheckRule(
        "PB011",
        "tip",
        "Unreadable images",
        "These files were skipped; the reasons are given. Repair or delete them, then fit again.",
        rules.unreadable_images,
    ),
    CheckRule(
        "PB012",
        "tip",
        "Suspected label errors",
        "They were learnt from and stayed hard. Look at them: the label may be wrong, or the image "
        "may show two classes.",
        rules.suspected_labels,
    ),
    CheckRule(
        "PB013",
        "tip",
        "A few images hold the weight",
        "Late rounds were composed for these images alone. If they are odd ones, fewer rounds do "
        "as well; correct or leave out those that are wrong.",
        rules.weight_on_few,
    ),
    CheckRule(
        "PB020",
        "tip",
        "Classes without descriptions",
        "For these classes the fit could choose among templates only.",
        rules.descriptions_missing,
    ),
    CheckRule(
        "PB021",
        "tip",
        "Descriptions of no class",
        "These descriptions were not used. Is the name spelled as the class is?",
        rules.descriptions_unused,
    ),
    CheckRule(
        "PB022",
        "tip",
        "A prompt names another class",
        "It may be right (“larger than a cat”), or a slip in the descriptions that makes two classes "
        "alike.",
        rules.foreign_prompts,
    ),
    CheckRule(
        "PB023",
        "tip",
        "The pool adds little to the templates",
        "No choice of prompts made the template better, or seldom. Descriptions that say what can be "
        "seen give something to choose from.",
        rules.pool_of_little_use,
    ),
    CheckRule(
        "PB024",
        "tip",
        "One round dominates",
        "That round alone decides; the others are there for show. A new fit gives all rounds one vote.",
        rules.round_that_dominates,
    ),
)


def run_checks(run: Run) -> tuple[Check, ...]:
    """Put every question to a run, in the order of the numbers."""
    return tuple(Check(rule, rule.look(run)) for rule in RULES)
