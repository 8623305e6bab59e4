import numpy as np
import pytest

from promptboost.boosting.gradient.compose import GradientSettings, compose_by_gradient
from promptboost.boosting.grid import GridPool, to_grid
from promptboost.errors import SettingError
from tests.synthetic import clip_like


def test_a_scale_left_open_is_refused_where_one_is_needed():
    task = clip_like(3, 2, prompts=5, templates=2, dim=8, seed=0)
    pool = GridPool.from_rows(task.templates, task.prompts)
    X = to_grid(task.images)
    with pytest.raises(SettingError, match="logit_scale is not set"):
        compose_by_gradient(
            X, task.labels, np.ones(6), pool, GradientSettings(), rng=np.random.default_rng(0)
        )


def test_a_pool_on_disk_gives_the_same_banks(tmp_path):
    task = clip_like(4, 4, prompts=200, templates=3, dim=16, confusion=2.5, seed=4)
    pool = GridPool.from_rows(task.templates, task.prompts)
    for k, rows in enumerate(pool.prompts):
        np.save(tmp_path / f"{k}.npy", rows)
    mapped = tuple(np.load(tmp_path / f"{k}.npy", mmap_mode="r") for k in range(4))
    on_disk = GridPool(pool.templates, mapped)
    asked, X, w = GradientSettings(logit_scale=20.0), to_grid(task.images), np.ones(16)
    found = [
        compose_by_gradient(X, task.labels, w, some, asked, rng=np.random.default_rng(0))
        for some in (pool, on_disk)
    ]
    assert found[0] == found[1]
    assert found[0].trace.pool_reads < found[0].trace.sweeps
