"""Nearly equal prompts of a bank are merged."""

import numpy as np
import pytest

from promptboost.boosting.composition import Composition, GradientTrace, without_duplicates
from promptboost.boosting.grid import GridPool


def unit(degrees):
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def bank(template_copies, copies, degrees):
    pool = GridPool.from_rows(unit([[0.0]]), [unit(degrees)])
    weak = Composition(
        0, 0.0, 0.0, (template_copies,), (dict(enumerate(copies)),), GradientTrace((), (), 0)
    )
    merged = without_duplicates(weak, pool)
    return merged.template_copies[0], dict(merged.banks[0])


@pytest.mark.parametrize(
    ("template_copies", "copies", "degrees", "expected"),
    [
        (2, [3, 3], [60.0, 120.0], (2, {0: 3, 1: 3})),  # nothing is near
        (2, [1, 5], [90.0, 100.0], (2, {1: 6})),  # the heavier stays
        (0, [4, 4], [90.0, 91.0], (0, {0: 8})),  # of equals, the first
        (1, [7], [3.0], (0, {0: 8})),  # the template is like any other
        (4, [4], [3.0], (8, {})),
        (0, [8], [3.0], (0, {0: 8})),  # a template without copies takes none
        (0, [1, 6, 1], [80.0, 90.0, 100.0], (0, {1: 8})),
        (0, [3, 2, 3], [70.0, 84.0, 98.0], (0, {0: 5, 2: 3})),  # not by a chain
    ],
)
def test_the_heavier_of_nearly_equal_prompts_stays(template_copies, copies, degrees, expected):
    assert bank(template_copies, copies, degrees) == expected
