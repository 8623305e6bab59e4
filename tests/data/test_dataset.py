from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from PIL import Image

from promptboost.data import Dataset, LabeledImage, load_data
from promptboost.data.dataset import RepeatedImageWarning, display_name, warn_of_conflicting_labels
from promptboost.errors import DataError
from tests.data.image_tools import encoded, plain, write_classes


def test_labels_are_positions_in_sorted_names():
    data = Dataset.of([LabeledImage(str(i), label, b"") for i, label in enumerate("bcab")])
    assert data.class_names == ("a", "b", "c")
    assert data.labels.tolist() == [1, 2, 0, 1]
    assert data.labels.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        data.labels[0] = 0


def test_subsets_keep_the_classes_and_the_order():
    data = Dataset.of([LabeledImage(str(i), label, b"") for i, label in enumerate("bcab")])
    part = data.subset(np.array([3, 0]))
    assert [image.id for image in part.images] == ["3", "0"]
    assert part.class_names == data.class_names
    assert part.labels.tolist() == [1, 1]


def test_it_cannot_be_changed():
    data = Dataset.of([LabeledImage("0", "a", b"")])
    with pytest.raises(FrozenInstanceError):
        data.class_names = ()


def test_two_images_of_one_name():
    with pytest.raises(DataError, match="two images are called 'x'"):
        Dataset.of([LabeledImage("x", "a", b""), LabeledImage("x", "b", b"")])


def test_a_missing_split_names_those_that_exist():
    data = Dataset.of([LabeledImage("0", "a", b"", "train")])
    with pytest.raises(DataError, match="'test'; there are: train"):
        data.of_split("test")


def test_the_digest_of_an_image_in_memory_is_of_what_is_seen():
    def of(image):
        return LabeledImage("", "", image).digest()

    red, blue = Image.new("P", (4, 4)), Image.new("P", (4, 4))
    red.putpalette([255, 0, 0] * 256)
    blue.putpalette([0, 0, 255] * 256)
    assert red.tobytes() == blue.tobytes()
    assert of(red) != of(blue)
    assert of(red) == of(Image.new("RGB", (4, 4), "red"))


def test_the_digest_is_of_the_content(tmp_path):
    data = encoded(plain())
    (tmp_path / "one.png").write_bytes(data)
    one = LabeledImage("one", "a", tmp_path / "one.png")
    (tmp_path / "one.png").rename(tmp_path / "two.png")
    two = LabeledImage("two", "b", tmp_path / "two.png")
    assert two.digest() == LabeledImage("", "", data).digest()
    with pytest.raises(DataError, match=r"one\.png: no such file"):
        one.digest()
    in_memory = LabeledImage("", "", plain(size=(4, 6)))
    assert in_memory.digest() == LabeledImage("", "", plain(size=(4, 6))).digest()
    assert in_memory.digest() != LabeledImage("", "", plain(size=(6, 4))).digest()
    assert two.digest() != LabeledImage("", "", data, margin=0.1).digest()


def test_the_margin_is_white_and_on_every_side():
    framed = LabeledImage("", "", plain("red", (20, 10)), margin=0.1).open()
    assert framed.size == (24, 14)
    assert framed.getpixel((1, 1)) == (255, 255, 255)
    assert framed.getpixel((2, 2)) == (255, 0, 0)


def test_the_fingerprint_changes_with_content_label_and_split_only(tmp_path):
    write_classes(tmp_path, {"cat": 2, "dog": 2})
    first = load_data(tmp_path).fingerprint
    (tmp_path / "cat" / "0.png").rename(tmp_path / "cat" / "00.png")
    assert load_data(tmp_path).fingerprint == first
    (tmp_path / "cat").rename(tmp_path / "camel")
    assert load_data(tmp_path).fingerprint != first
    (tmp_path / "camel").rename(tmp_path / "cat")
    assert load_data(tmp_path).fingerprint == first
    plain().save(tmp_path / "cat" / "00.png")
    assert load_data(tmp_path).fingerprint != first


def test_display_names():
    assert display_name("english_cocker__spaniel") == "english cocker spaniel"


def test_the_fingerprint_sees_each_label_and_split():
    def fingerprint(labels: str, split: str = "train") -> str:
        return Dataset.of(
            LabeledImage(str(i), label, bytes([i]), split) for i, label in enumerate(labels)
        ).fingerprint

    assert fingerprint("aab") == fingerprint("aab")
    assert len({fingerprint("aab"), fingerprint("aba"), fingerprint("aab", "test")}) == 3


def test_a_warning_names_the_first_image_with_two_labels():
    data = [LabeledImage(str(i), "", content) for i, content in enumerate([b"a", b"b", b"a"])]
    with pytest.warns(RepeatedImageWarning, match=r"2 images .*: 0 \(owl\) = 2 \(bat\)"):
        warn_of_conflicting_labels(data, ["owl", "owl", "bat"])
    warn_of_conflicting_labels(data, ["owl", "bat", "owl"])  # warnings are errors here
