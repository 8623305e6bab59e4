"""Rows of a pool in memory and on disk: the same fit, and nothing left behind."""

import gc
import tempfile
from dataclasses import replace

import msgspec
import numba
import numpy as np
import pytest

import promptboost.training.pool_rows as pool_rows
from promptboost.baselines.baselines import pool_heads
from promptboost.data.shots import load_task
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.model import PromptEnsemble
from promptboost.pool import build_pool
from promptboost.pool.sources import pool_for
from promptboost.run.fit import fit_run
from promptboost.run.learned import embed_task, learn
from promptboost.training import PoolTexts
from promptboost.training.pool_rows import PoolRows
from tests.run.run_tools import ENCODER, request


@pytest.fixture
def on_disk(monkeypatch, tmp_path_factory):
    """Have every pool kept on disk; gives the folder for temporary files."""
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def texts(names=("owl", "bat", "eel")):
    described = {name: [f"{name} {word}" for word in ("red", "blue", "green")] for name in names}
    return PoolTexts.of(build_pool(names, descriptions=described, concatenate="one"))


def embedder():
    return Embedder.open(ENCODER, cache=False)


def same(one, other):
    return (one.templates == other.templates).all() and all(
        (a == b).all() for a, b in zip(one.prompts, other.prompts, strict=True)
    )


def test_the_threshold_counts_the_bytes_of_the_rows(monkeypatch, tmp_path):
    words = texts()
    grid = words.embed(FakeEncoder().encode_texts)
    size = words.n_bytes(32)
    assert size == grid.templates.nbytes + sum(block.nbytes for block in grid.prompts)
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", size)
    assert PoolRows.embed(words, embedder(), tmp_path / "rows").folder is None
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", size - 1)
    assert PoolRows.embed(words, embedder(), tmp_path / "rows").folder == tmp_path / "rows"


def test_rows_on_disk_are_those_in_memory_and_go_when_released(monkeypatch, tmp_path):
    here = PoolRows.embed(texts(), embedder())
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    there = PoolRows.embed(texts(), embedder(), tmp_path / "rows")
    assert same(here.grid, there.grid)
    # Of the same type to the compiler, which would take longer than the fit for another one.
    assert {numba.typeof(block) for block in (*here.grid.prompts, *there.grid.prompts)} == {
        numba.typeof(np.zeros((1, 1), np.int16))
    }
    assert (tmp_path / "rows").is_dir()
    there.release()
    here.release()
    assert not (tmp_path / "rows").exists()


def test_rows_of_several_encoders_are_side_by_side_in_memory_and_on_disk(monkeypatch, tmp_path):
    other = Embedder.open("fake:16-1", cache=False)
    here = PoolRows.embed(texts(), embedder(), further=[other])
    assert here.grid.encoders == 2
    for number, one in enumerate((embedder(), other)):
        assert same(here.of(number, one.dim), PoolRows.embed(texts(), one).grid)
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    there = PoolRows.embed(texts(), embedder(), tmp_path / "rows", [other])
    assert same(here.grid, there.grid)
    assert there.grid.scales == here.grid.scales
    # Another second encoder has other rows, and those are not gone on with.
    third = Embedder.open("fake:16-2", cache=False)
    after = PoolRows.embed(texts(), embedder(), tmp_path / "rows", [third])
    assert not same(after.grid, here.grid)
    assert len(list((tmp_path / "rows").iterdir())) == 1


