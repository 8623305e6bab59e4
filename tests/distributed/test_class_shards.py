"""Pools embedded by an engine, class by class: the ensemble of one process."""

import json

import numpy as np
import pytest

import promptboost.run.results as results
from promptboost.data.shots import load_task
from promptboost.distributed.engine import Engine, Placement
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.encoders.embedder import open_embedder
from promptboost.errors import RunError
from promptboost.run.fit import fit_run, pool_for
from promptboost.run.results import EmbeddedTask
from promptboost.training import Trainer
from tests.run.run_tools import ENCODER, SENTENCES, request


@pytest.fixture(autouse=True)
def engine_here(monkeypatch):
    """Process the units of every placement in this process."""
    monkeypatch.setattr(Placement, "engine", lambda *_: Engine())


def embed(task, pool, settings, encoder, folder, placement=None):
    executor = PoolExecutor(placement)
    return EmbeddedTask.embed(task, pool, settings, encoder, executor=executor, folder=folder)


def fitted_text(task, embedded, settings):
    """Return the ensemble of a fit and remove its rows."""
    examples, rows = embedded.examples(task), embedded.pool_rows
    ensemble = Trainer(settings).fit(examples, rows, embedded.members).ensemble
    rows.release()
    return ensemble


@pytest.mark.parametrize("encoders", [(ENCODER,), (ENCODER, "fake:16-7")])
def test_units_of_an_engine_give_the_text_of_one_process(task, tmp_path, monkeypatch, encoders):
    asked = request(task)
    data = load_task(asked["source"], asked["settings"])
    pool = pool_for(asked["settings"], asked["source"], data.class_names)
    encoder = open_embedder(encoders, cache=False)

    def text(placement):
        embedded = embed(data, pool, asked["settings"], encoder, tmp_path / "rows", placement)
        return fitted_text(data, embedded, asked["settings"])

    in_memory = text(None)
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    assert text(Placement("ray")) == in_memory == text(None)
    assert not (tmp_path / "rows").exists()


def test_the_scale_is_chosen_on_a_part_of_the_pool_which_the_engine_does_not_know(
    task, tmp_path, monkeypatch
):
    """With more prompts than are drawn, the numbers differ from those of the whole pool."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 300, (len(SENTENCES), 600, 5))
    sentences = {
        name: [" ".join(f"w{word}" for word in text) for text in texts]
        for name, texts in zip(SENTENCES, words, strict=True)
    }
    (task / "sentences.json").write_text(json.dumps(sentences))
    asked = request(task, rounds=1)
    data = load_task(asked["source"], asked["settings"])
    pool = pool_for(asked["settings"], asked["source"], data.class_names)
    encoder = open_embedder([ENCODER], cache=False)

    def text(placement):
        embedded = embed(data, pool, asked["settings"], encoder, tmp_path / "rows", placement)
        return fitted_text(data, embedded, asked["settings"])

    in_memory = text(None)
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    assert text(Placement("ray")) == in_memory


def test_a_class_that_cannot_be_embedded_is_named_and_the_others_are_kept(
    task, tmp_path, monkeypatch
):
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    asked = request(task)
    data = load_task(asked["source"], asked["settings"])
    pool = pool_for(asked["settings"], asked["source"], data.class_names)
    encoder = open_embedder([ENCODER], cache=False)
    from promptboost.encoders.fake import FakeEncoder

    whole = FakeEncoder.encode_texts
    word = data.class_names[1]

    def fails(self, texts):
        if any(word in text for text in texts):
            raise RuntimeError("out of memory")
        return whole(self, texts)

    monkeypatch.setattr(FakeEncoder, "encode_texts", fails)
    with pytest.raises(RunError, match=r"1 of 4 shards of texts could not.*out of memory"):
        embed(data, pool, asked["settings"], encoder, tmp_path / "rows", Placement("ray"))
    done = len(list((tmp_path / "rows").rglob("units/*.int16")))
    assert done == len(data.class_names) - 1
    monkeypatch.setattr(FakeEncoder, "encode_texts", whole)
    embed(data, pool, asked["settings"], encoder, tmp_path / "rows", Placement("ray"))


def test_a_small_pool_is_read_here_and_that_is_said(task):
    said = []
    fit_run(**request(task, executor=PoolExecutor(Placement("ray"))), say=said.append)
    assert any("fits into memory" in line for line in said)
