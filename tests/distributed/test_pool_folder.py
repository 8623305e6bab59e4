"""Rows of a pool in memory and on disk: same fit, and no files left behind."""

import gc
import tempfile

import msgspec
import numba
import numpy as np
import pytest

import promptboost.distributed.pool_folder as pool_folder
import promptboost.run.results as results
from promptboost.baselines import pool_heads
from promptboost.data.shots import load_task
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import PoolError
from promptboost.model import PromptEnsemble
from promptboost.pool import build_pool
from promptboost.run.fit import fit_run, pool_for
from promptboost.run.results import EmbeddedTask
from promptboost.training import PoolTexts, Trainer
from tests.progress_tools import Recorder
from tests.run.run_tools import ENCODER, request
from tests.training.test_ensembles import OPEN, Problem


@pytest.fixture
def on_disk(monkeypatch, tmp_path_factory):
    """Store every pool on disk; return the folder for temporary files."""
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def texts(names=("owl", "bat", "eel")):
    described = {name: [f"{name} {word}" for word in ("red", "blue", "green")] for name in names}
    return PoolTexts.of(build_pool(names, descriptions=described, concatenate="one"))


def embedder():
    return Embedder.open(ENCODER, cache=False)


def embed(texts, *embedders, folder=None):
    source = embedders[0] if len(embedders) == 1 else EncoderGroup(embedders)
    return results.embed_pool(texts, source, PoolExecutor(), folder)


def same(one, other):
    return (one.templates == other.templates).all() and all(
        (a == b).all() for a, b in zip(one.prompts, other.prompts, strict=True)
    )


def test_the_threshold_counts_the_bytes_of_the_rows(monkeypatch, tmp_path):
    words = texts()
    grid = words.embed(FakeEncoder().encode_texts)
    size = words.n_bytes(embedder().dim)
    assert size == grid.templates.nbytes + sum(block.nbytes for block in grid.prompts)
    monkeypatch.setattr(results, "MOST_IN_MEMORY", size)
    assert embed(words, embedder(), folder=tmp_path / "rows").cleanup is None
    assert not (tmp_path / "rows").exists()
    monkeypatch.setattr(results, "MOST_IN_MEMORY", size - 1)
    assert embed(words, embedder(), folder=tmp_path / "rows").cleanup is not None
    assert (tmp_path / "rows").is_dir()


def test_rows_on_disk_are_those_in_memory_and_go_when_released(monkeypatch, tmp_path):
    here = embed(texts(), embedder())
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    there = embed(texts(), embedder(), folder=tmp_path / "rows")
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
    here = embed(texts(), embedder(), other)
    assert here.grid.encoders == 2
    for number, one in enumerate((embedder(), other)):
        assert same(here.of(number, one.dim), embed(texts(), one).grid)
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    there = embed(texts(), embedder(), other, folder=tmp_path / "rows")
    assert same(here.grid, there.grid)
    assert there.grid.scales == here.grid.scales
    # Another second encoder has other rows, and those are not reused.
    third = Embedder.open("fake:16-2", cache=False)
    after = embed(texts(), embedder(), third, folder=tmp_path / "rows")
    assert not same(after.grid, here.grid)
    assert len(list((tmp_path / "rows").iterdir())) == 1


