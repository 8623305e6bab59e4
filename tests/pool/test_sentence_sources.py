"""The sentences of a pool by where they come from."""

import pytest

from promptboost.errors import PoolError
from promptboost.pool import build_pool
from promptboost.pool.pool import of_sources, sentence_sources, sentences
from tests.methods.small_task import NAMES, POOL, SAID


def test_the_first_word_and_the_parts_around_a_colon_are_enough_in_any_case() -> None:
    for wanted in ("cupl", "CuPL_Full", "proapo", "proapo:cupl_full"):
        assert sentence_sources(POOL, wanted) == ["proapo:CuPL_full"]
    assert sentence_sources(POOL, "mine, cupl,") == ["proapo:CuPL_full", "mine"]
    assert sentence_sources(POOL) == sentence_sources(POOL, " , ") == ["proapo:CuPL_full", "mine"]


def test_sentences_are_those_of_all_sources_named() -> None:
    texts = [[p.text for p in own] for own in sentences(POOL, "mine,cupl")]
    assert texts == [["it is red", "it is old", "it burns"], ["it is blue", "it is old"]]
    assert [len(own) for own in sentences(POOL, "mine")] == [1, 0]


def test_concatenations_are_no_sentences() -> None:
    pool = build_pool(NAMES, descriptions={"CuPL": SAID}, concatenate="one")
    assert [len(own) for own in sentences(pool, "")] == [2, 2]
    assert sentence_sources(pool) == ["CuPL"]
    assert of_sources(pool, "cupl").prompts_by_source["concat"] == 4


def test_a_pool_without_templates_can_be_divided() -> None:
    pool = build_pool(NAMES, templates=[], descriptions={"CuPL": SAID, "mine": SAID | {"x": []}})
    assert of_sources(pool, "cupl").prompts_by_source == {"CuPL": 4}


def test_what_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(PoolError, match=r"no sentences from 'awt'; it has proapo:CuPL_full, mine"):
        of_sources(POOL, "cupl,awt")
    with pytest.raises(PoolError, match="it has templates only"):
        sentences(build_pool(NAMES), "cupl")
