"""A pool too large for memory, embedded and read by nodes of a real cluster: the text of one process."""

import promptboost.training.pool_rows as pool_rows
from promptboost.runs.fit import fit_run
from promptboost.scale.engine import Placement
from tests.runs.run_tools import request


def test_a_fit_on_ray_learns_the_text_of_one_process(task, cluster, monkeypatch):
    fit_run(request(task, "here"))
    monkeypatch.setattr(pool_rows, "MOST_IN_MEMORY", 0)
    said = []
    fit_run(request(task, "there", placement=Placement("ray", workers=2)), said.append)
    assert not any("fits into memory" in line for line in said)
    for name in ("ensemble.json", "predictions.csv"):
        assert (task / "here" / name).read_bytes() == (task / "there" / name).read_bytes()
    assert not (task / "there" / "pool-rows").exists()
