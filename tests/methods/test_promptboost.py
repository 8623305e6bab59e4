"""Boosting as one method among others."""

from pathlib import Path

import numpy as np
import pytest

from promptboost.encoders.embedder import Embedder
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import LabelError, PoolError, PromptBoostError, SettingError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import RowImages
from promptboost.methods.fitted import TextClassifier
from promptboost.methods.promptboost import ResidualClassifier
from promptboost.model import PromptEnsemble
from promptboost.pool import build_pool
from tests.methods.small_task import ENCODER, IMAGES, NAMES, OTHER, POOL, SAID, SHOTS, rows_of


@pytest.mark.parametrize(
    "name",
    [
        "promptboost?residual=off",
        "tpb?rounds=3",
        "tpb?rounds=1&max_copies=1",
        "tpb?rounds=3&views_per_round=0",
        "promptboost?logit_scale=50&temperature=2&residual=off",
        "tpb?rounds=2&sources=cupl",
        "promptboost?spread=0.5&caution=0&copies=8&sweeps=5&residual=off",
        "tpb?rounds=2&penalty=false&patience=1",
    ],
)
def test_it_classifies_as_its_ensemble_does(name: str) -> None:
    views = np.concatenate([IMAGES.views(ENCODER), IMAGES.views(ENCODER)[:, ::-1]], axis=1)
    shots = FewShotSet(RowImages({ENCODER.id: views}), SHOTS.labels, NAMES)
    fitted = make_method(name).fit(shots, POOL, ENCODER)
    assert isinstance(fitted, TextClassifier)
    ensemble = PromptEnsemble.from_json(fitted.details["ensemble"])
    head = ensemble.embed(ENCODER)
    unseen = RowImages({ENCODER.id: rows_of(ENCODER, "pale red", "ice", "fire", "blue dark")})
    index = head.predict_index(unseen.rows(ENCODER))
    assert fitted.predict(unseen).tolist() == index.tolist()
    assert fitted.predict(shots.images).tolist() == [0, 0, 1, 1]
    # Not the predictions only: scores are in proportion.
    ours = fitted.logits(unseen)
    theirs = head.scores(unseen.rows(ENCODER))
    assert np.corrcoef(ours[:, 0] - ours[:, 1], theirs[:, 0] - theirs[:, 1])[0, 1] > 0.9999


def test_the_ablations_do_what_they_say() -> None:
    def ensemble(name: str) -> PromptEnsemble:
        fitted = make_method(name).fit(SHOTS, POOL, ENCODER)
        assert isinstance(fitted, TextClassifier)
        return PromptEnsemble.from_json(fitted.details["ensemble"])

    assert len(ensemble("tpb?rounds=3")) == 3
    once = ensemble("tpb?rounds=3&max_copies=1")
    copies = [c for r in once.rounds for bank in r.banks.values() for c in bank.values()]
    assert set(copies) == {1}
    described = {"it is red", "it is blue", "it is old"}
    assert described & set(ensemble("promptboost").texts())
    assert not described & set(ensemble("promptboost?sources=mine").texts())


def test_sources_that_are_not_there_are_refused_before_any_work() -> None:
    with pytest.raises(PoolError, match="no sentences from 'awt'"):
        make_method("tpb?sources=awt").check(SHOTS, POOL, ENCODER)


def test_a_pool_of_other_classes_is_refused() -> None:
    turned = build_pool(NAMES[::-1], descriptions=SAID)
    with pytest.raises(PoolError, match="in the same order"):
        make_method("promptboost").fit(SHOTS, turned, ENCODER)


def test_settings_out_of_range_are_refused() -> None:
    for spelling in (
        "tpb?rounds=0",
        "tpb?temperature=0",
        "tpb?max_copies=0",
        "tpb?views_per_round=-1",
        "promptboost?logit_scale=-1",
        "tpb?seed=-1",
        "promptboost?spread=-1",
        "promptboost?copies=0",
        "promptboost?composer=real",
    ):
        with pytest.raises(PromptBoostError):
            make_method(spelling)  # before any image is read


