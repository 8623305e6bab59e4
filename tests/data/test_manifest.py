import json

import pytest

from promptboost.data import load_data
from promptboost.data.manifest import read_manifest
from promptboost.errors import DataError
from tests.data.image_tools import write_classes


@pytest.fixture
def folder(tmp_path):
    return write_classes(tmp_path / "data", {"cat": 3, "dog": 3, "with, comma": 1})


def manifest(folder, text, name="list.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def summary(listing):
    return [(image.id, image.label, image.split) for image in listing.images]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_with_mark_quotes_blank_lines_and_other_columns(folder, encoding, end):
    lines = [
        "",
        " Path ,LABEL,note,Split",
        "cat/0.png,cat,,train",
        "",
        " , ,,",
        '"with, comma/0.png","a ""quoted"", name",x,validation',
        "./dog/../dog/0.png,dog,,",
    ]
    path = manifest(folder, end.join(lines), encoding=encoding)
    assert summary(read_manifest(path)) == [
        ("cat/0.png", "cat", "train"),
        ("with, comma/0.png", 'a "quoted", name', "val"),
        ("dog/0.png", "dog", None),
    ]
    assert load_data(path, on_bad="stop").class_names == ('a "quoted", name', "cat", "dog")


def test_tabs(folder):
    path = manifest(folder, "path\tlabel\ncat/0.png\tcat, tabby\n", "list.tsv")
    assert summary(read_manifest(path)) == [("cat/0.png", "cat, tabby", None)]


def test_absolute_paths_and_backslashes(folder, tmp_path):
    text = f"path,label\n{folder}/cat/0.png,cat\ncat\\1.png,cat\n..\\data\\dog\\0.png,dog\n"
    data = load_data(manifest(folder, text), on_bad="stop")
    assert [image.id for image in data.images] == ["cat/0.png", "cat/1.png", "dog/0.png"]
    outside = manifest(tmp_path, f"path,label\n{folder}/cat/0.png,cat\n/nowhere/1.png,cat\n")
    data = load_data(outside)
    assert [image.id for image in data.images] == ["data/cat/0.png"]
    assert [str(bad) for bad in data.bad] == ["/nowhere/1.png: no such file"]


def test_a_backslash_may_be_part_of_a_name(folder):
    (folder / "cat" / "0.png").rename(folder / "odd\\name.png")
    path = manifest(folder, "path,label\nodd\\name.png,cat\n")
    assert len(load_data(path, on_bad="stop")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list.csv lists no images"),
        ("path,label\n", "lists no images"),
        ("file,class\na,b\n", "no column 'path' and no column 'label'; it has: file, class"),
        ("path\na\n", "list.csv has no column 'label'"),
        ("path;label\na.png;cat\n", "it has: path;label. .*; separate its columns by commas"),
        ("path,label,Label\na.png,cat,dog\n", "has the column 'label' 2 times; keep the one"),
        ("path,label\na.png,cat\n\nb.png\n", "line 4: 1 cells under 2 columns"),
        ("path,label\na.png,cat,x\n", "line 2: 3 cells under 2 columns; put quotes"),
        ("path,label\na.png,\n", r"line 2: the label is missing \(''\)"),
        ("path,label\n  ,cat\n", "line 2: the path is '  '"),
        ('path,label\n"a.png,cat\n', "line 2: .*check its quotes"),
        ('path,label\n"a"x,cat\n', "line 2: .*check its quotes"),
        ("path,label,split\na.png,cat,trian\n", "line 2: the split is 'trian'; it must be train"),
        ("path,label\na.png,cat\na.png,dog\n", r"line 3: 'a.png' is listed before .*line 2.*label"),
        ("path,label,split\na.png,c,train\na.png,c,test\n", "line 3: .* another label or split"),
    ],
)
def test_wrong_csv(folder, text, message):
    with pytest.raises(DataError, match=message):
        read_manifest(manifest(folder, text))


def test_a_path_listed_twice_alike_is_used_once(folder):
    path = manifest(folder, "path,label\ncat/0.png,cat\n./cat/0.png,cat\ndog/0.png,dog\n")
    data = load_data(path)
    assert [image.id for image in data.images] == ["cat/0.png", "dog/0.png"]
    assert "line 3: ./cat/0.png is listed before (list.csv, line 2)" in str(data.bad[0])
    with pytest.raises(DataError, match="listed before"):
        load_data(path, on_bad="stop")


def test_groups(folder):
    path = manifest(
        folder, "path,label,group\ncat/0.png,cat,tom\ncat/1.png,cat,tom\ndog/0.png,dog,\n"
    )
    data = load_data(path)
    assert [image.group for image in data.images] == ["tom", "tom", ""]
    assert data.groups.tolist() == [0, 0, 1]
    without = manifest(folder, "path,label\ncat/0.png,cat\ncat/1.png,cat\ndog/0.png,dog\n")
    assert load_data(without).fingerprint != data.fingerprint


def test_another_encoding(folder):
    with pytest.raises(DataError, match=r"list.csv is not UTF-8 \(byte 13\)"):
        read_manifest(manifest(folder, "path,label\na\n\xe9,b", encoding="latin-1"))


def test_json_lines(folder):
    rows = [
        {"path": "cat/0.png", "label": "cat", "split": None, "more": [1]},
        {"Path": "dog/0.png", "Label": 7, "split": "test"},
    ]
    text = "\ufeff" + "\n\n".join(json.dumps(row) for row in rows) + "\n"
    path = manifest(folder, text, "list.jsonl")
    assert summary(read_manifest(path)) == [("cat/0.png", "cat", None), ("dog/0.png", "7", "test")]
    assert len(load_data(path, on_bad="stop")) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"path": "a.png", "label": ', "list.jsonl, line 3: not JSON"),
        ('["a.png", "cat"]', "line 3: not an object"),
        ('{"path": "a.png"}', "line 3 has no column 'label'; it has: path"),
        ('{"path": "a.png", "label": true}', "line 3: the label is True"),
        ('{"path": "a.png", "label": null}', "line 3: the label is missing \\(None\\)"),
        ('{"path": ["a"], "label": "cat"}', "line 3: the path is"),
        ('{"path": "a", "label": "cat", " Label": "dog"}', "line 3 has the column 'label' 2 times"),
    ],
)
def test_wrong_json_lines(folder, line, message):
    text = '{"path": "cat/0.png", "label": "cat"}\n\n' + line
    with pytest.raises(DataError, match=message):
        read_manifest(manifest(folder, text, "list.jsonl"))


def test_a_path_that_no_file_can_have_is_one_of_no_file(folder):
    lines = [{"path": path, "label": "cat"} for path in ("cat/0.png", "cat/1.png\0", "\0")]
    path = manifest(folder, "\n".join(map(json.dumps, lines)), "list.jsonl")
    data = load_data(path)
    assert [bad.reason for bad in data.bad] == ["no such file"] * 2


def test_a_class_whose_images_are_all_missing(folder):
    path = manifest(folder, "path,label\ncat/0.png,cat\nnone.png,dog\n")
    with pytest.raises(DataError, match=r"(?s)'dog' has no images that.*none.png: no such file"):
        load_data(path)
