"""A large pool read by many processes: the same prompts in the same order, and the same text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptboost.training.pool_rows as pool_rows
from promptboost.boosting.gradient import banks as banks_module
from promptboost.boosting.gradient.banks import Banks, rank_class
from promptboost.boosting.grid import COSINE_UNIT, ROW_UNIT, to_grid
from promptboost.boosting.problem import GridPool
from promptboost.data.shots import load_task
from promptboost.encoders.embedder import Embedder
from promptboost.errors import RunError
from promptboost.evaluation.world import pool_for
from promptboost.runs.fit import fit_run
from promptboost.runs.learned import embed_task, learn
from promptboost.scale.engine import LocalEngine, Placement
from promptboost.training.class_blocks import SharedRanker, rank_blocks
from tests.runs.run_tools import ENCODER, SENTENCES, request


def plain_slopes(prompts, gradient):
    """What each prompt would change, as whole numbers: nothing but the definition."""
    length = np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
    whole = np.rint(gradient * (ROW_UNIT / length)).astype(np.int64)
    return (prompts.astype(np.int64) @ whole) * (length / COSINE_UNIT)


@st.composite
def pools(draw):
    """Two classes of many prompts, of which most are copies of a few: ties everywhere."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    distinct = draw(st.integers(2, 6))

    def unit(*shape):
        rows = rng.standard_normal((*shape, 4))
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    prompts = [unit(distinct)[rng.integers(0, distinct, 150)] for _ in range(2)]
    return GridPool.from_rows(unit(2, 1), prompts), rng


@settings(max_examples=40)
@given(pools())
def test_of_equal_prompts_the_first_is_taken_as_if_all_had_been_compared(made):
    pool, rng = made
    banks = Banks(pool, 0, 12, 0.3)
    for _ in range(5):
        gradient = rng.standard_normal((2, 4)).astype(np.float32)
        banks.find_moves(gradient, whole_pool=True)
        for k, rows in enumerate(pool.prompts):
            slopes = plain_slopes(rows, gradient[k])
            for prompt, copies in banks.members[k].items():
                if prompt >= 0:
                    exact = (rows[prompt].astype(np.float32) / ROW_UNIT) @ gradient[k]
                    slopes[prompt] = exact + 0.3 * copies / 12
            target = int(banks.held.targets[k])
            assert slopes[target] <= slopes.min() + 1e-5
            equal = np.flatnonzero(slopes == slopes[target])
            assert target == equal[0] or target in banks.members[k]
        for k, move in enumerate(banks.moves):
            if move is not None:
                banks.apply(k, 1)


def test_ranked_prompts_are_the_least_and_the_first_of_equal_ones():
    rows = to_grid(np.eye(3)[[0, 1, 0, 2, 1, 0]])
    numbers, slopes = rank_class(rows, np.float32([0.0, -1.0, 1.0]), 1.0, 3)
    assert numbers.tolist() == [0, 1, 4]
    assert np.allclose(slopes, [0, -1, -1], atol=1e-3)


def test_a_bank_longer_than_the_list_of_candidates_hides_nothing(monkeypatch):
    monkeypatch.setattr(banks_module, "CANDIDATES", 2)
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2, 40, 5))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    pool = GridPool.from_rows(rows[:, :1], list(rows))
    banks = Banks(pool, 0, 32, 4.0)
    for _ in range(30):
        gradient = rng.standard_normal((2, 5)).astype(np.float32)
        banks.find_moves(gradient, whole_pool=True)
        for k in range(2):
            slopes = plain_slopes(pool.prompts[k], gradient[k])
            for prompt, copies in banks.members[k].items():
                if prompt >= 0:
                    slopes[prompt] += 4.0 * copies / 32
            assert slopes[banks.held.targets[k]] <= slopes.min() + 2e-4
        for k, move in enumerate(banks.moves):
            if move is not None:
                banks.apply(k, 1)
    assert max(map(len, banks.members)) > 3


