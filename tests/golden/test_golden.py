"""Results stay as they were: prompts and copies exactly, numbers up to rounding.

``python -m tests.golden`` writes the results anew. Do that only for an intended change of results. Hard
votes, and the class balance of classifiers that the estimator saves, are not covered.

Scores are in single precision, and BLAS kernels for different processors round them differently: with
those of Haswell, SkylakeX and Nehalem (``OPENBLAS_CORETYPE``), probabilities differ by up to 2.3e-6.
"""

import json

import pytest

from tests.golden.golden_cases import (
    CASES,
    GOLDEN_FILE,
    TOLERANCES,
    Task,
    differences,
    emoji_folder,
    resumed,
)


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))


@pytest.fixture
def task(tmp_path):
    return Task.write(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_recorded(name, task, golden):
    if name == "conse" and emoji_folder() is None:
        pytest.skip("needs the extra offline")
    found = json.loads(json.dumps(CASES[name](task)))
    assert not differences(found, golden[name], TOLERANCES.get(name, 5e-6))


def test_an_interrupted_fit_ends_as_one_never_interrupted(task, golden):
    assert not differences(json.loads(json.dumps(resumed(task))), golden["greedy"], 5e-6)


def test_every_record_is_of_a_case(golden):
    assert set(golden) == set(CASES)


def test_a_difference_is_found():
    expected = {"norm": 2.0, "products": [[1.0, -1.0]]}
    assert not differences({"norm": 2.0, "products": [[1.00001, -1.0]]}, expected)
    assert differences({"norm": 2.0, "products": [[1.0001, -1.0]]}, expected)
    assert not differences([0.5, 1], [0.5000005, 1])
    assert differences([0.5], [0.50001]) == ["/0: 0.5, not 0.50001"]
    assert differences({"a prompt": 2}, {"a prompt": 3})
    assert differences({"a prompt": 2}, {"another": 2})
    assert differences([0.5], [0.5, 0.5])