def test_without_a_folder_rows_do_not_outlive_their_owner(on_disk):
    rows = embed(texts(), embedder())
    assert len(list(on_disk.iterdir())) == 1
    del rows
    gc.collect()
    assert list(on_disk.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        embed(texts(), Embedder(Stopped(2)))
    assert list(on_disk.iterdir()) == []


class Stopped(FakeEncoder):
    """An encoder that is interrupted after some calls."""

    def __init__(self, calls=10**9):
        super().__init__()
        self.calls, self.asked = calls, 0

    def encode_texts(self, texts):
        if self.asked == self.calls:
            raise KeyboardInterrupt
        self.asked += 1
        return super().encode_texts(texts)


def test_interrupted_embedding_leaves_no_rows(on_disk, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        embed(texts(), Embedder(Stopped(2)), folder=tmp_path / "rows")
    assert not [path for path in (tmp_path / "rows").rglob("*") if path.is_file()]
    rows = embed(texts(), embedder(), folder=tmp_path / "rows")
    assert same(rows.grid, texts().embed(FakeEncoder().encode_texts))
    again = Stopped()
    assert same(embed(texts(), Embedder(again), folder=tmp_path / "rows").grid, rows.grid)
    assert again.asked == 0


def test_rows_of_another_pool_or_encoder_are_deleted(on_disk, tmp_path, monkeypatch):
    embed(texts(), embedder(), folder=tmp_path / "rows")
    (first,) = (tmp_path / "rows").iterdir()
    other = texts(("elk", "cow"))
    rows = embed(other, embedder(), folder=tmp_path / "rows")
    assert same(rows.grid, other.embed(FakeEncoder().encode_texts))
    (second,) = (tmp_path / "rows").iterdir()
    assert first != second
    monkeypatch.undo()  # now the pool is small
    embed(other, embedder(), folder=tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("limit", [0, 2**40])
def test_progress_reaches_the_number_of_prompts(monkeypatch, limit):
    monkeypatch.setattr(results, "MOST_IN_MEMORY", limit)
    words, progress = texts(), Recorder()
    results.embed_pool(words, embedder(), PoolExecutor(), progress=progress)
    progress.check("encoding texts")
    total = sum(map(len, words.prompt_texts))
    assert progress.calls[-1] == ("encoding texts", total, total)


@pytest.mark.parametrize("composer", ["gradient", "greedy"])
@pytest.mark.parametrize("cache", [True, False])
def test_a_fit_from_disk_is_the_same_to_the_last_byte(task, on_disk, monkeypatch, composer, cache):
    options = {"composer": composer, "concatenate": "all", "rounds": 3, "cache": cache}
    there = fit_run(**request(task, "there", executor=PoolExecutor(), **options))
    assert list(on_disk.iterdir()) == []
    assert not [file for file in (task / "there").iterdir() if file.is_dir()]
    monkeypatch.undo()
    here = fit_run(**request(task, "here", **options))
    for name in ("ensemble.json", "predictions.csv", "head-fake-32-0.safetensors"):
        assert (task / "here" / name).read_bytes() == (task / "there" / name).read_bytes()
    assert msgspec.structs.replace(here, timing=there.timing) == there


def test_an_interrupted_fit_keeps_its_rows_and_a_finished_one_does_not(task, on_disk):
    asked = request(task)["settings"].merged({"concatenate": "all"})
    work = load_task(str(task / "images"), asked)
    pool = pool_for(asked, "images", work.class_names)
    so_far = []

    def stop(ensemble, _):
        so_far.append(ensemble)
        if len(ensemble) == 2:
            raise KeyboardInterrupt

    def embed_with(encoder):
        return EmbeddedTask.embed(
            work, pool, asked, Embedder(encoder), executor=PoolExecutor(), folder=task / "rows"
        )

    def fit(embedded, **options):
        notes = {"view_scale": asked.view_scale, "shots": asked.shots}
        examples, rows = embedded.examples(work), embedded.pool_rows
        return Trainer(asked).fit(examples, rows, embedded.members, notes=notes, **options)

    with pytest.raises(KeyboardInterrupt):
        fit(embed_with(FakeEncoder()), on_round=stop)
    again = Stopped()
    embedded = embed_with(again)
    assert again.asked == 0, "the rows were found again"
    fitted = fit(embedded, resume=so_far[-1])
    embedded.pool_rows.release()
    assert not (task / "rows").exists()
    fit_run(**request(task, concatenate="all"))
    assert fitted.ensemble == PromptEnsemble.load(task / "run" / "ensemble.json")


def test_what_texts_alone_say_is_the_same_streamed_and_from_rows():
    pool, source = build_pool(["owl", "bat"], concatenate="none"), embedder()
    streamed = pool_heads(pool, source)
    kept = pool_heads(pool, source, embed(PoolTexts.of(pool), source).grid)
    for name, head in streamed.items():
        assert (head.weights == kept[name].weights).all()


# --- the folder -----------------------------------------------------------------------------------


def birds(**more):
    return PoolTexts.of(
        build_pool(
            ["owl", "bat", "eel"],
            templates=["a {}.", "the {}.", "A {}."],
            descriptions={"owl": ["eyes", "beak"], "bat": ["wings"]},
            concatenate="all",
            **more,
        )
    )


class Interrupted:
    """A function that embeds and is interrupted after some calls."""

    def __init__(self, calls=10**9):
        self.calls = calls
        self.asked = []

    def __call__(self, texts):
        if len(self.asked) == self.calls:
            raise KeyboardInterrupt
        self.asked.append(texts)
        return FakeEncoder().encode_texts(texts)


def embed_to(texts, folder, encode=None):
    return pool_folder.write_pool(
        folder, texts, texts.blocks(encode or Interrupted()), FakeEncoder().dim
    )


def test_rows_of_a_folder_are_those_in_memory(tmp_path):
    texts = birds()
    grid = embed_to(texts, tmp_path / "rows")
    assert same(grid, texts.embed(FakeEncoder().encode_texts))
    # Mapped, not loaded: what the file says is what boosting sees.
    owner = grid.prompts[0]
    while owner.base is not None and not isinstance(owner, np.memmap):
        owner = owner.base
    assert isinstance(owner, np.memmap)
    again, known = embed_to(texts, tmp_path / "rows", Interrupted(calls=0)), texts.prompt_texts
    assert same(again, grid)
    assert [len(rows) for rows in again.prompts] == [len(own) for own in known]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError, match=r"cannot write the rows of the pool to .*file"):
        embed_to(birds(), tmp_path / "file")


def test_a_fit_from_disk_has_the_same_text(tmp_path):
    problem = Problem()

    def encode(texts):
        return np.stack([problem.vectors[text] for text in texts])

    whole = problem.fit(rounds=3)
    dim = len(next(iter(problem.vectors.values())))
    problem.pool = pool_folder.write_pool(
        tmp_path, problem.texts, problem.texts.blocks(encode), dim
    )
    assert problem.fit(rounds=3).to_json(sample_weights=True) == whole.to_json(sample_weights=True)
    gradient = problem.fit(rounds=1, **OPEN)
    problem.pool = problem.texts.embed(encode)
    assert problem.fit(rounds=1, **OPEN).to_json(sample_weights=True) == gradient.to_json(
        sample_weights=True
    )
