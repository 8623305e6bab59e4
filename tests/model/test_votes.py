import numpy as np
import pytest

from promptboost.errors import EmbeddingError, FileFormatError, LabelError, WeightError
from promptboost.model.votes import VotingHead


def random_head(seed=0, rounds=5, n_classes=3, dim=8):
    rng = np.random.default_rng(seed)
    return VotingHead(
        tuple("abcdef"[:n_classes]),
        rng.standard_normal((rounds, n_classes, dim)),
        rng.uniform(0.5, 2, rounds),
        encoder_id="fake:8-0",
    )


X = np.random.default_rng(9).standard_normal((40, 8))


def explicit_votes(head):
    votes = np.zeros((len(X), len(head.class_names)))
    for weights, vote in zip(head.weights, head.votes, strict=True):
        for i, row in enumerate(X):
            votes[i, int(np.argmax(weights.astype(np.float64) @ row))] += vote
    return votes


def test_head_is_the_weighted_vote():
    head = random_head()
    votes = explicit_votes(head)
    np.testing.assert_allclose(head.scores(X), votes / head.votes.sum(), rtol=1e-6)
    np.testing.assert_array_equal(head.predict_index(X), votes.argmax(axis=1))
    np.testing.assert_array_equal(head.predict(X), np.array(list("abc"))[votes.argmax(axis=1)])
    centred = 2 * (votes - votes.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(head.decision_function(X), centred, atol=1e-12)


def test_decision_is_sammes_sum_of_coded_votes():
    """Zhu et al. code a vote as 1 for its class and −1/(K−1) for the others, by (K−1)²/K · α."""
    head, K = random_head(n_classes=4), 4
    coded = np.zeros((len(X), K))
    for weights, vote in zip(head.weights, head.votes, strict=True):
        winners = np.argmax(X @ weights.T, axis=1)
        coded += (K - 1) ** 2 / K * vote * np.where(np.eye(K)[winners] == 1, 1, -1 / (K - 1))
    np.testing.assert_allclose(head.decision_function(X), coded, atol=1e-9)


def test_probabilities():
    head = random_head()
    votes = explicit_votes(head)
    expected = np.exp(votes) / np.exp(votes).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.predict_proba(X), expected)
    np.testing.assert_array_equal(head.predict_proba(X).argmax(axis=1), head.predict_index(X))
    flat = head.predict_proba(X, logit_scale=1e-9)
    np.testing.assert_allclose(flat, 1 / 3, atol=1e-6)


def test_one_round_is_its_winner():
    head = random_head(rounds=1)
    np.testing.assert_array_equal(head.predict_index(X), np.argmax(X @ head.weights[0].T, axis=1))


def test_files_round_trip(tmp_path):
    head, path = random_head(), tmp_path / "head.safetensors"
    head.save(path)
    again = VotingHead.load(path)
    np.testing.assert_array_equal(again.weights, head.weights)
    np.testing.assert_array_equal(again.votes, head.votes)
    assert (again.class_names, again.encoder_id) == (head.class_names, "fake:8-0")
    assert again.rounds == 5
    data = path.read_bytes()
    for end in range(0, len(data), 11):
        path.write_bytes(data[:end])
        with pytest.raises(FileFormatError):
            VotingHead.load(path)


@pytest.mark.parametrize(
    ("weights", "votes", "error"),
    [
        (np.ones((2, 2)), [1, 1], EmbeddingError),
        (np.ones((0, 2, 2)), [], EmbeddingError),
        (np.full((1, 2, 2), np.inf), [1], EmbeddingError),
        (np.ones((1, 3, 2)), [1], LabelError),
        (np.ones((1, 2, 2)), [1, 1], WeightError),
        (np.ones((1, 2, 2)), [0], WeightError),
        (np.ones((1, 2, 2)), [np.nan], WeightError),
    ],
)
def test_refuses_fields_that_cannot_be(weights, votes, error):
    with pytest.raises(error):
        VotingHead(("a", "b"), weights, votes)


@pytest.mark.parametrize("rows", [X[0], X[:, 1:], X.astype(int), np.full((2, 8), np.nan)])
def test_refuses_rows_that_cannot_be(rows):
    with pytest.raises(EmbeddingError):
        random_head().predict(rows)
