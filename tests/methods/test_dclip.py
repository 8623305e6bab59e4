"""DCLIP: what a prompt says, and what a score is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import PoolError
from promptboost.methods import FewShotSet
from promptboost.methods.base import RowImages
from promptboost.methods.sentence_means import DCLIP
from promptboost.pool import PromptPool, build_pool
from promptboost.pool.readers import read_sources

NAMES = ("barn_owl", "bat")
ENCODER = FakeEncoder()


def shots(encoder: FakeEncoder = ENCODER) -> FewShotSet:
    rows = encoder.encode_texts(["barn owl", "bat"])[:, None]
    return FewShotSet(RowImages({encoder.id: rows}), np.array([0, 1]), NAMES)


def pool_of(said: Mapping[str, Sequence[str]], source: str = "DCLIP") -> PromptPool:
    return build_pool(NAMES, descriptions={source: said})


@pytest.mark.parametrize(
    ("fragment", "prompt"),
    [
        ("large round eyes", "barn owl, which has large round eyes."),
        ("a nocturnal bird", "barn owl, which is a nocturnal bird."),
        ("used for hunting", "barn owl, which is used for hunting."),
        ("may have a white face", "barn owl, which may have a white face."),
        ("antlers", "barn owl, which has antlers."),
    ],
)
def test_a_fragment_gets_its_class_and_a_connector(fragment: str, prompt: str) -> None:
    fitted = DCLIP().fit(shots(), pool_of({"barn_owl": [fragment], "bat": ["wings"]}), ENCODER)
    assert dict(fitted.banks[0]) == {prompt: 1.0}


def test_what_the_reader_has_connected_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "descriptors_birds.json"
    path.write_text('{"Barn Owl": ["large eyes", "a beak"], "bat": ["wings"]}', encoding="utf-8")
    (source,) = read_sources(path)
    read = {"barn_owl": source.texts(["Barn Owl"], "barn_owl"), "bat": source.texts(["bat"], "bat")}
    raw = {"barn_owl": ["large eyes", "a beak"], "bat": ["wings"]}
    from_reader = DCLIP().fit(shots(), pool_of(read, source.name), ENCODER)
    assert from_reader.banks == DCLIP().fit(shots(), pool_of(raw), ENCODER).banks
    assert list(from_reader.banks[0]) == [
        "barn owl, which has large eyes.",
        "barn owl, which is a beak.",
    ]


def test_a_class_without_descriptors_is_its_name_alone() -> None:
    fitted = DCLIP().fit(shots(), pool_of({"bat": ["wings"]}), ENCODER)
    assert dict(fitted.banks[0]) == {"barn owl": 1.0}


def test_similarities_are_averaged_not_embeddings() -> None:
    pool = pool_of({"barn_owl": ["large eyes", "a beak"], "bat": ["wings"]})
    given = shots()
    logits = DCLIP().fit(given, pool, ENCODER).logits(given.images)
    owl = ENCODER.encode_texts(["barn owl, which has large eyes.", "barn owl, which is a beak."])
    image = given.images.rows(ENCODER)[0]
    plainly = ENCODER.logit_scale * (image @ owl[0] + image @ owl[1]) / 2
    assert logits[0, 0] == pytest.approx(plainly, rel=1e-5)


def test_other_sources_are_not_looked_at() -> None:
    files = {"DCLIP": {"bat": ["wings"]}, "CuPL": {"bat": ["A bat flies."]}}
    fitted = DCLIP().fit(shots(), build_pool(NAMES, descriptions=files), ENCODER)
    assert dict(fitted.banks[1]) == {"bat, which has wings.": 1.0}


def test_a_pool_without_descriptors_is_refused_before_any_work() -> None:
    with pytest.raises(PoolError, match=r"no sentences from 'dclip'; it has templates only"):
        DCLIP().check(shots(), build_pool(NAMES), ENCODER)
    with pytest.raises(PoolError, match="it has CuPL"):
        DCLIP().check(shots(), pool_of({"bat": ["wings"]}, "CuPL"), ENCODER)
