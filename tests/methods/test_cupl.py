"""CuPL and the mean of the pool: which texts are in the mean, and what the mean is."""

import numpy as np
import pytest

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import PoolError
from promptboost.methods import FewShotSet, make_method
from promptboost.methods.base import RowImages
from promptboost.methods.sentence_means import CuPL, PoolMean
from promptboost.pool import build_pool

NAMES = ("fire", "ice")
ENCODER = FakeEncoder()
SAID = {"fire": ["Fire is red.", "Flames are hot."], "ice": ["Ice is blue."]}
OTHER = {"fire": ["It burns."], "ice": ["It melts."]}


def shots(encoder: FakeEncoder = ENCODER) -> FewShotSet:
    rows = encoder.encode_texts(["red fire", "blue ice"])[:, None]
    return FewShotSet(RowImages({encoder.id: rows}), np.array([0, 1]), NAMES)


POOL = build_pool(
    NAMES, templates=["a {}.", "the {}."], descriptions={"proapo:CuPL_full": SAID, "mine": OTHER}
)


def test_sentences_are_taken_as_they_are() -> None:
    fitted = CuPL().fit(shots(), POOL, ENCODER)
    assert [list(bank) for bank in fitted.banks] == [SAID["fire"], SAID["ice"]]


def test_templates_are_put_into_the_mean() -> None:
    fitted = make_method("cupl+templates").fit(shots(), POOL, ENCODER)
    assert list(fitted.words()[1]) == ["ice.", "the ice.", "Ice is blue."]


def test_without_templates_it_is_not_called_cupl_with_templates() -> None:
    bare = build_pool(NAMES, templates=[], descriptions={"CuPL": SAID})
    with pytest.raises(PoolError, match="the pool has none; type cupl for"):
        make_method("cupl+templates").check(shots(), bare, ENCODER)
    make_method("cupl").check(shots(), bare, ENCODER)


def test_a_class_is_the_normalized_mean_of_its_rows() -> None:
    given = shots()
    logits = CuPL().fit(given, POOL, ENCODER).logits(given.images)
    mean = ENCODER.encode_texts(SAID["fire"]).sum(axis=0)
    plainly = given.images.rows(ENCODER)[1] @ mean / np.linalg.norm(mean) * ENCODER.logit_scale
    assert logits[1, 0] == pytest.approx(plainly, rel=1e-5)


def test_the_pool_is_read_by_name_not_by_place() -> None:
    turned = build_pool(NAMES[::-1], templates=[], descriptions={"CuPL": SAID})
    assert list(CuPL().fit(shots(), turned, ENCODER).banks[0]) == SAID["fire"]


def test_the_source_is_a_setting() -> None:
    fitted = make_method("cupl?sources=mine").fit(shots(), POOL, ENCODER)
    assert list(fitted.words()[0]) == OTHER["fire"]


def test_a_pool_without_sentences_is_refused_before_any_work() -> None:
    with pytest.raises(PoolError, match="no sentences from 'cupl'"):
        CuPL().check(shots(), build_pool(NAMES), ENCODER)
    half = build_pool(NAMES, descriptions={"CuPL": {"ice": ["Ice is blue."]}})
    with pytest.raises(PoolError, match=r"'fire' has no sentences .* type cupl\+templates"):
        CuPL().check(shots(), half, ENCODER)
    CuPL(templates=True).check(shots(), half, ENCODER)


def test_the_mean_of_the_pool_has_all_of_it() -> None:
    given = shots()
    fitted = PoolMean().fit(given, POOL, ENCODER)
    assert list(fitted.banks[0]) == ["fire.", "the fire.", *SAID["fire"], *OTHER["fire"]]
    assert fitted.origin.method == "pool-mean"
    assert fitted.unit
