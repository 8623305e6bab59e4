"""A large pool read by many processes: the same prompts in the same order, and the same text."""

import json
from dataclasses import replace

import numpy as np
import pytest

import promptboost.distributed.pool_folder as pool_folder
from promptboost.boosting.gradient import blocks as blocks_module
from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.grid import GridPool, to_grid
from promptboost.data.shots import load_task
from promptboost.distributed.class_blocks import SharedKeeper
from promptboost.distributed.engine import LocalEngine, LocalResidents, Placement, ResidentLostError
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.encoders.group import open_embedder
from promptboost.errors import RunError
from promptboost.run.fit import fit_run
from promptboost.run.measurement import EmbeddedTask
from promptboost.run.preflight import pool_for
from promptboost.testing import clip_like
from promptboost.training import Trainer
from tests.run.run_tools import ENCODER, SENTENCES, request


class SeveralHere(LocalEngine):
    """Residents as on a cluster, all in this process; some calls find that one has ended."""

    def __init__(self, workers, lose=()):
        self.workers, self.lose, self.calls, self.begun = workers, set(lose), 0, 0

    def residents(self, part, settings, most):
        self.begun += 1
        made = [super(SeveralHere, self).residents(part, settings, 1) for _ in range(self.workers)]
        return _Posted(self, [one._residents[0] for one in made][:most])


class _Posted(LocalResidents):
    def __init__(self, engine, residents):
        super().__init__(residents)
        self.engine, self.lost = engine, False

    def ask(self, number, call, *given):
        frozen = [one.copy() if isinstance(one, np.ndarray) else one for one in given]
        for one in frozen:
            if isinstance(one, np.ndarray):
                one.flags.writeable = False  # as what comes out of a cluster is
        answer = super().ask(number, call, *frozen)
        self.engine.calls += 1
        self.lost = self.lost or self.engine.calls in self.engine.lose
        lost = self.lost  # by now, and for ever

        def take():
            if lost:
                raise ResidentLostError("the machine was switched off")
            return answer()

        return take


@pytest.fixture
def composed(tmp_path, monkeypatch):
    """A function that composes on rows of a file in several residents, and what one process composes."""
    monkeypatch.setattr(blocks_module, "CLASSES", 2)
    task = clip_like(7, 4, prompts=150, templates=3, dim=16, confusion=2.5, seed=4)
    pool = GridPool.from_rows(task.templates, task.prompts)
    blocks = [np.concatenate(both) for both in zip(pool.templates, pool.prompts, strict=True)]
    file = tmp_path / "rows.int16"
    file.write_bytes(b"".join(block.tobytes() for block in blocks))

    def compose(engine=None, **others):
        keeper = None
        if engine is not None:
            keeper = SharedKeeper(engine, file, 16, list(map(len, blocks)), 3)
        return compose_by_gradient(
            to_grid(task.images),
            task.labels,
            np.ones(28),
            replace(pool, keeper=keeper),
            GradientSettings(logit_scale=40.0),
            rng=np.random.default_rng(0),
            **others,
        )

    return compose


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_a_composition_in_residents_is_that_of_one_process(composed, workers):
    engine = SeveralHere(workers)
    assert composed(engine) == composed()
    assert engine.begun == 1


def test_what_was_there_before_is_added_to_in_residents_too(composed):
    earlier = np.random.default_rng(0).normal(0, 0.1, (7, 16)).astype(np.float32)
    assert composed(SeveralHere(2), earlier=earlier) == composed(earlier=earlier) != composed()


@pytest.mark.parametrize("lose", [(1,), (2, 5), (9,), (40, 41), (30, 60, 90)])
def test_a_resident_that_ends_changes_no_text(composed, lose):
    engine, calls = SeveralHere(2, lose), []
    assert composed(engine, progress=lambda *call: calls.append(call)) == composed()
    assert calls[-1] == ("composing", 30, 30)
    assert all(done <= total for _, done, total in calls)
    assert 1 < engine.begun <= 1 + len(lose)


def test_residents_that_end_all_the_time_are_given_up(composed):
    with pytest.raises(RunError, match=r"ended while the text was composed.*switched off"):
        composed(SeveralHere(2, range(10**6)))


def test_images_are_written_once_and_those_of_an_earlier_draw_go(composed, tmp_path):
    seen = []

    def fresh(sweep):
        seen.append(sorted(tmp_path.glob("images-*")))
        rows = np.random.default_rng(sweep // 2).standard_normal((28, 16))
        return to_grid(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    assert composed(SeveralHere(2), fresh=fresh) == composed(fresh=fresh)
    assert {len(files) for files in seen if files} == {1}
    assert len({files[0] for files in seen if files}) > 1


def embed(task, pool, settings, encoder, folder, engine=None):
    executor = PoolExecutor(engine=engine)
    return EmbeddedTask.embed(task, pool, settings, encoder, executor=executor, folder=folder)


def fitted_text(task, embedded, settings):
    """The ensemble of a fit, whose rows are removed then."""
    examples, rows = embedded.examples(task), embedded.pool_rows
    ensemble = Trainer(settings).fit(examples, rows, embedded.members).ensemble
    rows.release()
    return ensemble


@pytest.mark.parametrize("encoders", [(ENCODER,), (ENCODER, "fake:16-7")])
def test_units_and_residents_of_an_engine_give_the_text_of_one_process(
    task, tmp_path, monkeypatch, encoders
):
    asked = request(task)
    data = load_task(asked["source"], asked["settings"])
    pool = pool_for(asked["settings"], asked["source"], data.class_names)
    encoder = open_embedder(encoders, cache=False)

    def text(engine):
        embedded = embed(data, pool, asked["settings"], encoder, tmp_path / "rows", engine)
        assert (embedded.pool_rows.grid.keeper is None) == (engine is None)
        return fitted_text(data, embedded, asked["settings"])

    in_memory = text(None)
    monkeypatch.setattr(pool_folder, "MOST_IN_MEMORY", 0)
    assert text(LocalEngine()) == in_memory == text(None)
    assert not (tmp_path / "rows").exists()


def test_the_scale_is_chosen_on_a_part_of_the_pool_which_the_engine_does_not_know(
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
    data = load_task(asked["source"], asked["settings"])
    pool = pool_for(asked["settings"], asked["source"], data.class_names)
    encoder = open_embedder([ENCODER], cache=False)

    def text(engine):
        embedded = embed(data, pool, asked["settings"], encoder, tmp_path / "rows", engine)
        return fitted_text(data, embedded, asked["settings"])

    in_memory = text(None)
    monkeypatch.setattr(pool_folder, "MOST_IN_MEMORY", 0)
    assert text(LocalEngine()) == in_memory


def test_a_class_that_cannot_be_embedded_is_named_and_the_others_are_kept(
    task, tmp_path, monkeypatch
):
    monkeypatch.setattr(pool_folder, "MOST_IN_MEMORY", 0)
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
    with pytest.raises(RunError, match=r"1 class could not be embedded.*out of memory"):
        embed(data, pool, asked["settings"], encoder, tmp_path / "rows", LocalEngine())
    done = len(list((tmp_path / "rows").rglob("*.int16")))
    assert done == len(data.class_names) - 1
    monkeypatch.setattr(FakeEncoder, "encode_texts", whole)
    embed(data, pool, asked["settings"], encoder, tmp_path / "rows", LocalEngine())


def test_a_small_pool_is_read_here_and_that_is_said(task):
    said = []
    fit_run(**request(task, executor=PoolExecutor(Placement("ray"), said.append)))
    assert any("fits into memory" in line for line in said)
