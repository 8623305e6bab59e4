import json

import pytest

from promptboost.data.benchmarks import Item, read_split
from promptboost.errors import DataError
from tests.data.benchmarks.benchmark_tools import write_json


def test_lists_keep_their_order_numbers_and_names(tmp_path):
    file = write_json(
        tmp_path / "split.json",
        {"train": [["b/2.jpg", 7, "bee"], ["a/1.jpg", 3, "ant"]], "test": [["b\\3.jpg", 7, "bee"]]},
    )
    assert read_split(file) == {
        "train": [Item("b/2.jpg", 7, "bee"), Item("a/1.jpg", 3, "ant")],
        "test": [Item("b/3.jpg", 7, "bee")],
    }


def test_objects_number_classes_in_order_of_appearance_across_splits(tmp_path):
    file = write_json(
        tmp_path / "shots.json",
        {"train": {"2.jpg": "bee", "1.jpg": "ant"}, "val": {"4.jpg": "ant", "3.jpg": "bee"}},
    )
    assert [item.label for item in read_split(file)["train"]] == [0, 1]
    assert [item.label for item in read_split(file)["val"]] == [1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "is not a split file"),
        ({}, "is not a split file"),
        ({"train": 3}, "is not a split file .Expected"),
        ({"holdout": []}, "'holdout' is not one of train, val and test"),
        ({"val": [], "valid": []}, "'valid' is not one of .*once each"),
        ({"train": [["a.jpg", 0]]}, r"is not a split file.*train"),
        ({"train": [["a.jpg", "0", "ant"]]}, "got `str`"),
        ({"train": [["a.jpg", True, "ant"]]}, "got `bool`"),
        ({"train": {"a.jpg": 3}}, "got `int`"),
        ({"train": [["a.jpg", 0, "ant"], ["b.jpg", 0, " "]]}, "image 2: .* a class name"),
        ({"train": [["/etc/a.jpg", 0, "ant"]]}, "below the image folder"),
        ({"train": [["../a.jpg", 0, "ant"]]}, "below the image folder"),
        ({"train": [["a\\..\\..\\a.jpg", 0, "ant"]]}, "below the image folder"),
        (
            {"train": [["a.jpg", 0, "ant"], ["b.jpg", 0, "bee"]]},
            "class 0 is called 'ant' and 'bee'",
        ),
        ({"train": [["a.jpg", 0, "ant"]] * 2}, "a.jpg is twice in train"),
        (
            {"train": [["a.jpg", 0, "ant"]], "test": [["a.jpg", 0, "ant"]]},
            "a.jpg is in train and in test",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_split(write_json(tmp_path / "split.json", content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json cannot be read: No such file"):
        read_split(tmp_path / "gone.json")
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps({"train": []})[:-2])
    with pytest.raises(DataError, match=r"is not a split file .*download it again"):
        read_split(cut)
    cut.write_bytes(b"\xff\xfe{")
    with pytest.raises(DataError, match="is not UTF-8"):
        read_split(cut)
