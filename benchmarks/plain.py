"""The plain dense search beside the fast one: how long it would take, and whether both agree.

It is the oracle of the tests: every row times every prompt, all thresholds, no short cuts.
"""

import time
from typing import TYPE_CHECKING

import numpy as np

from promptboost.boosting.grid import GridRows
from tests.boosting.oracle import PlainBanks, select_plain

if TYPE_CHECKING:
    from benchmarks.task import Task, Visit


def compare(
    task: "Task", first: GridRows, visits: "list[Visit]", cycles: int, check: int
) -> tuple[float, bool]:
    """Replay the visits; at some of them, spread evenly, ask the plain search too.

    Returns
    -------
    float
        Seconds the plain search would take for all visits of the round, from those measured.
    bool
        Whether it chose the same (prompt, copies, gain) at every one of them.
    """
    banks = PlainBanks(task.X, task.y, task.weights, task.prompts, first)
    asked = set(np.linspace(0, len(visits) - 1, check).astype(int).tolist())
    spent, same = 0.0, True
    for number, visit in enumerate(visits):
        if number in asked:
            start = time.perf_counter()
            choice = select_plain(banks, visit.class_index)
            spent += time.perf_counter() - start
            same = same and choice == visit.choice
        if visit.choice is not None:
            banks.append(visit.class_index, *visit.choice[:2])
    return spent / len(asked) * len(task.prompts) * cycles, same
