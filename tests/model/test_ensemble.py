import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import (
    EmbeddingError,
    FileFormatError,
    InputError,
    LabelError,
    PoolError,
    SettingError,
)
from promptboost.io import LARGEST_INTEGER
from promptboost.model import Head, PromptEnsemble, Round
from promptboost.model.head import staged_heads
from tests.model.ensembles import PATIENT, ensembles, pets, random_ensemble

BANKS = {"cat": {"a cat": 1}, "dog": {"a dog": 1}}


def test_texts_are_distinct_and_in_reading_order():
    assert pets().texts() == ["a red cat", "a cat.", "my cat", "a dog.", "a red dog", "my dog"]


def test_a_missing_file_is_named_with_what_to_give(tmp_path):
    path = tmp_path / "missing.json"
    with pytest.raises(InputError, match=r"missing\.json: there is no such file; give") as caught:
        PromptEnsemble.load(path)
    assert str(path) in str(caught.value)
    assert not isinstance(caught.value, FileFormatError)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_text_of_two_classes_is_embedded_once():
    banks = {"cat": {"a pet": 1, "a cat": 1}, "dog": {"a pet": 1}}
    ensemble = PromptEnsemble(("cat", "dog"), (Round("{}", banks, 0, 0),))
    assert ensemble.texts() == ["a cat", "a pet"]
    assert ensemble.n_prompts == 3
    asked = []

    def rows(texts):
        asked.extend(texts)
        return FakeEncoder().encode_texts(texts)

    ensemble.embed(rows)
    assert asked == ["a cat", "a pet"]


def test_prompts_are_weighed_by_their_part_in_the_score():
    weights = pets().prompts("cat")
    assert list(weights) == ["a cat.", "a red cat", "my cat"]
    expected = [(1 / 4 + 1) / 3, (3 / 4 + 1 / 2) / 3, (1 / 2) / 3]
    assert list(weights.values()) == pytest.approx(expected)


@given(ensembles())
@PATIENT
def test_weights_of_prompts_sum_to_one(ensemble):
    for name in ensemble.class_names:
        weights = list(ensemble.prompts(name).values())
        assert math.isclose(sum(weights), 1)
        assert weights == sorted(weights, reverse=True)
        assert set(ensemble.prompts(name)) <= set(ensemble.texts())


def test_embedding_is_the_sum_of_the_banks_means():
    ensemble, rows = random_ensemble(np.random.default_rng(0), n_classes=5, n_rounds=7)
    head = ensemble.embed(rows)
    for name, found in zip(ensemble.class_names, head.weights, strict=True):
        total = np.zeros(16)
        for item in ensemble.rounds:
            copies = [rows[t] for t, count in item.banks[name].items() for _ in range(count)]
            total += np.mean(copies, axis=0)
        np.testing.assert_allclose(found, total, rtol=1e-6, atol=1e-6)
        weighted = sum(w * rows[t] for t, w in ensemble.prompts(name).items())
        np.testing.assert_allclose(found, 7 * weighted, rtol=1e-6, atol=1e-6)


def test_head_knows_where_it_comes_from():
    encoder = FakeEncoder(dim=8, seed=3)
    head = pets(temperature=0.5).embed(encoder)
    assert isinstance(head, Head)
    assert head.weights.shape == (2, 8)
    assert (head.encoder_id, head.encoder_fingerprint) == (encoder.id, encoder.fingerprint)
    assert (head.rounds, head.temperature) == (3, 0.5)
    assert head.ensemble_fingerprint == pets(temperature=0.5).fingerprint
    assert pets().embed(encoder.encode_texts).encoder_id is None


def test_another_encoder_is_all_there_is_to_transfer():
    here, there = FakeEncoder(seed=0), FakeEncoder(dim=24, seed=1)
    ensemble = pets()
    for encoder in (here, there):
        images = encoder.encode_texts(["cat", "dog"])
        assert ensemble.embed(encoder).predict(images).tolist() == ["cat", "dog"]


def test_the_heads_after_each_round_are_those_of_shorter_ensembles():
    encoder, ensemble = FakeEncoder(), pets()
    head = ensemble.embed(encoder)
    last = replace(head, residual=np.ones_like(head.weights), text_scale=2.0)
    stages = list(staged_heads(ensemble, encoder, last))
    assert [stage.rounds for stage in stages] == [1, 2, 3]
    for number, stage in enumerate(stages, start=1):
        assert stage.weights.dtype == np.float64
        shorter = ensemble.truncate(number).embed(encoder)
        np.testing.assert_allclose(stage.weights, shorter.weights, atol=1e-6)
        assert (stage.residual is None) == (number < 3)
    np.testing.assert_allclose(stages[-1].matrix, last.matrix, atol=1e-5)


