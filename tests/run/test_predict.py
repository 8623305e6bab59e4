import shutil
from dataclasses import replace

import numpy as np
import pytest

import promptboost.encoders.embedder as stream_module
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import DataError, RunError
from promptboost.model import PromptEnsemble
from promptboost.progress import ProgressBars
from promptboost.run.predict import open_classifier, predict_paths


def answers(task, *paths, text_only=False, cache=True, **options):
    classifier = open_classifier(task / "run", text_only=text_only, cache=cache)
    return list(predict_paths(classifier, [task / path for path in paths], **options))


def test_a_run_folder_and_an_encoder_are_enough(fitted):
    (fitted / "new.png").write_bytes((fitted / "images/sea/0.png").read_bytes())
    shutil.rmtree(fitted / "images")
    (fitted / "sentences.json").unlink()
    (answer,) = answers(fitted, "new.png", top_k=9)
    chances = [choice.probability for choice in answer.top]
    assert len(chances) == 4
    assert np.isclose(sum(chances), 1)
    assert chances == sorted(chances, reverse=True)
    assert answer.image == str(fitted / "new.png")


def test_unreadable_images_have_a_line_and_the_others_their_own(fitted):
    folder = fitted / "images/sea"
    (folder / "1.png").write_bytes(b"not an image")
    found = answers(fitted, "images/sea/0.png", "images/sea/1.png", "gone.png", "images/ember")
    errors = {answer.image: answer.error for answer in found if answer.error}
    assert set(errors) == {str(folder / "1.png"), str(fitted / "gone.png")}
    assert all(errors.values())
    assert sum(bool(answer.top) for answer in found) == 9


def test_many_images_keep_their_order(fitted):
    paths = sorted((fitted / "images").rglob("*.png"))
    for number in range(270):
        shutil.copy(paths[number % len(paths)], fitted / f"{number:03}.png")
    found = answers(fitted, *(f"{number:03}.png" for number in range(270)))
    assert [answer.image for answer in found] == [
        str(fitted / f"{number:03}.png") for number in range(270)
    ]
    assert found[0].top == found[len(paths)].top


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_the_head_the_text_is_embedded_again(fitted, damage, caplog):
    text = answers(fitted, "images", text_only=True)
    head = fitted / "run/head-fake-32-0.safetensors"
    head.unlink() if damage == "missing" else head.write_bytes(b"broken")
    after = answers(fitted, "images")
    # All but the residual, which is in no other file.
    assert [a.predicted for a in text] == [a.predicted for a in after]
    assert "promptboost refit" in caplog.text


def test_edited_text_wins_over_the_head(fitted):
    path = fitted / "run/ensemble.json"
    ensemble = PromptEnsemble.load(path)
    ensemble.rename_class("sea", "ocean").save(path)
    names = {
        choice.class_name for answer in answers(fitted, "images", top_k=4) for choice in answer.top
    }
    assert names == {"ember", "leaf", "ocean", "night"}


def test_another_encoder_can_look(fitted):
    classifier = open_classifier(fitted / "run", encoder="fake:16-1")
    assert classifier.head.dim == 16
    assert list(predict_paths(classifier, [fitted / "images/sea"]))


def test_the_text_alone_is_enough(fitted):
    for file in (fitted / "run").iterdir():
        if file.name != "ensemble.json":
            file.unlink()
    assert len(answers(fitted, "images")) == 32


def test_a_text_without_an_encoder_asks_for_one(fitted):
    path = fitted / "run/ensemble.json"
    replace(PromptEnsemble.load(path), encoder_id=None).save(path)
    with pytest.raises(RunError, match="add --encoder NAME"):
        answers(fitted, "images")


def test_nothing_to_look_at(fitted):
    (fitted / "empty").mkdir()
    with pytest.raises(DataError, match="there are no images"):
        answers(fitted, "empty")


def test_no_run(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        open_classifier(tmp_path / "run")


def test_each_image_is_decoded_once(fitted, monkeypatch):
    read, names = stream_module.read_image, []

    def counted(source, name, **options):
        names.append(name)
        return read(source, name, **options)

    def never(*_):
        raise AssertionError("decoded before it is embedded")

    shutil.rmtree(EmbeddingStore().root)
    monkeypatch.setattr(stream_module, "read_image", counted)
    monkeypatch.setattr("promptboost.data.dataset.read_thumbnail", never)
    assert len(answers(fitted, "images")) == 32
    assert len(names) == len(set(names)) == 32


def test_one_bar_for_all_images(fitted, monkeypatch, capsys):
    monkeypatch.setattr(stream_module, "STORED_AT_ONCE", 8)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    capsys.readouterr()
    classifier = open_classifier(fitted / "run", progress=ProgressBars())
    assert len(list(predict_paths(classifier, [fitted / "images"]))) == 32
    shown = capsys.readouterr().err
    assert "predicting" in shown
    assert "/32 " in shown
    assert "/8 " not in shown
