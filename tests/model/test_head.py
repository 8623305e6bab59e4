import json
import math
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import save_file

from promptboost.errors import EmbeddingError, FileFormatError, LabelError, SettingError
from promptboost.model import Head
from tests.model.ensembles import PATIENT, random_ensemble

EPSILON = np.finfo(np.float64).eps


def unit(rng, n, dim=16):
    rows = rng.standard_normal((n, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def least_temperature(n_classes):
    """Give the bound of Head's notes, above which clipping never acts."""
    return 2 / (math.log(1 / EPSILON) - math.log(n_classes))


def explicit_vote(ensemble, vectors, X):
    """Count SAMME.R's vote round by round, copy by copy, as it is defined; with the least p."""
    K, tau = len(ensemble.class_names), ensemble.temperature
    vote, least = np.zeros((len(X), K)), 1.0
    for item in ensemble.rounds:
        banks = [item.banks[name] for name in ensemble.class_names]
        copies = [[vectors[t] for t, count in bank.items() for _ in range(count)] for bank in banks]
        scores = np.column_stack([(X @ np.array(rows).T).mean(axis=1) for rows in copies])
        p = np.exp(scores / tau) / np.exp(scores / tau).sum(axis=1, keepdims=True)
        least = min(least, p.min())
        log_p = np.log(np.clip(p, EPSILON, 1))
        vote += (K - 1) * (log_p - log_p.mean(axis=1, keepdims=True))
    return vote, least


@given(
    seed=st.integers(0, 2**32 - 1),
    n_classes=st.integers(2, 6),
    n_rounds=st.integers(1, 5) | st.just(50),
    heat=st.floats(1.0, 20.0),
)
@PATIENT
def test_head_is_the_vote(seed, n_classes, n_rounds, heat):
    rng = np.random.default_rng(seed)
    tau = heat * least_temperature(n_classes)
    ensemble, vectors = random_ensemble(rng, n_classes, n_rounds, temperature=tau)
    X = unit(rng, 20)
    vote, least = explicit_vote(ensemble, vectors, X)
    assert least > EPSILON
    head = ensemble.embed(vectors)
    # The head's rows and products are float32; each round adds a cosine of at most one.
    tolerance = 1e-5 * (n_classes - 1) * n_rounds / tau
    np.testing.assert_allclose(head.decision_function(X), vote, rtol=0, atol=tolerance)
    ranked = np.sort(vote, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > 2 * tolerance
    np.testing.assert_array_equal(head.predict_index(X)[clear], vote.argmax(axis=1)[clear])
    assert clear.mean() > 0.5


@pytest.mark.parametrize("n_classes", [2, 10, 1000, 100_000])
def test_clipping_never_acts_above_the_bound(n_classes):
    """The worst image has cosine −1 with one class and 1 with all others."""
    scores = np.ones(n_classes)
    scores[0] = -1

    def least_p(tau):
        return np.exp(-1 / tau) / np.exp(scores / tau).sum()

    bound = least_temperature(n_classes)
    assert least_p(bound * (1 + 1e-9)) > EPSILON
    # The bound is not far from the best there is: a little below it clipping does act.
    assert least_p(bound * 0.97) < EPSILON


@pytest.mark.parametrize(("n_classes", "tau"), [(10, 0.06), (1000, 0.07), (9_000_000, 0.1)])
def test_the_bounds_in_the_notes(n_classes, tau):
    assert least_temperature(n_classes) < tau


def test_below_the_bound_the_vote_would_be_clipped():
    ensemble, _ = random_ensemble(np.random.default_rng(0), 2, 1, temperature=0.02)
    texts = ensemble.texts()
    vectors = {text: np.array([-1.0]) for text in texts}
    vectors |= {text: np.array([1.0]) for text in ensemble.rounds[0].banks["class 1"]}
    _, least = explicit_vote(ensemble, vectors, np.array([[1.0]]))
    assert least < EPSILON


X = unit(np.random.default_rng(2), 50)


@pytest.fixture
def head():
    rng = np.random.default_rng(1)
    return Head(
        ("a", "b", "c"), np.float32(4 * unit(rng, 3)), 4, 0.5, "fake:16-0", "enc", "ens\N{SNOWMAN}"
    )


def test_scores_are_mean_cosines(head):
    expected = X @ head.weights.T.astype(np.float64) / 4
    np.testing.assert_allclose(head.scores(X), expected, atol=1e-6)
    assert head.scores(X).dtype == np.float32


def test_decision_function_is_centered_and_has_a_column_per_class(head):
    decision = head.decision_function(X)
    np.testing.assert_allclose(decision.sum(axis=1), 0, atol=1e-12)
    z = X @ head.weights.T.astype(np.float64)
    np.testing.assert_allclose(decision[:, 1], 2 / 0.5 * (z[:, 1] - z.mean(axis=1)), atol=1e-5)
    two = Head(("a", "b"), head.weights[:2])
    assert two.decision_function(X).shape == (50, 2)


def test_probabilities_are_the_product_of_the_rounds_softmaxes():
    rng = np.random.default_rng(0)
    ensemble, vectors = random_ensemble(rng, 4, 3, temperature=0.3)
    X = unit(rng, 10)
    product = np.ones((10, 4))
    for weak in ensemble.rounds:
        product *= replace(ensemble, rounds=(weak,)).embed(vectors).predict_proba(X)
    product /= product.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(ensemble.embed(vectors).predict_proba(X), product, atol=1e-5)


def test_logit_scale_is_the_encoders_zero_shot_softmax(head):
    logits = 20 * (X @ head.weights.T.astype(np.float64) / 4)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.predict_proba(X, logit_scale=20), expected, atol=1e-5)
    for scale in (0, -1, math.nan, math.inf, "1"):
        with pytest.raises(SettingError, match="logit_scale"):
            head.predict_proba(X, logit_scale=scale)


def test_in_double_precision_a_row_alone_has_the_answer_it_has_among_others():
    rng = np.random.default_rng(5)
    text, residual, X = unit(rng, 3), rng.standard_normal((3, 16)), unit(rng, 40)
    head = Head(tuple("abc"), text, residual=residual, text_scale=7.0)
    alone = np.concatenate([head.predict_proba(row[None]) for row in X])
    np.testing.assert_allclose(head.predict_proba(X), alone, rtol=1e-13)
    single = Head(tuple("abc"), np.float32(text), residual=np.float32(residual), text_scale=7.0)
    assert (head.matrix.dtype, single.matrix.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(single.predict_proba(X), alone, atol=1e-5)


def test_a_residual_is_added_to_the_scaled_text():
    rng = np.random.default_rng(3)
    text, residual, X = unit(rng, 3), rng.standard_normal((3, 16)), unit(rng, 20)
    head = Head(tuple("abc"), 4 * text, rounds=4, residual=residual, text_scale=7.0)
    logits = 7.0 * X @ text.T + X @ residual.T
    powers = np.exp(logits)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.predict_proba(X), expected, atol=1e-5)
    assert head.predict_index(X).tolist() == logits.argmax(axis=1).tolist()
    alone = head.without_residual().predict_index(X)
    assert alone.tolist() == (X @ text.T).argmax(axis=1).tolist() != logits.argmax(axis=1).tolist()


def test_all_methods_name_the_same_winner(head):
    index = head.predict_index(X)
    assert len(set(index)) > 1
    for found in (
        head.scores(X),
        head.decision_function(X),
        head.predict_proba(X),
        head.predict_proba(X, logit_scale=100.0),
    ):
        np.testing.assert_array_equal(found.argmax(axis=1), index)
    np.testing.assert_array_equal(head.predict(X), np.array(["a", "b", "c"])[index])
    np.testing.assert_allclose(head.predict_proba(X).sum(axis=1), 1)


def test_probabilities_do_not_overflow():
    head = Head(("a", "b"), 1000 * np.eye(2), 1000, temperature=1e-3)
    assert head.predict_proba(np.eye(2)).tolist() == [[1, 0], [0, 1]]


def test_ties_go_to_the_first_class():
    head = Head(("z", "a"), np.ones((2, 16)))
    assert set(head.predict(X)) == {"z"}


def test_no_images_have_no_classes(head):
    none = np.zeros((0, 16), dtype=np.float32)
    assert head.predict(none).shape == (0,)
    assert head.decision_function(none).shape == (0, 3)
    assert head.predict_proba(none).shape == (0, 3)


def test_other_float_types_are_taken(head):
    for dtype in (np.float16, np.float32, np.float64):
        np.testing.assert_allclose(head.scores(X.astype(dtype)), head.scores(X), atol=2e-3)


METHODS = ["scores", "decision_function", "predict", "predict_index", "predict_proba"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(16), r"row\[None, :\]"),
        (np.ones((2, 16, 1)), "matrix"),
        (np.ones((2, 15)), "15 columns, the head has 16"),
        (np.ones((2, 16), dtype=int), "dtype int64"),
        (np.full((2, 16), "x"), "floating-point"),
        (np.ones((2, 16), dtype=complex), "floating-point"),
        (np.where(np.arange(48).reshape(3, 16) == 20, np.nan, 0.1), "1 of 3 rows.*first is row 1"),
        (np.where(np.arange(48).reshape(3, 16) == 40, np.inf, 0.1), "1 of 3 rows.*first is row 2"),
        (np.full((2, 16), 1e300), "2 of 2 rows"),
    ],
)
def test_refuses_rows_that_cannot_be(head, method, rows, message):
    with pytest.raises(EmbeddingError, match=message):
        getattr(head, method)(rows)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"class_names": ("a",)}, LabelError, "1 class names for 2 rows"),
        ({"class_names": ("a", "a")}, LabelError, "twice: 'a'"),
        ({"class_names": ("a", 1)}, LabelError, "strings"),
        ({"class_names": ("a",), "weights": np.ones((1, 2))}, LabelError, "two classes"),
        ({"weights": np.ones(2)}, EmbeddingError, "K × D"),
        ({"weights": np.ones((2, 0))}, EmbeddingError, "K × D"),
        ({"weights": np.full((2, 2), np.nan)}, EmbeddingError, "not finite"),
        ({"rounds": 0}, SettingError, "rounds"),
        ({"rounds": 1.0}, SettingError, "rounds"),
        ({"temperature": 0}, SettingError, "temperature"),
        ({"temperature": "1"}, SettingError, "temperature"),
        ({"encoder_id": 1}, SettingError, "encoder_id"),
    ],
)
def test_refuses_fields_that_cannot_be(fields, error, message):
    with pytest.raises(error, match=message):
        Head(**({"class_names": ("a", "b"), "weights": np.eye(2)} | fields))