def test_the_most_copies_that_a_file_can_hold_have_a_mean():
    most = LARGEST_INTEGER // 3
    banks = {"cat": {"a": 3 * most, "b": most}, "dog": {"b": 1}}
    ensemble = PromptEnsemble(("cat", "dog"), (Round("{}", banks, 0, 0),))
    head = ensemble.embed({"a": [1.0, 0.0], "b": [0.0, 1.0]})
    assert head.weights.tolist() == [[0.75, 0.25], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ({}, "no row for 6 of 6 prompts"),
        (lambda texts: np.ones((2, 4)), r"shape \(2, 4\) for 6 prompts"),
        (lambda texts: np.ones(4), "one a prompt"),
        (lambda texts: np.float64(1), "one a prompt"),
        (lambda texts: np.ones((6, 1), dtype=int), "floating-point"),
        (lambda texts: np.full((6, 4), 0.6), "length one.*1.2.*'a red cat'"),
        (lambda texts: np.full((6, 4), np.nan), "length one"),
        (lambda texts: np.zeros((6, 4)), "length one"),
        (dict(zip(pets().texts(), map(np.ones, [1, 1, 1, 1, 1, 2]), strict=True)), "one length"),
    ],
)
def test_refuses_vectors_that_cannot_be(vectors, message):
    with pytest.raises(EmbeddingError, match=message):
        pets().embed(vectors)


def test_refuses_an_encoder_that_breaks_its_word():
    class Short(FakeEncoder):
        def encode_texts(self, texts):
            return super().encode_texts(texts)[:, :-1]

    with pytest.raises(EmbeddingError, match=r"encoder fake:8-0 gave float32 of shape \(6, 7\)"):
        pets().embed(Short(dim=8))
    with pytest.raises(InputError, match=r"object cannot embed texts.*lacks id"):
        pets().embed(object())


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"class_names": ("cat", "dog", "cat")}, LabelError, "'cat' occurs more than once"),
        ({"class_names": ("cat",)}, LabelError, "needs two"),
        ({"class_names": "cd"}, LabelError, "list of strings"),
        ({"class_names": ("cat", "")}, InputError, r"class_names\[1\]: is blank"),
        ({"class_names": ("cat", "dog", "cow")}, LabelError, r"rounds\[0\].banks: has no.*'cow'"),
        ({"class_names": ("cat", "cow")}, LabelError, "no bank for 'cow'"),
        ({"rounds": ()}, SettingError, "at least one round"),
        ({"rounds": [BANKS]}, InputError, "list of Round"),
        ({"rounds": 3}, InputError, "must be a list"),
        ({"temperature": 0.0}, SettingError, "temperature: must be positive"),
        ({"temperature": math.inf}, InputError, "temperature: must be a finite"),
        ({"settings": {"a": [1]}}, InputError, r'settings\["a"\]: must be a number, not a list'),
        ({"settings": {"a": math.nan}}, InputError, r'settings\["a"\]'),
        ({"settings": {1: 1}}, InputError, "key 1 must be a string"),
        ({"sample_weights": {"a": math.nan}}, InputError, r'sample_weights\["a"\]'),
        ({"versions": {"numpy": 2}}, InputError, r'versions\["numpy"\]: must be a string'),
        ({"history": "once"}, InputError, "history: must be a list"),
        ({"encoder_id": 3}, InputError, "encoder_id"),
    ],
)
def test_refuses_fields_that_cannot_be(fields, error, message):
    base = {"class_names": ("cat", "dog"), "rounds": (Round("{}", BANKS, 0, 0),)}
    with pytest.raises(error, match=message):
        PromptEnsemble(**(base | fields))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"banks": BANKS | {"cow": {"a cow": 1}}}, LabelError, r"rounds\[1\].banks.*'cow'"),
        ({"banks": BANKS | {"cat": {}}}, PoolError, r'rounds\[1\].banks\["cat"\]: is empty'),
        ({"banks": BANKS | {"cat": {"x": 0}}}, PoolError, r'banks\["cat"\]\["x"\].*not 0'),
        ({"banks": BANKS | {"cat": {"x": -1}}}, PoolError, "whole number"),
        ({"banks": BANKS | {"cat": {"x": 1.0}}}, PoolError, "whole number"),
        ({"banks": BANKS | {"cat": {"x": True}}}, PoolError, "whole number"),
        ({"banks": BANKS | {"cat": {" ": 1}}}, InputError, "is blank"),
        ({"banks": BANKS | {"cat": {"\ud800": 1}}}, InputError, "not valid Unicode"),
        ({"banks": BANKS | {"cat": ["x"]}}, InputError, "must be an object, not a list"),
        ({"error": math.nan}, InputError, r"rounds\[1\].error: must be a finite"),
        ({"error": 10**400}, InputError, r"rounds\[1\].error: must be a finite"),
        ({"template_error": None}, InputError, r"rounds\[1\].template_error.*null"),
        ({"template": 3}, InputError, r"rounds\[1\].template: must be a string"),
    ],
)
def test_refuses_rounds_that_cannot_be(fields, error, message):
    good = Round("{}", BANKS, 0, 0)
    bad = Round(**({"template": "{}", "banks": BANKS, "error": 0, "template_error": 0} | fields))
    with pytest.raises(error, match=message):
        PromptEnsemble(("cat", "dog"), (good, bad))
