import os

import pytest

from promptboost.data import load_data
from promptboost.data.source import find_images, read_folder
from promptboost.errors import DataError
from tests.data.image_tools import plain, write_bad, write_classes


def test_classes_and_ids(tmp_path):
    write_classes(tmp_path, {"dog": 2, "cat/indoor/sleeping": 1, "Ähre 麦": 1})
    data = load_data(tmp_path)
    assert data.class_names == ("cat", "dog", "Ähre 麦")
    assert [image.id for image in data.images] == [
        "cat/indoor/sleeping/0.png",
        "dog/0.png",
        "dog/1.png",
        "Ähre 麦/0.png",
    ]
    assert data.labels.tolist() == [0, 1, 1, 2]
    assert data.bad == ()
    assert data.splits == ()


def test_hidden_files_and_companions_are_passed_over(tmp_path):
    write_classes(tmp_path, {"cat": 1})
    for name in (".DS_Store", ".hidden.jpg", "notes.txt", "labels.CSV", "Thumbs.db"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("about")
    data = load_data(tmp_path, on_bad="stop")
    assert len(data) == 1


def test_splits_are_recognized(tmp_path):
    write_classes(tmp_path, {"train/cat": 2, "train/dog": 2, "Valid/cat": 1, "test/dog": 1})
    data = load_data(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert set(data.splits) == {"train", "val", "test"}
    assert [image.id for image in data.of_split("val").images] == ["Valid/cat/0.png"]
    assert len(data.of_split("train")) == 4


def test_a_class_may_be_called_train(tmp_path):
    write_classes(tmp_path, {"train": 1, "car": 1})
    assert load_data(tmp_path).class_names == ("car", "train")


def test_images_of_trains_in_folders_are_a_class_too(tmp_path):
    write_classes(tmp_path, {"train/steam": 1, "car/old": 1})
    assert load_data(tmp_path).class_names == ("car", "train")


def test_splits_beside_other_folders_are_not_clear(tmp_path):
    write_classes(tmp_path, {"train/cat": 1, "test/cat": 1, "extra": 1})
    with pytest.raises(DataError, match=r"among others \(extra\)"):
        load_data(tmp_path)


def test_every_bad_kind_in_one_folder(tmp_path):
    write_classes(tmp_path, {"cat": 2, "dog": 1})
    expected = write_bad(tmp_path / "cat")
    plain().save(tmp_path / "lost.jpg")
    data = load_data(tmp_path)
    reasons = {os.path.relpath(bad.path, tmp_path): bad.reason for bad in data.bad}
    assert reasons.pop("lost.jpg") == "not in the folder of a class"
    assert set(reasons) == {f"cat/{name}" for name in expected}
    for name, reason in expected.items():
        assert reason in reasons[f"cat/{name}"], name
    assert [image.id for image in data.images] == ["cat/0.png", "cat/1.png", "dog/0.png"]


def test_stopping_lists_the_bad_ones(tmp_path):
    write_classes(tmp_path, {"cat": 1})
    count = len(write_bad(tmp_path / "cat"))
    with pytest.raises(DataError, match=rf"(?s){count} files cannot be used.*and {count - 5} more"):
        load_data(tmp_path, on_bad="stop")


def test_a_class_may_have_no_files_but_not_only_bad_ones(tmp_path):
    write_classes(tmp_path, {"cat": 0, "dog": 0})
    with pytest.raises(DataError, match="there are no images"):
        load_data(tmp_path)
    plain().save(tmp_path / "cat" / "1.png")
    assert load_data(tmp_path).class_names == ("cat", "dog")
    (tmp_path / "dog" / "a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"(?s)class 'dog' has no images that.*a\.jpg: .*empty"):
        load_data(tmp_path)


def test_classes_that_differ_only_in_case_or_encoding(tmp_path):
    write_classes(tmp_path / "case", {"Cat": 1, "cat": 1})
    with pytest.raises(DataError, match="'Cat' and 'cat' read the same"):
        load_data(tmp_path / "case")
    write_classes(tmp_path / "accent", {"Caf\u00e9": 1, "Cafe\u0301": 1})
    with pytest.raises(DataError, match="read the same"):
        load_data(tmp_path / "accent")


def test_links_are_followed_once(tmp_path):
    write_classes(tmp_path / "else", {"cat": 2})
    write_classes(tmp_path / "data", {"dog": 1})
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "else" / "cat", target_is_directory=True)
    (tmp_path / "data" / "dog" / "root").symlink_to(tmp_path / "data", target_is_directory=True)
    listing = read_folder(tmp_path / "data")
    own = [image.id for image in listing.images if "root" not in image.id]
    assert own == ["cat/0.png", "cat/1.png", "dog/0.png"]
    assert any("link back" in bad.reason for bad in listing.bad)


def test_an_unreadable_folder_is_listed(tmp_path, monkeypatch):
    write_classes(tmp_path, {"cat": 1, "cat/locked": 1})
    real = type(tmp_path).iterdir

    def refuse(self):
        if self.name == "locked":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(type(tmp_path), "iterdir", refuse)
    data = load_data(tmp_path)
    assert [str(bad) for bad in data.bad] == [f"{tmp_path}/cat/locked: no permission to read it"]


def test_no_class_folders(tmp_path):
    with pytest.raises(DataError, match="no class folders"):
        load_data(tmp_path)
    plain().save(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"like cat/1\.jpg"):
        load_data(tmp_path)


def test_unlabeled_images(tmp_path):
    write_classes(tmp_path, {"a": 2, "b/c": 1})
    (tmp_path / "a" / "notes.txt").write_text("no")
    single = tmp_path / "a" / "1.png"
    listing = find_images([single, tmp_path, "missing.jpg"])
    names = [os.path.relpath(image.id, tmp_path) for image in listing.images[:3]]
    assert names == ["a/1.png", "a/0.png", "b/c/0.png"]
    assert listing.images[3].id == "missing.jpg"
    assert listing.class_names == ()
