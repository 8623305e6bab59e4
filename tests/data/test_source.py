import builtins

import numpy as np
import pytest
from PIL import Image

from promptboost.data import load_data
from promptboost.errors import DataError, SettingError
from tests.data.image_tools import encoded, plain, write_classes


def test_pairs_of_every_kind(tmp_path):
    plain("lime").save(tmp_path / "a.png")
    deep = np.full((4, 4), 65535, dtype=np.uint16)
    pairs = [
        (plain("red"), "a"),
        (np.zeros((8, 6, 3), dtype=np.uint8), "b"),
        (np.ones((8, 6), dtype=np.float32), "b"),
        (np.zeros((8, 6, 4), dtype=np.uint8), "b"),
        (np.ones((8, 6, 1), dtype=bool), "b"),
        (deep, "b"),
        (encoded(plain("blue")), np.int64(3)),
        (tmp_path / "a.png", "a"),
        [str(tmp_path / "a.png"), "b", "testing"],
    ]
    data = load_data(pairs, on_bad="stop")
    assert data.class_names == ("3", "a", "b")
    assert [image.id for image in data.images] == [str(i) for i in range(9)]
    colors = [image.open().getpixel((0, 0)) for image in data.images]
    white, black = (255, 255, 255), (0, 0, 0)
    assert colors[:6] == [(255, 0, 0), black, white, white, white, white]
    assert colors[6:] == [(0, 0, 255), (0, 255, 0), (0, 255, 0)]
    assert data.images[8].split == "test"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((np.zeros((2, 2, 2, 3)), "a"), r"image 1: an array of shape \(2, 2, 2, 3\)"),
        ((np.zeros((4, 4, 2), np.uint8), "a"), r"image 1: .*\(4, 4, 2\)"),
        ((np.full((4, 4), 200.0), "a"), "image 1: .*from 0 to 1"),
        ((np.full((4, 4), np.nan), "a"), "image 1: .*from 0 to 1"),
        ((np.zeros((4, 4), np.int64), "a"), "image 1: an array of int64"),
        ((object(), "a"), "image 1: an object is not"),
        ((plain(), None), r"label of image 1 is missing \(None\)"),
        ((plain(), float("nan")), "label of image 1 is missing"),
        ((plain(), "nan"), "label of image 1 is missing"),
        ((plain(), 1.5), "label of image 1 is 1.5"),
        ((plain(), " "), "label of image 1 is missing"),
        ((plain(), "a", "sometimes"), "image 1: the split is 'sometimes'"),
        ("ab", "item 1 is not a pair"),
        (plain(), "item 1 is not a pair"),
    ],
)
def test_wrong_pairs(pair, message):
    with pytest.raises(DataError, match=message):
        load_data([(plain(), "x"), pair])


def test_bad_images_in_memory_are_listed_by_position():
    empty = np.zeros((0, 4, 3), dtype=np.uint8)
    data = load_data([(plain(), "a"), (b"not an image", "a"), (empty, "a")])
    assert [bad.path for bad in data.bad] == ["2", "1"]
    with pytest.raises(DataError, match=r"(?s)class 'b' has no images that.*1: it has no pixels"):
        load_data([(plain(), "a"), (empty, "b")])


def test_a_lazily_opened_image_may_be_closed_afterwards(tmp_path):
    plain("blue").save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        data = load_data([(image, "a")], check=False)
    assert data.images[0].open().getpixel((0, 0)) == (0, 0, 255)


def test_data_frame_of_paths(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    write_classes(tmp_path, {"cat": 2, "dog": 1})
    monkeypatch.chdir(tmp_path)
    frame = pandas.DataFrame(
        {
            "Path": ["cat/0.png", tmp_path / "cat" / "1.png", "dog/0.png"],
            "label": ["cat", "cat", "dog"],
            "split": ["train", None, float("nan")],
        },
        index=["x", "y", "z"],
    )
    data = load_data(frame, on_bad="stop")
    assert [image.id for image in data.images] == ["cat/0.png", "cat/1.png", "dog/0.png"]
    assert [image.split for image in data.images] == ["train", None, None]
    numbered = frame.assign(label=[0, 0, 1])
    assert load_data(numbered).class_names == ("0", "1")
    with pytest.raises(DataError, match="row 'y': the label is missing"):
        load_data(frame.assign(label=["cat", float("nan"), "dog"]))
    with pytest.raises(DataError, match="the data frame has no column 'label'"):
        load_data(frame.drop(columns="label"))


def test_data_frame_of_images():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"image": [plain("red"), plain("blue")], "label": ["a", "b"], "split": ["train", None]}
    )
    data = load_data(frame)
    assert [image.split for image in data.images] == ["train", None]
    assert data.images[1].open().getpixel((0, 0)) == (0, 0, 255)


def test_a_dataset_passes_through():
    data = load_data([(plain(), "a")])
    assert load_data(data) is data


@pytest.mark.parametrize("source", [[], iter([])])
def test_nothing(source):
    with pytest.raises(DataError, match="no images"):
        load_data(source)


def test_sources_that_are_none(tmp_path):
    with pytest.raises(DataError, match="does not exist; give a folder"):
        load_data(tmp_path / "nowhere")
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(DataError, match="neither a folder nor a manifest"):
        load_data(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match="an int is not a source"):
        load_data(3)
    with pytest.raises(SettingError, match="on_bad is 'maybe'"):
        load_data([(plain(), "a")], on_bad="maybe")


def test_without_the_check_bad_images_are_found_later(tmp_path):
    write_classes(tmp_path, {"cat": 1})
    (tmp_path / "cat" / "bad.jpg").write_bytes(b"")
    data = load_data(tmp_path, check=False)
    assert len(data) == 2
    with pytest.raises(DataError, match=r"cat/bad\.jpg: the file is empty"):
        data.images[1].open()


def test_reading_needs_no_pandas(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        assert not name.startswith("pandas")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    load_data([(plain(), "a")])
