"""Numbered checks of a run: what to look at, what it means, what to type next.

Numbers never change their meaning: PB00x are about results, PB01x about pictures, PB02x about words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from promptboost.report import rules as figures
from promptboost.report import rules as inputs
from promptboost.report.results import Run
from promptboost.report.rules import Answer

__all__ = ["RULES", "Check", "Rule", "run_checks"]

Severity = Literal["issue", "tip"]


@dataclass(frozen=True)
class Rule:
    """One numbered check: an issue makes a figure doubtful, a tip points at what could be better."""

    code: str
    severity: Severity
    title: str
    meaning: str
    look: Callable[[Run], Answer]


@dataclass(frozen=True)
class Check:
    """A rule and what it says about one run."""

    rule: Rule
    answer: Answer


RULES = (
    Rule(
        "PB001",
        "issue",
        "Nothing was held out",
        "Accuracy on the pictures that taught the ensemble is not evidence: it says how well they "
        "are remembered. Try it on pictures it has not seen.",
        figures.nothing_held_out,
    ),
    Rule(
        "PB002",
        "issue",
        "Not better than zero-shot",
        "The class names in one template do as well. More pictures, or descriptions of what can be "
        "seen in them, may help; otherwise keep the simpler thing.",
        figures.no_better_than_zero_shot,
    ),
    Rule(
        "PB003",
        "tip",
        "Logistic regression is better",
        "On these pictures a classifier without words is more accurate. It cannot be read or moved "
        "to another encoder; a richer pool of prompts narrows the gap.",
        figures.behind_probe,
    ),
    Rule(
        "PB004",
        "tip",
        "Accuracy known only roughly",
        "With so few held-out pictures the true accuracy may differ from the figure by more than "
        "five points.",
        figures.wide_interval,
    ),
    Rule(
        "PB005",
        "tip",
        "Rounds still improving",
        "The curve rises where it ends, so more rounds may pay. A number of rounds chosen by "
        "looking at held-out pictures makes their accuracy look too good.",
        figures.still_improving,
    ),
    Rule(
        "PB006",
        "tip",
        "A class got worse",
        "The average rose at the cost of some classes. Read their prompts below, and what their "
        "pictures are taken for.",
        figures.classes_that_lost,
    ),
    Rule(
        "PB007",
        "issue",
        "No gain after transfer",
        "On that encoder the sentences do no better than the class names: they may say what only "
        "the first encoder understood. Fit on that encoder instead.",
        figures.transfer_without_gain,
    ),
    Rule(
        "PB008",
        "issue",
        "Figures of another text",
        "All accuracies are those of the text before it was edited; the prompts shown are those of "
        "now. Measure again on held-out pictures before quoting a figure.",
        figures.figures_of_another_text,
    ),
    Rule(
        "PB010",
        "issue",
        "Fewer pictures than asked",
        "A class with fewer pictures counts for less while learning. Add pictures, or ask for fewer "
        "shots.",
        inputs.fewer_shots,
    ),
    Rule(
        "PB011",
        "tip",
        "Unreadable pictures",
        "These files were skipped; the reasons are given. Repair or delete them, then fit again.",
        inputs.unreadable_pictures,
    ),
    Rule(
        "PB012",
        "tip",
        "Suspected label errors",
        "They were learnt from and stayed hard. Look at them: the label may be wrong, or the picture "
        "may show two classes.",
        inputs.suspected_labels,
    ),
    Rule(
        "PB013",
        "tip",
        "A few pictures hold the weight",
        "Late rounds were composed for these pictures alone. If they are odd ones, fewer rounds do "
        "as well; correct or leave out those that are wrong.",
        inputs.weight_on_few,
    ),
    Rule(
        "PB020",
        "tip",
        "Classes without descriptions",
        "For these classes the fit could choose among templates only.",
        inputs.descriptions_missing,
    ),
    Rule(
        "PB021",
        "tip",
        "Descriptions of no class",
        "These descriptions were not used. Is the name spelled as the class is?",
        inputs.descriptions_unused,
    ),
    Rule(
        "PB022",
        "tip",
        "A prompt names another class",
        "It may be right (“larger than a cat”), or a slip in the descriptions that makes two classes "
        "alike.",
        inputs.foreign_prompts,
    ),
    Rule(
        "PB023",
        "tip",
        "The pool adds little to the templates",
        "No choice of prompts made the template better, or seldom. Descriptions that say what can be "
        "seen give something to choose from.",
        inputs.pool_of_little_use,
    ),
    Rule(
        "PB024",
        "tip",
        "One round dominates",
        "That round alone decides; the others are there for show. A new fit gives all rounds one vote.",
        inputs.round_that_dominates,
    ),
)


def run_checks(run: Run) -> tuple[Check, ...]:
    """Put every question to a run, in the order of the numbers.

    Examples
    --------
    >>> len({rule.code for rule in RULES}) == len(RULES)
    True
    """
    return tuple(Check(rule, rule.look(run)) for rule in RULES)
