"""What a fit is compared with, on the same embeddings and the same pictures."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.ensemble.composed import Composed
from promptboost.methods.logistic import fit_probe
from promptboost.pool import PLAIN_TEMPLATE
from promptboost.runs.learning import Learned, Rows
from promptboost.runs.measures import accuracy, class_accuracy
from promptboost.runs.task import Task
from promptboost.runs.words import Words

__all__ = ["Guesses", "compare", "staged", "text_methods"]


@dataclass(frozen=True)
class Guesses:
    """What one method takes the pictures for.

    Attributes
    ----------
    name, label : str
        Short name for programs, words for people.
    held_out, learn : array of int
        Class indices for the held-out pictures and for those learnt from.
    """

    name: str
    label: str
    held_out: NDArray[np.intp]
    learn: NDArray[np.intp]

    def figures(self, task: Task) -> dict[str, Any]:
        """Give the method's line of the comparison."""
        labels = task.held_out.labels
        return {
            "name": self.name,
            "label": self.label,
            "accuracy": accuracy(self.held_out, labels),
            "class_accuracy": class_accuracy(self.held_out, labels),
            "learn_accuracy": accuracy(self.learn, task.learn.labels),
        }


def text_methods(words: Words) -> dict[str, NDArray[np.float32]]:
    """Give the class rows of the three methods that learn from no picture."""
    return {
        "zero_shot": words.zero_shot(),
        "template_mean": words.template_mean(),
        "pool_mean": words.pool_mean(),
    }


def compare(task: Task, rows: Rows, learned: Learned, *, seed: int) -> list[Guesses]:
    """Let every method look at every picture."""
    originals = rows.learn[:, 0]
    pool = rows.words.pool
    labels = {
        "zero_shot": f"zero-shot, “{PLAIN_TEMPLATE}”",
        "template_mean": f"mean of {len(pool.templates)} templates",
        "pool_mean": f"mean of all {sum(map(len, pool.prompts_by_class)):,} prompts",
    }
    found = [
        Guesses(name, labels[name], _best(rows.held_out, weights), _best(originals, weights))
        for name, weights in text_methods(rows.words).items()
    ]
    weights, intercepts, _ = fit_probe(rows.learn, task.learn.labels, seed=seed)
    found.append(
        Guesses(
            "probe",
            "logistic regression on the pictures",
            _best(rows.held_out, weights, intercepts),
            _best(originals, weights, intercepts),
        )
    )
    head = learned.head
    label = Composed.of(learned.ensemble).label
    found.append(
        Guesses("boosted", label, head.predict_index(rows.held_out), head.predict_index(originals))
    )
    return found


def staged(task: Task, rows: Rows, learned: Learned) -> list[dict[str, Any]]:
    """Give the accuracy after each round."""
    originals = rows.learn[:, 0]
    held_out = np.zeros((len(rows.held_out), len(task.class_names)), dtype=np.float32)
    learn = np.zeros((len(originals), len(task.class_names)), dtype=np.float32)
    lines = []
    for number, (weights, item) in enumerate(
        zip(learned.stages, learned.ensemble.rounds, strict=True), start=1
    ):
        held_out += rows.held_out @ weights.T
        learn += originals @ weights.T
        lines.append(
            {
                "round": number,
                "accuracy": accuracy(held_out.argmax(axis=1), task.held_out.labels),
                "learn_accuracy": accuracy(learn.argmax(axis=1), task.learn.labels),
                "weak_error": item.error,
                "template_error": item.template_error,
            }
        )
    return lines


def _best(
    rows: NDArray[np.float32],
    weights: NDArray[np.floating],
    intercepts: NDArray[np.floating] | None = None,
) -> NDArray[np.intp]:
    scores = rows @ weights.T
    return np.asarray((scores if intercepts is None else scores + intercepts).argmax(axis=1))
