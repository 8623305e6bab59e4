import shutil

import numpy as np
import pytest

from promptboost.config import FitConfig
from promptboost.data.shots import load_task
from tests.run.run_tools import write_images


@pytest.mark.parametrize(
    ("splits", "kind", "held_out"),
    [
        (["train", "val", "test"], "test", 12),
        (["train", "val"], "val", 12),
        (["train"], "rest", 4),
    ],
)
def test_what_is_held_out(tmp_path, splits, kind, held_out):
    for number, split in enumerate(splits):
        write_images(tmp_path / split, count=3, seed=number)
    task = load_task(str(tmp_path), FitConfig(shots=2))
    assert (task.kind, len(task.learn), len(task.held_out)) == (kind, 8, held_out)
    assert task.measured is task.held_out
    assert {image.split for image in task.learn.images} == {"train"}


def test_nothing_left_to_hold_out(tmp_path):
    write_images(tmp_path, count=2)
    task = load_task(str(tmp_path), FitConfig(shots=2))
    assert task.kind is None
    assert task.measured is task.learn


def test_more_shots_only_add_images(tmp_path):
    write_images(tmp_path)
    few, more = (set(load_task(str(tmp_path), FitConfig(shots=n)).learn.ids) for n in (2, 4))
    assert few < more


def test_classes_with_fewer_images_than_asked(tmp_path):
    write_images(tmp_path, count=4)
    shutil.copytree(tmp_path / "sea", tmp_path / "ocean", ignore=shutil.ignore_patterns("[123]*"))
    task = load_task(str(tmp_path), FitConfig(shots=3))
    assert task.classes_short_of(3) == {"ocean": 1}
    assert task.classes_short_of(None) == {}
    assert np.bincount(task.learn.labels).tolist() == [3, 3, 3, 1, 3]
