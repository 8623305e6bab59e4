"""The choice of a setting by cross-validation over the training images."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.composition import log_losses
from promptboost.boosting.scale import held_out_folds

#: Factors on the logits, the best of which is used to compare log losses.
LOSS_SCALES = np.geomspace(0.1, 10.0, 9, dtype=np.float32)

_Setting = TypeVar("_Setting")


def choose_by_folds(
    labels: NDArray[np.int64],
    candidates: Sequence[_Setting],
    default: _Setting,
    held_out: Callable[[NDArray[np.bool_], NDArray[np.bool_]], Iterable[NDArray[Any]]],
    groups: NDArray[np.int64] | None = None,
) -> _Setting:
    """Choose a setting by its accuracy in cross-validation; `default` if no image can be held out.

    ``held_out(kept, out)`` yields, for each candidate, the logits of the images `out` by a classifier of
    the images `kept`. The log loss at its best scale breaks ties.
    """
    if len(candidates) == 1:
        return candidates[0]
    fold = held_out_folds(labels, groups)
    if fold.max() < 0:
        return default
    costs = np.zeros((len(candidates), 1 + len(LOSS_SCALES)))
    for number in range(fold.max() + 1):
        out = fold == number
        for cost, logits in zip(costs, held_out(~out, out), strict=True):
            cost[0] += np.sum(logits.argmax(axis=1) != labels[out])
            cost[1:] += [log_losses(scale * logits, labels[out]).sum() for scale in LOSS_SCALES]
    ranked = [(cost[0], cost[1:].min()) for cost in costs]
    return candidates[ranked.index(min(ranked))]
