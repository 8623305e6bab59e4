"""A pool too large for memory, on a real cluster: the ensemble of one process."""

import promptboost.run.results as results
from promptboost.distributed.engine import Placement
from promptboost.distributed.pool_folder import PoolExecutor
from promptboost.run.fit import fit_run
from tests.cli.cli_tools import FIT, call
from tests.run.run_tools import request


def check_same(root):
    for name in ("ensemble.json", "predictions.csv"):
        assert (root / "here" / name).read_bytes() == (root / "there" / name).read_bytes()
    assert not (root / "there" / "pool-rows").exists()


def test_a_fit_on_ray_learns_the_text_of_one_process(task, cluster, monkeypatch):
    fit_run(**request(task, "here"))
    monkeypatch.setattr(results, "MOST_IN_MEMORY", 0)
    said = []
    executor = PoolExecutor(Placement("ray", workers=2), said.append)
    fit_run(**request(task, "there", executor=executor), say=said.append)
    assert not any("fits into memory" in line for line in said)
    check_same(task)


def test_a_small_pool_is_read_in_this_process(task, capsys):
    fit = ["fit", task / "images", "-o", task / "run", *FIT, "--prompts", task / "sentences.json"]
    answer = call(capsys, *fit, "--on", "ray")
    assert answer.code == 0, answer.err
    assert "not on ray" in answer.err
