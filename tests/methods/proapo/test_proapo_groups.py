"""Which classes ProAPO edits together."""

import numpy as np

from promptboost.methods.proapo.class_search import (
    best_clusters,
    confusion_groups,
    gain_groups,
    group_size,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_sizes_grow_with_the_logarithm_of_the_classes() -> None:
    assert [group_size(k) for k in (1, 2, 10, 37, 100)] == [1, 2, 5, 9, 11]


def test_classes_that_gain_come_first_and_the_worst_are_left_out() -> None:
    gains = np.array([0.05, 0.2, 5.0, 0.3, -1.0, -2.0, -0.5, 0.0, 1.0, -3.0])
    groups, allowed = gain_groups(gains, size=3)
    assert groups == [(2, 8, 3), (1,)]
    assert np.flatnonzero(~allowed).tolist() == [4, 5, 6, 9]


def scores_of(labels: list[int], n_classes: int) -> np.ndarray:
    scores = np.zeros((len(labels), n_classes), dtype=np.float32)
    scores[np.arange(len(labels)), labels] = 10.0
    return scores


def test_the_hardest_class_begins_with_those_it_is_taken_for() -> None:
    labels = [0, 1, 2, 3, 4, 5, 6]
    scores = scores_of(labels, 7)
    scores[:, 0] += 0.1  # an image has something as its second best, the same for all
    scores[3] = [0, 4, 0, 1, 3, 0, 2]  # the fourth is taken for 1, 4 and 6
    scores[3, [0, 2, 5]] = [-3, -1, -2]
    groups = confusion_groups(
        scores,
        np.array(labels),
        np.eye(7, dtype=np.float32),
        np.ones(7, dtype=bool),
        size=4,
        taken=[],
        rng=rng(),
    )
    assert groups[0] == (3, 1, 4, 6)


def test_groups_stay_within_what_may_be_edited_and_begin_anew() -> None:
    labels = list(range(8))
    allowed = np.array([True] * 6 + [False] * 2)
    groups = confusion_groups(
        scores_of(labels, 8),
        np.array(labels),
        np.eye(8, dtype=np.float32),
        allowed,
        size=3,
        taken=[(0, 1)],
        rng=rng(),
    )
    assert groups
    assert all(allowed[k] for group in groups for k in group)
    assert all(group[0] not in (0, 1) for group in groups)
    assert all(len(group) <= 3 == len(set(group)) for group in groups)


def test_a_class_without_images_begins_no_group() -> None:
    scores = scores_of([0, 0, 1], 3)
    groups = confusion_groups(
        scores,
        np.array([0, 0, 1]),
        np.eye(3, dtype=np.float32),
        np.ones(3, dtype=bool),
        size=2,
        taken=[],
        rng=rng(),
    )
    assert all(group[0] != 2 for group in groups)


def test_a_rare_confusion_gives_way_to_the_cluster() -> None:
    # 30 classes in six families; 30 images of class 0, one of which looks like class 29.
    rows = np.repeat(np.eye(6), 5, axis=0) + 0.01 * rng().standard_normal((30, 6))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    labels = np.zeros(30, dtype=np.int64)
    scores = np.zeros((30, 30), dtype=np.float32)
    scores[:, 0] = 9
    scores[:, 1:5] = 5  # always among the best five
    scores[0, 29] = 8
    (group,) = confusion_groups(
        scores, labels, rows, np.ones(30, dtype=bool), size=6, taken=[], rng=rng()
    )
    assert group[0] == 0
    assert set(group) == {0, 1, 2, 3, 4}


def test_clusters_are_found_where_there_are_some() -> None:
    centers = np.linalg.qr(rng().standard_normal((12, 7)))[0].T
    family = np.arange(42) % 7
    rows = centers[family] + 0.02 * rng().standard_normal((42, 12))
    clusters = best_clusters(rows, rng())
    together = clusters[:, None] == clusters
    assert (together == (family[:, None] == family)).mean() > 0.95


def test_few_classes_are_one_cluster() -> None:
    assert set(best_clusters(np.eye(24), rng()).tolist()) == {0}