def test_blocks_of_a_file_are_ranked_as_arrays_are(tmp_path):
    rng = np.random.default_rng(0)
    blocks = [to_grid(unit / np.linalg.norm(unit, axis=1, keepdims=True)) for unit in
              (rng.standard_normal((n, 8)) for n in (90, 30, 70))]  # fmt: skip
    file = tmp_path / "rows.int16"
    file.write_bytes(b"".join(block.tobytes() for block in blocks))
    gradient = rng.standard_normal((3, 8)).astype(np.float32)
    places = [(0, 90), (90, 120), (120, 190)]
    expected = [rank_class(b, g, 1.0, 64) for b, g in zip(blocks, gradient, strict=True)]
    ranker = SharedRanker(LocalEngine(), file, 8, places)
    for ranked in (ranker(gradient, 1.0, 64), rank_blocks(str(file), 8, places, gradient, 1.0, 64)):
        for one, other in zip(ranked, expected, strict=True):
            assert np.array_equal(one[0], other[0])
            assert np.array_equal(one[1], other[1])


@pytest.mark.parametrize("encoders", [(ENCODER,), (ENCODER, "fake:16-7")])
def test_units_and_ranks_of_an_engine_give_the_text_of_one_process(
    task, tmp_path, monkeypatch, encoders
):
    asked = request(task)
    data = load_task(asked.source, asked.settings, progress=False)
    pool = pool_for(asked.settings, asked.source, data.class_names)
    first, *further = [Embedder.open(name, cache=False, progress=False) for name in encoders]

    def text(engine):
        rows = embed_task(data, pool, asked.settings, first, tmp_path / "rows", further, engine)
        assert (rows.pool_rows.grid.ranker is None) == (engine is None)
        return learn(data, rows, asked.settings, first).ensemble

    in_memory = text(None)
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    assert text(LocalEngine()) == in_memory == text(None)
    assert not (tmp_path / "rows").exists()


def test_the_scale_is_chosen_on_a_part_of_the_pool_which_the_engine_does_not_rank(
    task, tmp_path, monkeypatch
):
    """More prompts than are drawn for that: their numbers are not those of the whole pool."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 300, (len(SENTENCES), 600, 5))
    sentences = {
        name: [" ".join(f"w{word}" for word in text) for text in texts]
        for name, texts in zip(SENTENCES, words, strict=True)
    }
    (task / "sentences.json").write_text(json.dumps(sentences))
    asked = request(task, rounds=1)
    data = load_task(asked.source, asked.settings, progress=False)
    pool = pool_for(asked.settings, asked.source, data.class_names)
    embedder = Embedder.open(ENCODER, cache=False, progress=False)

    def text(engine):
        rows = embed_task(data, pool, asked.settings, embedder, tmp_path / "rows", (), engine)
        return learn(data, rows, asked.settings, embedder).ensemble

    in_memory = text(None)
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    assert text(LocalEngine()) == in_memory


def test_a_class_that_cannot_be_embedded_is_named_and_the_others_are_kept(
    task, tmp_path, monkeypatch
):
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    asked = request(task)
    data = load_task(asked.source, asked.settings, progress=False)
    pool = pool_for(asked.settings, asked.source, data.class_names)
    embedder = Embedder.open(ENCODER, cache=False, progress=False)
    from promptboost.encoders.fake import FakeEncoder

    whole = FakeEncoder.encode_texts
    word = data.class_names[1]

    def fails(self, texts):
        if any(word in text for text in texts):
            raise RuntimeError("out of memory")
        return whole(self, texts)

    monkeypatch.setattr(FakeEncoder, "encode_texts", fails)
    with pytest.raises(RunError, match=r"1 class could not be embedded.*out of memory"):
        embed_task(data, pool, asked.settings, embedder, tmp_path / "rows", (), LocalEngine())
    done = len(list((tmp_path / "rows").rglob("*.int16")))
    assert done == len(data.class_names) - 1
    monkeypatch.setattr(FakeEncoder, "encode_texts", whole)
    embed_task(data, pool, asked.settings, embedder, tmp_path / "rows", (), LocalEngine())


def test_a_small_pool_is_read_here_and_that_is_said(task):
    said = []
    fit_run(request(task, placement=Placement("ray")), said.append)
    assert any("fits into memory" in line for line in said)