def test_weights_cannot_be_changed_by_accident(head):
    with pytest.raises(ValueError, match="read-only"):
        head.weights[0, 0] = 1
    given = np.eye(2, dtype=np.float32)
    kept = Head(("a", "b"), given)
    given[0, 0] = 5
    assert kept.weights[0, 0] == 1


def test_files_round_trip(head, tmp_path):
    path = tmp_path / "head.safetensors"
    head.save(path)
    again = Head.load(path)
    np.testing.assert_array_equal(again.weights, head.weights)
    for name in [
        "class_names",
        "rounds",
        "temperature",
        "encoder_id",
        "encoder_fingerprint",
        "ensemble_fingerprint",
    ]:
        assert getattr(again, name) == getattr(head, name)
    before = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["head.safetensors"]


def test_unknown_origin_round_trips(tmp_path):
    Head(("a", "b"), np.eye(2)).save(tmp_path / "h")
    assert Head.load(tmp_path / "h").encoder_id is None


def test_every_cut_off_file_is_refused(head, tmp_path):
    path = tmp_path / "head.safetensors"
    head.save(path)
    data = path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        with pytest.raises(FileFormatError, match="cut off, damaged or not a safetensors"):
            Head.load(path)
    with pytest.raises(FileNotFoundError):
        Head.load(tmp_path / "missing")


