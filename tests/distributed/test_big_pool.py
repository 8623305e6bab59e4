"""A pool too large for memory, composed on by nodes of a real cluster: the text of one process."""

import json
import os
import signal

import numpy as np
import pytest
from PIL import Image

import promptboost.distributed.pool_folder as pool_folder
from promptboost.boosting.gradient.blocks import CLASSES
from promptboost.distributed import cluster as ray_cluster
from promptboost.distributed.class_blocks import SharedKeeper
from promptboost.distributed.engine import Placement
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.run.fit import fit_run
from tests.cli.cli_tools import FIT, call
from tests.run.run_tools import request

WORDS = ("red", "green", "blue", "dark", "light", "long", "round", "sharp")


@pytest.fixture
def many_classes(tmp_path, monkeypatch):
    """Three blocks of classes: images of noise around a color, and sentences that may name it."""
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "store"))
    rng = np.random.default_rng(0)
    sentences = {}
    for k in range(2 * CLASSES + 2):
        name = f"kind {k:03d}"
        (tmp_path / "images" / name).mkdir(parents=True)
        color = rng.integers(0, 256, 3)
        for number in range(3):
            pixels = np.clip(rng.normal(color, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
        sentences[name] = [" ".join(rng.choice(WORDS, 4)) for _ in range(4)]
    (tmp_path / "sentences.json").write_text(json.dumps(sentences))
    return tmp_path


def fit_of(root, run, **options):
    asked = {"rounds": 2, "shots": 2, "views": 2, "views_per_round": 1, "residual": False}
    return request(root, run, **asked, **options)


def check_same(root):
    for name in ("ensemble.json", "predictions.csv"):
        assert (root / "here" / name).read_bytes() == (root / "there" / name).read_bytes()
    assert not (root / "there" / "pool-rows").exists()


def test_a_fit_on_ray_learns_the_text_of_one_process(task, cluster, monkeypatch):
    fit_run(**request(task, "here"))
    monkeypatch.setattr(pool_folder, "MOST_IN_MEMORY", 0)
    said = []
    with PoolExecutor(Placement("ray", workers=2), said.append) as executor:
        fit_run(**request(task, "there", executor=executor), say=said.append)
    assert not any("fits into memory" in line for line in said)
    check_same(task)


def test_blocks_in_several_workers_compose_the_text_of_one_process_though_some_are_killed(
    many_classes, cluster, monkeypatch
):
    """The composition that a worker took part in is begun anew, by those that are left or that come."""
    import ray

    fit_run(**fit_of(many_classes, "here"))
    monkeypatch.setattr(pool_folder, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(ray_cluster, "_START", 600.0)  # on a busy machine, one is not done without
    workers, killed, said = set(), [], []
    plain = SharedKeeper.look

    def look(self, rows):
        living = self._residents
        workers.add(len(living))
        if len(killed) < 2:
            actor = living._actors[len(killed) % len(living)]
            killed.append(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))
            os.kill(killed[-1], signal.SIGKILL)
        return plain(self, rows)

    monkeypatch.setattr(SharedKeeper, "look", look)
    with PoolExecutor(Placement("ray", workers=2), said.append) as executor:
        fit_run(**fit_of(many_classes, "there", executor=executor), say=said.append)
    assert max(workers) == 2
    assert len(set(killed)) == 2
    assert sum("lost a worker" in line for line in said) >= 2, said
    check_same(many_classes)


def test_where_it_is_done_may_stand_in_the_settings_file(task, capsys):
    """What is typed wins over the file; here both lead to a small pool that is read in this process."""
    fit = ["fit", task / "images", "-o", task / "run", *FIT, "--prompts", task / "sentences.json"]
    file = task / "settings.toml"
    file.write_text('[scale]\non = "ray"\nworkers = 2\n\n[fit]\nshots = 2\n')
    answer = call(capsys, *fit, "--config", file)
    assert answer.code == 0, answer.err
    assert "not on ray" in answer.err
    typed = call(capsys, *fit, "--overwrite", "--config", file, "--on", "ray://elsewhere:1")
    assert "not on ray://elsewhere:1" in typed.err
    for table, said in (("nodes = 2", "no setting 'nodes'"), ("workers = 'x'", "a whole number")):
        file.write_text(f"[scale]\n{table}\n")
        wrong = call(capsys, *fit, "--overwrite", "--config", file)
        assert (wrong.code, said in wrong.err) == (2, True), wrong.err
