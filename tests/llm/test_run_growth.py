"""Growing the pool of a run: a saved pool stays one, sentences stay sentences."""

import json

import pytest

from promptboost.errors import RunError
from promptboost.llm.growth import check_growable, fit_command, write_grown
from promptboost.pool import build_pool, save_pool
from promptboost.pool.io import load_pool
from promptboost.run.fit import fit_run
from tests.run.run_tools import SENTENCES, request

MORE = {"sea": ["waves all over", "deep blue water"]}


@pytest.fixture
def pooled(task):
    """A run fitted with a saved pool."""
    pool = build_pool(
        list(SENTENCES),
        templates=["a {}.", "the {}."],
        descriptions={"mine": SENTENCES},
        concatenate="all",
    )
    save_pool(pool, task / "pool.jsonl")
    fit_run(**request(task, prompts=str(task / "pool.jsonl"), rounds=1))
    return task


def test_a_saved_pool_grows_into_a_pool(pooled):
    grown = write_grown(pooled / "run", MORE, pooled / "grown.jsonl")
    assert grown["sea"] == [*SENTENCES["sea"], "waves all over"]
    before, after = load_pool(pooled / "pool.jsonl"), load_pool(pooled / "grown.jsonl")
    for name in SENTENCES:
        old = list(before.prompts(name))
        assert list(after.prompts(name))[: len(old)] == old
    (added,) = list(after.prompts("sea"))[len(before.prompts("sea")) :]
    assert (added.text, added.source) == ("waves all over", "grown")
    assert f"-o NEW_RUN --config {pooled}/run/run.toml --prompts {pooled}/grown.jsonl" in (
        fit_command(pooled / "run", pooled / "grown.jsonl")
    )


def test_the_file_must_be_able_to_hold_what_grows(pooled):
    check_growable(pooled / "run", pooled / "grown.jsonl")
    with pytest.raises(RunError, match=r"a saved pool.*ends in \.jsonl"):
        check_growable(pooled / "run", pooled / "grown.json")
    with pytest.raises(RunError, match="so it is not replaced"):
        check_growable(pooled / "run", pooled / "pool.jsonl")
    fit_run(**request(pooled, "plain", rounds=1))
    with pytest.raises(RunError, match=r"fitted with sentences.*ends in \.json"):
        check_growable(pooled / "plain", pooled / "grown.jsonl")


def test_sentences_of_any_format_grow(task):
    (task / "descriptors_sea.json").write_text(json.dumps({"Sea": ["waves"]}))
    fit_run(**request(task, prompts=str(task / "descriptors_sea.json"), rounds=1))
    grown = write_grown(task / "run", MORE, task / "grown.json")
    assert grown == json.loads((task / "grown.json").read_text())
    assert grown == {"sea": ["sea, which has waves.", "waves all over", "deep blue water"]}
