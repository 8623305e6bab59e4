import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from promptboost.evaluation.measures import accuracy, class_accuracy, confusions, per_class

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
NAMES = ["a", "b", "c", "d"]


def test_without_images_there_is_no_accuracy():
    nothing = np.zeros(0, dtype=np.int64)
    assert accuracy(nothing, nothing) is None
    assert class_accuracy(nothing, nothing) is None
    assert per_class(["a"], nothing, {"boosted": nothing})[0]["boosted"] is None


@given(pairs)
def test_figures_agree_with_each_other(drawn):
    labels, predicted = (np.array(column, dtype=np.int64) for column in zip(*drawn, strict=True))
    classes = per_class(NAMES, labels, {"boosted": predicted})
    there = [row for row in classes if row["count"]]
    right = sum(row["boosted"] * row["count"] for row in there)
    assert np.isclose(right / len(labels), accuracy(predicted, labels))
    mean = np.mean([row["boosted"] for row in there])
    assert np.isclose(mean, class_accuracy(predicted, labels))
    wrong = confusions(NAMES, labels, predicted, [str(i) for i in range(len(labels))])
    assert sum(row["count"] for row in wrong) == int((labels != predicted).sum())
    assert [row["count"] for row in wrong] == sorted((row["count"] for row in wrong), reverse=True)
    assert all(len(row["pictures"]) == min(row["count"], 6) for row in wrong)
