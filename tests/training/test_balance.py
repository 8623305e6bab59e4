"""Classes added by words alone: as loud as the others, whatever their sentences."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting.residual import LOST, RECOGNIZED
from promptboost.model import Head, PromptEnsemble, Round
from promptboost.model.head import Balance
from promptboost.training import Trainer
from promptboost.training.examples import Examples
from promptboost.training.trainer import measure_balance

NAMES = tuple("abcdefgh")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def world(seed=0, classes=8, images=12, dim=48):
    """Images and words around a direction that all share, as encoders make them."""
    rng = np.random.default_rng(seed)
    shared, centers = unit(rng.normal(size=dim)) * 2, unit(rng.normal(size=(classes, dim)))
    labels = np.repeat(np.arange(classes), images)
    noise = rng.normal(size=(len(labels), dim)) * 0.12
    rows = unit(shared + centers[labels] + noise).astype(np.float32)
    words = unit(
        shared * rng.uniform(0.2, 0.6, (classes, 1)) + centers + 0.1 * rng.normal(size=dim)
    )
    return rows, labels, words.astype(np.float32)


def without(part, k):
    """The head that a fit on all classes but one would have."""
    rows, labels, words = part
    kept = labels != k
    names = NAMES[:k] + NAMES[k + 1 :]
    numbers = labels[kept] - (labels[kept] > k)
    return refitted(names, np.delete(words, k, axis=0), rows[kept], numbers)


def refitted(names, words, rows, labels):
    """The head of a text of one sentence per class, refitted on images without a pool."""
    text = PromptEnsemble(names, (Round("{}", {name: {name: 1} for name in names}, 0.0, 0.0),))
    examples = Examples(rows, labels, tuple(map(str, range(len(rows)))))
    sentences = dict(zip(names, words, strict=True))
    return Trainer().refit(text, examples, [sentences], unseen=[words]).head


def extended(head, row):
    """The head after a class was added by words alone."""
    weights = np.vstack([head.weights, row]).astype(np.float32)
    residual = np.vstack([head.residual, np.zeros_like(row)]).astype(np.float32)
    return Head(
        (*head.class_names, "new"),
        weights,
        residual=residual,
        text_scale=head.text_scale,
        balance=head.balance,
    )


@pytest.mark.parametrize("text_only", [True, False])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_an_added_class_neither_swallows_nor_starves(text_only, factor):
    """Its words are of the same kind, but as loud as if they had another length."""
    found, lost = [], []
    for k in range(8):
        part = world(seed=3)
        rows, labels, words = part
        head = extended(without(part, k), words[k] * factor)
        head = head.without_residual() if text_only else head
        answers, old = head.predict(rows), labels != k
        found.append(np.mean(answers[~old] == "new"))
        lost.append(np.mean(answers[old] == "new"))
    assert np.mean(lost) < 0.05
    assert np.mean(found) > 0.5


def test_without_it_loud_words_swallow_the_others():
    rows, _, words = part = world(seed=3)
    loud = words[2] + 2 * rows.mean(axis=0)
    head = without(part, 2)
    bare = Head(head.class_names, head.weights, residual=head.residual, text_scale=head.text_scale)
    assert np.mean(extended(bare, loud).predict(rows) == "new") > 0.5
    assert np.mean(extended(head, loud).predict(rows) == "new") < 0.3


@given(st.integers(0, 2**16), st.floats(-2, 2), st.floats(0.1, 3))
def test_on_the_mean_image_it_scores_as_the_others_and_the_lift_more(seed, lift, factor):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(4, 6))
    matrix[3] *= factor
    balance = Balance(("a", "b", "c"), rng.normal(size=6), lift, lift)
    moved = balance.rows(NAMES[:4], matrix, lift)
    np.testing.assert_array_equal(moved[:3], matrix[:3])
    scores = moved @ balance.center
    assert scores[3] == pytest.approx(scores[:3].mean() + lift)


def test_nothing_is_moved_where_no_class_was_added_or_none_is_known():
    matrix = np.eye(3)
    for names in (("a", "b", "c"), ("x", "y", "z")):
        assert Balance(("a", "b", "c"), np.ones(3), 1.0, 1.0).rows(names, matrix, 1.0) is matrix
    assert Balance(("a",), np.ones(4), 1.0, 1.0).rows(("a", "b", "c"), matrix, 1.0) is matrix


@given(st.integers(0, 2**16))
def test_the_lift_keeps_its_promises_on_classes_that_pretend(seed):
    rows, labels, words = world(seed, classes=5, images=6, dim=24)
    names = NAMES[:5]
    balance = measure_balance(names, rows, labels, words, words, words)
    found, lost = [], []
    for k, name in enumerate(names):
        others = tuple(other for other in names if other != name)
        # On the mean of all classes, its own among them, as the lift is measured.
        at = Balance(others, balance.center, 0.0, 0.0)
        mean = (words @ at.center).mean() - (np.delete(words, k, 0) @ at.center).mean()
        scores = rows @ at.rows(names, words, balance.text_lift + mean).T
        taken, mine = scores.argmax(axis=1) == k, labels == k
        right = np.delete(rows @ words.T, k, 1).argmax(1) == np.where(
            labels > k, labels - 1, labels
        )
        found.append(np.mean(taken[mine]))
        lost.append(np.mean((taken & right & ((rows @ words.T).argmax(1) == labels))[~mine]))
    assert np.mean(found) <= RECOGNIZED + 0.05
    assert np.mean(lost) <= LOST + 0.02


def test_images_in_all_directions_have_no_balance():
    rows = unit(np.vstack([np.eye(4), -np.eye(4)])).astype(np.float32)
    assert measure_balance(("a", "b"), rows, np.arange(8) % 2, rows[:2], rows[:2], rows[:2]) is None


def test_a_record_is_read_as_it_was_written_and_nothing_else_is():
    rows, labels, words = world()
    balance = measure_balance(NAMES, rows, labels, words, words, words)
    record = json.loads(json.dumps(balance.to_record()))
    again = Balance.from_record(record)
    assert again.to_record() == record
    for broken in (
        None,
        [],
        "x",
        {},
        {**record, "class_names": [1]},
        {**record, "center": "x"},
        {**record, "center": [[1.0]]},
        {**record, "center": [0.0] * 48},
        {**record, "center": [1e300] * 48},
        {**record, "lift": True},
        {**record, "text_lift": None},
    ):
        assert Balance.from_record(broken) is None


def test_a_class_without_images_has_no_residual():
    rows, labels, words = world()
    kept = labels != 3
    head = refitted(NAMES, words, rows[kept], labels[kept])
    assert not head.residual[3].any()
    assert np.abs(np.delete(head.residual, 3, 0)).min(axis=1).any()
    assert head.balance.class_names == NAMES[:3] + NAMES[4:]