def test_settings_of_the_other_composer_are_refused() -> None:
    with pytest.raises(SettingError, match="greedy composer"):
        make_method("promptboost?max_copies=1")
    with pytest.raises(SettingError, match="gradient composer"):
        make_method("tpb?logit_scale=50")


def test_what_cannot_be_boosted_is_refused_before_any_work() -> None:
    method = make_method("promptboost")
    with pytest.raises(PoolError, match="the pool has none; build one with templates"):
        method.check(SHOTS, build_pool(NAMES, templates=[], descriptions=SAID), ENCODER)
    one_class = FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), NAMES)
    with pytest.raises(LabelError, match="the class 'ice' has no image"):
        method.check(one_class, POOL, ENCODER)
    alone = FewShotSet(IMAGES, np.zeros(4, dtype=np.int64), NAMES[:1])
    with pytest.raises(LabelError, match="two classes"):
        method.check(alone, build_pool(NAMES[:1]), ENCODER)


def test_it_is_saved_and_carried_over(tmp_path: Path) -> None:
    fitted = make_method("promptboost").fit(SHOTS, POOL, ENCODER)
    save_fitted(fitted, tmp_path)
    again = load_fitted(tmp_path, ENCODER)
    np.testing.assert_allclose(again.logits(IMAGES), fitted.logits(IMAGES), rtol=1e-6)
    assert fitted.transfer(OTHER).predict(IMAGES).tolist() == [0, 0, 1, 1]


def test_it_learns_on_several_encoders_at_once() -> None:
    fitted = make_method(f"promptboost?also={OTHER.id}").fit(SHOTS, POOL, ENCODER)
    text = PromptEnsemble.from_json(fitted.details["ensemble"])
    assert [(item.id, item.fingerprint) for item in text.encoders] == [
        (one.id, one.fingerprint) for one in (ENCODER, OTHER)
    ]
    assert fitted.predict(IMAGES).tolist() == [0, 0, 1, 1]
    assert fitted.transfer(OTHER).predict(IMAGES).tolist() == [0, 0, 1, 1]
    alone = make_method("promptboost").fit(SHOTS, POOL, ENCODER)
    assert PromptEnsemble.from_json(alone.details["ensemble"]).rounds != text.rounds


def test_texts_of_further_encoders_are_in_the_store(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    method = make_method(f"promptboost?also={OTHER.id}")
    first = method.fit(SHOTS, POOL, Embedder(ENCODER, store))
    counts = {item.fingerprint: item.rows for item in store.report().encoders}
    assert counts[OTHER.fingerprint] == counts[ENCODER.fingerprint] > 0
    assert first.details == method.fit(SHOTS, POOL, ENCODER).details


@pytest.mark.parametrize("also", [ENCODER.id, f"{OTHER.id}+{OTHER.id}"])
def test_an_encoder_is_learned_on_once(also: str) -> None:
    with pytest.raises(SettingError, match="names an encoder twice"):
        make_method(f"promptboost?also={also}").check(SHOTS, POOL, ENCODER)


def test_with_a_residual_it_has_the_same_text_and_moves_it_alone(tmp_path) -> None:
    views = np.concatenate([IMAGES.views(ENCODER), IMAGES.views(ENCODER)[:, ::-1]], axis=1)
    # What is on the images is not what the sentences say.
    shots = FewShotSet(RowImages({ENCODER.id: views}), SHOTS.labels[::-1].copy(), NAMES)
    text, both = (
        make_method(name).fit(shots, POOL, ENCODER)
        for name in ("promptboost?residual=off", "promptboost")
    )
    assert isinstance(both, ResidualClassifier)
    assert both.words() == text.words()
    unseen = RowImages({ENCODER.id: rows_of(ENCODER, "pale red", "ice", "fire", "blue dark")})
    rows = unseen.rows(ENCODER)
    np.testing.assert_allclose(
        both.logits(unseen), rows @ (text.rows * both.text_scale + both.residual).T, rtol=1e-5
    )
    save_fitted(both, tmp_path / "kept")
    again = load_fitted(tmp_path / "kept", ENCODER)
    np.testing.assert_array_equal(again.logits(unseen), both.logits(unseen))
    moved = both.transfer(ENCODER)
    np.testing.assert_array_equal(moved.logits(unseen), text.logits(unseen))