def test_without_a_folder_rows_do_not_outlive_their_owner(on_disk):
    rows = PoolRows.embed(texts(), embedder())
    assert len(list(on_disk.iterdir())) == 1
    del rows
    gc.collect()
    assert list(on_disk.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        PoolRows.embed(texts(), Embedder(Stopped(2)))
    assert list(on_disk.iterdir()) == []


class Stopped(FakeEncoder):
    """Is interrupted after some calls."""

    def __init__(self, calls=10**9):
        super().__init__()
        self.calls, self.asked = calls, 0

    def encode_texts(self, texts):
        if self.asked == self.calls:
            raise KeyboardInterrupt
        self.asked += 1
        return super().encode_texts(texts)


def test_interrupted_embedding_goes_on_with_the_class_it_was_in(on_disk, tmp_path):
    whole = texts().embed(FakeEncoder().encode_texts)
    with pytest.raises(KeyboardInterrupt):
        PoolRows.embed(texts(), Embedder(Stopped(2)), tmp_path / "rows")
    rest = Stopped()
    rows = PoolRows.embed(texts(), Embedder(rest), tmp_path / "rows")
    assert rest.asked == 1  # a call a class
    assert same(rows.grid, whole)


def test_rows_of_another_pool_or_encoder_are_deleted(on_disk, tmp_path, monkeypatch):
    PoolRows.embed(texts(), embedder(), tmp_path / "rows")
    (first,) = (tmp_path / "rows").iterdir()
    other = texts(("elk", "cow"))
    rows = PoolRows.embed(other, embedder(), tmp_path / "rows")
    assert same(rows.grid, other.embed(FakeEncoder().encode_texts))
    (second,) = (tmp_path / "rows").iterdir()
    assert first != second
    monkeypatch.undo()  # now the pool is small
    PoolRows.embed(other, embedder(), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_progress_counts_the_texts_of_all_classes():
    words, calls = texts(), []
    PoolRows.embed(words, replace(embedder(), progress=lambda *call: calls.append(call)))
    total = sum(map(len, (*words.template_texts, *words.prompt_texts)))
    assert {(stage, most) for stage, _, most in calls} == {("encoding texts", total)}
    done = [number for _, number, _ in calls]
    assert done == sorted(done)
    assert done[-1] == total


@pytest.mark.parametrize("composer", ["gradient", "greedy"])
@pytest.mark.parametrize("cache", [True, False])
def test_a_fit_from_disk_is_the_same_to_the_last_byte(task, on_disk, monkeypatch, composer, cache):
    options = {"composer": composer, "concatenate": "all", "rounds": 3, "cache": cache}
    there = fit_run(request(task, "there", **options))
    assert list(on_disk.iterdir()) == []
    assert not [file for file in (task / "there").iterdir() if file.is_dir()]
    monkeypatch.undo()
    here = fit_run(request(task, "here", **options))
    for name in ("ensemble.json", "predictions.csv", "head-fake-32-0.safetensors"):
        assert (task / "here" / name).read_bytes() == (task / "there" / name).read_bytes()
    assert msgspec.structs.replace(here, timing=there.timing) == there


def test_an_interrupted_fit_keeps_its_rows_and_a_finished_one_does_not(task, on_disk):
    asked = request(task).settings.merged({"concatenate": "all"})
    work = load_task(str(task / "images"), asked)
    pool = pool_for(asked, "images", work.class_names)
    so_far = []

    def stop(ensemble):
        so_far.append(ensemble)
        if len(ensemble) == 2:
            raise KeyboardInterrupt

    def rows(encoder):
        return embed_task(work, pool, asked, Embedder(encoder), task / "rows")

    with pytest.raises(KeyboardInterrupt):
        learn(work, rows(FakeEncoder()), asked, embedder(), on_round=stop)
    # Found again: only the plain template is embedded.
    again = Stopped()
    kept = rows(again)
    assert again.asked == 1
    learned = learn(work, kept, asked, embedder(), resume=so_far[-1])
    assert not (task / "rows").exists()
    fit_run(request(task, concatenate="all"))
    assert learned.ensemble == PromptEnsemble.load(task / "run" / "ensemble.json")


def test_what_texts_alone_say_is_the_same_streamed_and_from_rows():
    pool, source = build_pool(["owl", "bat"], concatenate="none"), embedder()
    streamed = pool_heads(pool, source)
    kept = pool_heads(pool, source, PoolRows.embed(PoolTexts.of(pool), source).grid)
    for name, head in streamed.items():
        assert (head.weights == kept[name].weights).all()