def record(**changes):
    fields = {"format": "promptboost-linear-head", "schema_version": 1, "class_names": ["a", "b"]}
    return {"promptboost": json.dumps(fields | changes)}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "not one that promptboost wrote"),
        ({"format": "pt"}, "not one that promptboost wrote"),
        ({"promptboost": "{"}, "not one that promptboost wrote"),
        ({"promptboost": "[]"}, "not one that promptboost wrote"),
        ({"promptboost": "{}"}, "not one that promptboost wrote"),
        (record(format="other"), "holds a other, not a promptboost-linear-head"),
        (record(schema_version=2), "later promptboost.*pip install -U promptboost"),
        (record(class_names=["a", "b", "c"]), "3 class names for 2 rows"),
        (record(class_names=None), "class_names"),
        (record(class_names="ab"), "class_names"),
        (record(rounds="1"), "rounds"),
        (record(temperature=0), "temperature"),
        (record(surprise=0), "surprise"),
    ],
)
def test_refuses_files_with_metadata_that_cannot_be(metadata, message, tmp_path):
    save_file({"weights": np.eye(2, dtype=np.float32)}, tmp_path / "h", metadata=metadata)
    with pytest.raises(FileFormatError, match=message):
        Head.load(tmp_path / "h")


@pytest.mark.parametrize("tensors", [{}, {"w": np.eye(2)}, {"weights": np.eye(2), "w": np.eye(2)}])
def test_refuses_files_with_other_arrays(tensors, tmp_path):
    save_file(tensors, tmp_path / "h", metadata=record())
    with pytest.raises(FileFormatError, match="holds the arrays"):
        Head.load(tmp_path / "h")
