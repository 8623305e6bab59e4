"""Each benchmark, read from a tiny tree in its own layout and in those of its copies."""

import json
import os
import shutil
from pathlib import Path

import pytest

from promptboost.data import load_data
from promptboost.data.benchmarks import BENCHMARKS, read_benchmark
from promptboost.data.shots import coop_few_shot
from promptboost.data.source import DataSource
from promptboost.errors import DataError
from tests.beside import RELEASED, needs_beside
from tests.data.benchmarks.benchmark_tools import (
    PATHS,
    PIXELS,
    contents,
    expected,
    paths_of,
    tiny,
    tiny_split,
    write,
    write_json,
    write_tree,
)


@pytest.mark.parametrize("name", PATHS)
def test_the_layout_of_the_protocol(tmp_path, name):
    folder = write_tree(tmp_path, name)
    assert contents(read_benchmark(tiny(name), folder)) == expected(name)
    # The folder that holds all benchmarks will do.
    assert contents(read_benchmark(tiny(name), tmp_path)) == expected(name)


@pytest.mark.parametrize(
    ("name", "folder", "images"),
    [
        ("caltech101", "caltech101", "101_ObjectCategories"),
        ("oxford_pets", "oxford-iiit-pet", "images"),
        ("stanford_cars", "stanford_cars", ""),
        ("flowers102", "flowers-102", "jpg"),
        ("food101", "food-101", "images"),
        ("sun397", "", "SUN397"),
        ("dtd", "dtd", "dtd/images"),
        ("eurosat", "eurosat", "2750"),
    ],
)
def test_the_layout_of_torchvision(tmp_path, name, folder, images):
    write_tree(tmp_path, name, folder, images)
    listing = read_benchmark(tiny(name), tmp_path)
    assert contents(listing) == expected(name)


def _in_class_folders(root: Path, name: str) -> None:
    """Put the images below train and test, in a folder for each class, under their own names."""
    for part, listed in tiny_split(name).items():
        for path, _, title in listed:
            folder = path.split("/")[0] if name == "caltech101" else title
            top = "test" if part == "test" else "train"
            write(root, [f"{top}/{folder}/{path.rpartition('/')[2]}"])


@pytest.mark.parametrize("name", PATHS)
def test_folders_of_classes_are_searched_by_file_name(tmp_path, name):
    _in_class_folders(tmp_path / "data", name)
    split = write_json(tmp_path / "split.json", tiny_split(name))
    assert contents(read_benchmark(tiny(name), tmp_path / "data", split)) == expected(name)


@pytest.mark.parametrize("name", PATHS)
def test_without_the_split_file_nothing_is_guessed(tmp_path, name):
    _in_class_folders(tmp_path, name)
    with pytest.raises(DataError, match=f"{BENCHMARKS[name].split_file} is missing"):
        read_benchmark(tiny(name), tmp_path)


def test_cars_in_a_folder_too_many(tmp_path):
    split = tiny_split("stanford_cars")
    nested = [path.replace("/", "/" + path.split("/")[0] + "/") for path in paths_of(split)]
    write(tmp_path, nested)
    write_json(tmp_path / "split_zhou_StanfordCars.json", split)
    listing = read_benchmark(tiny("stanford_cars"), tmp_path)
    assert contents(listing) == expected("stanford_cars")
    assert all(image.id.split("/")[0] in image.source.parts for image in listing.images)


def test_equal_file_names_are_not_mixed_up(tmp_path):
    # All Caltech101 classes number their images from one: without its folder none may be taken.
    _in_class_folders(tmp_path / "data", "caltech101")
    shutil.move(tmp_path / "data" / "train" / "Faces", tmp_path / "data" / "train" / "People")
    split = write_json(tmp_path / "split.json", tiny_split("caltech101"))
    with pytest.raises(DataError, match="4 of 12 listed images are missing"):
        read_benchmark(tiny("caltech101"), tmp_path / "data", split)
    # Nor where only the other class is left, so that the name is there once.
    shutil.rmtree(tmp_path / "data" / "train" / "People")
    shutil.rmtree(tmp_path / "data" / "test" / "Faces")
    with pytest.raises(DataError, match=r"6 of 12 listed images are missing, .* all of 1 class"):
        read_benchmark(tiny("caltech101"), tmp_path / "data", split)


def test_a_name_in_two_places_is_not_guessed(tmp_path):
    # A copy that numbered its test images anew: which of the two is meant nobody can say.
    _in_class_folders(tmp_path / "data", "caltech101")
    write(tmp_path / "data", ["test/Faces/image_0000.jpg"])
    split = write_json(tmp_path / "split.json", tiny_split("caltech101"))
    with pytest.raises(DataError, match="1 of 12 listed images are missing"):
        read_benchmark(tiny("caltech101"), tmp_path / "data", split)


def test_one_file_is_not_two_images(tmp_path):
    # Nested otherwise than listed: the file fits the train and the test image of that name.
    split = {
        "train": [["one/1.jpg", 0, "banded"], ["two/2.jpg", 1, "dotted"]],
        "test": [["two/1.jpg", 1, "dotted"], ["one/2.jpg", 0, "banded"]],
    }
    write(tmp_path / "data", ["one/two/1.jpg", "two/2.jpg", "one/2.jpg"])
    file = write_json(tmp_path / "split.json", split)
    with pytest.raises(DataError, match=r"2 of 4 listed .* one/1\.jpg, two/1\.jpg"):
        read_benchmark(tiny("dtd", {"train": 2, "test": 2}), tmp_path / "data", file)


AIRCRAFT = {
    "train": "0034309 707-320\n1025794 A300B4\n",
    "val": "0034958 A300B4\n",
    "test": "1340192 707-320\n0056978 A300B4\n",
}


def _write_aircraft(folder: Path) -> None:
    for split, text in AIRCRAFT.items():
        write(folder, [f"images/{line.split()[0]}.jpg" for line in text.splitlines()])
        (folder / f"images_variant_{split}.txt").write_text(text)
    (folder / "variants.txt").write_text("707-320\nA300B4\n")


@pytest.mark.parametrize("where", ["fgvc_aircraft", "fgvc-aircraft-2013b/data"])
def test_aircraft_by_its_own_lists(tmp_path, where):
    _write_aircraft(tmp_path / where)
    benchmark = tiny("fgvc_aircraft", {"train": 2, "val": 1, "test": 2})
    for folder in (tmp_path, tmp_path / where.split("/")[0], tmp_path / where):
        assert contents(read_benchmark(benchmark, folder)) == {
            "train": [("0034309.jpg", "707-320"), ("1025794.jpg", "A300B4")],
            "val": [("0034958.jpg", "A300B4")],
            "test": [("1340192.jpg", "707-320"), ("0056978.jpg", "A300B4")],
        }
    (tmp_path / where / "variants.txt").write_text("707-320\n")
    with pytest.raises(DataError, match="'1025794 A300B4' names no class"):
        read_benchmark(benchmark, tmp_path)
    (tmp_path / where / "variants.txt").unlink()
    with pytest.raises(DataError, match=r"variants\.txt is missing"):
        read_benchmark(benchmark, tmp_path)


def _write_imagenet(folder: Path, images: str, val: str = "val") -> None:
    for wnid in ("n01440764", "n01443537"):
        write(folder / images, [f"train/{wnid}/{wnid}_{i}.JPEG" for i in (10, 9)])
        write(folder / images, [f"{val}/{wnid}/ILSVRC2012_val_{wnid[-3:]}.JPEG"])
    (folder / "classnames.txt").write_text("n01440764 tench\nn01443537 goldfish\n")


@pytest.mark.parametrize(
    ("images", "val"),
    [("images", "val"), ("", "val"), ("ILSVRC/Data/CLS-LOC", "val"), ("", "validation")],
)
def test_imagenet_by_its_folders(tmp_path, images, val):
    _write_imagenet(tmp_path / "imagenet", images, val)
    benchmark = tiny("imagenet", {"train": 4, "test": 2})
    found = contents(read_benchmark(benchmark, tmp_path))
    assert found["train"] == [
        ("train/n01440764/n01440764_10.JPEG", "tench"),
        ("train/n01440764/n01440764_9.JPEG", "tench"),
        ("train/n01443537/n01443537_10.JPEG", "goldfish"),
        ("train/n01443537/n01443537_9.JPEG", "goldfish"),
    ]
    assert found["test"] == [
        (f"{val}/n01440764/ILSVRC2012_val_764.JPEG", "tench"),
        (f"{val}/n01443537/ILSVRC2012_val_537.JPEG", "goldfish"),
    ]
    assert set(found) == {"train", "test"}


def test_imagenet_shots_by_an_explicit_list(tmp_path):
    _write_imagenet(tmp_path / "imagenet", "images")
    shots = write_json(
        tmp_path / "seed_1.json",
        {
            "train": {
                "n01443537/n01443537_9.JPEG": "gold fish",
                "n01440764/n01440764_10.JPEG": "tench",
            },
            "val": {"n01440764/n01440764_9.JPEG": "tench"},
        },
    )
    found = contents(read_benchmark(tiny("imagenet", {"train": 9, "test": 2}), tmp_path, shots))
    # The list's own spelling of a name gives way to the benchmark's.
    assert found["train"] == [
        ("train/n01443537/n01443537_9.JPEG", "goldfish"),
        ("train/n01440764/n01440764_10.JPEG", "tench"),
    ]
    assert found["val"] == [("train/n01440764/n01440764_9.JPEG", "tench")]
    assert len(found["test"]) == 2


def test_imagenet_incomplete(tmp_path):
    benchmark = tiny("imagenet", {"train": 4, "test": 2})
    _write_imagenet(tmp_path, "images")
    shutil.rmtree(tmp_path / "images" / "train" / "n01440764")
    with pytest.raises(DataError, match=r"train has 2 images(.|\n)*no image of 1 class \(tench"):
        read_benchmark(benchmark, tmp_path)
    shutil.rmtree(tmp_path / "images" / "val")
    write(tmp_path, ["images/val/ILSVRC2012_val_00000001.JPEG"])
    with pytest.raises(DataError, match="no validation images in class folders"):
        read_benchmark(benchmark, tmp_path)
    (tmp_path / "classnames.txt").write_text("tench\n")
    with pytest.raises(DataError, match=r"classnames\.txt, line 1: 'tench' is not like"):
        read_benchmark(benchmark, tmp_path)
    (tmp_path / "classnames.txt").unlink()
    with pytest.raises(DataError, match=r"classnames\.txt is missing"):
        read_benchmark(benchmark, tmp_path)


def test_a_list_of_shots_with_test_images_in_it_is_refused(tmp_path):
    folder = write_tree(tmp_path, "food101")
    test_path = tiny_split("food101")["test"][0][0]
    shots = write_json(tmp_path / "shots.json", {"train": {test_path: "apple pie"}})
    with pytest.raises(DataError, match="is in train and in test"):
        read_benchmark(tiny("food101"), folder, shots)
    shots = write_json(tmp_path / "shots.json", {"train": {"pizza/1.jpg": "pizza"}})
    with pytest.raises(DataError, match=r"pizza/1\.jpg is of no class"):
        read_benchmark(tiny("food101"), folder, shots)
    shots = write_json(tmp_path / "shots.json", {"val": {"pizza/1.jpg": "pizza"}})
    with pytest.raises(DataError, match="lists no training images"):
        read_benchmark(tiny("food101"), folder, shots)


@pytest.mark.parametrize(
    ("text", "folder", "split"),
    [
        ("dtd:data/dtd", "data/dtd", None),
        ("dtd:data@lists/a.json", "data", "lists/a.json"),
        ("dtd:a@b@c.json", "a@b", "c.json"),
        ("dtd:C:\\data", "C:\\data", None),
    ],
)
def test_sources_in_one_word(tmp_path, monkeypatch, text, folder, split):
    monkeypatch.chdir(tmp_path)
    source = DataSource.parse(text)
    assert source.benchmark is BENCHMARKS["dtd"]
    assert (source.path, source.split) == (Path(folder), None if split is None else Path(split))
    assert str(source) == text
    lasting = source.lasting
    assert lasting.path.is_absolute()
    assert split is None or lasting.split.is_absolute()
    assert DataSource.parse(str(lasting)) == lasting == lasting.lasting


@pytest.mark.parametrize("name", ["DTD", "Oxford-IIIT-Pet", "oxford pets", "FGVC-Aircraft"])
def test_sources_are_known_in_every_spelling(name):
    assert DataSource.parse(f"{name}:data").benchmark in BENCHMARKS.values()


def test_a_folder_with_a_sign_in_its_name(tmp_path, monkeypatch):
    (tmp_path / "me@home").mkdir()
    assert DataSource.parse(f"dtd:{tmp_path}/me@home").folder == tmp_path / "me@home"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DataSource.parse("dtd:~/me@home").folder == tmp_path / "me@home"


@pytest.mark.parametrize("text", ["emoji", "dtd", "dtd:", "./dtd:x", "cifar:x", "C:\\dtd", "a/b"])
def test_sources_of_another_kind(text):
    source = DataSource.parse(text)
    assert source.benchmark is None
    assert str(source) == text
    assert source.is_emoji == (text == "emoji")


def test_sources_that_last(tmp_path, monkeypatch):
    (tmp_path / "emoji").mkdir()
    monkeypatch.chdir(tmp_path)
    assert str(DataSource.parse("emoji").lasting) == "emoji"
    assert str(DataSource.parse("./emoji").lasting) == str(tmp_path / "emoji")
    assert str(DataSource.parse("./gone").lasting) == "./gone"
    assert DataSource.parse("./emoji").folder == Path("emoji")
    assert DataSource.parse("./gone").folder is None


def test_load_data_reads_and_refuses(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "dtd", tiny("dtd"))
    folder = write_tree(tmp_path, "dtd")
    data = load_data(f"dtd:{folder}")
    assert data.class_names == ("banded", "dotted")
    assert data.splits == ("train", "val", "test")
    assert len(data) == 12
    moved = shutil.move(folder / "split_zhou_DescribableTextures.json", tmp_path / "elsewhere.json")
    assert len(load_data(f"dtd:{folder}@{moved}")) == 12
    (folder / "images" / "banded" / "banded_0002.jpg").unlink()
    with pytest.raises(
        DataError,
        match=r"DTD in .* cannot be used:\n  1\. 1 of 12 listed images are missing; for example "
        r"banded/banded_0002\.jpg\nfor more, type: promptboost data check dtd .* --split ",
    ):
        load_data(f"dtd:{folder}@{moved}")


def test_a_word_that_is_nearly_a_benchmark(tmp_path):
    with pytest.raises(DataError, match="no benchmark 'cifar'; there are: imagenet"):
        load_data(f"cifar:{tmp_path}")
    with pytest.raises(DataError, match=r"does not exist; .* a benchmark as NAME:DIR"):
        load_data(str(tmp_path / "gone"))


@needs_beside
def test_a_whole_benchmark_of_its_published_size(tmp_path):
    split = RELEASED / "dtd" / "split_zhou_DescribableTextures.json"
    image = tmp_path / "one.jpg"
    image.write_bytes(PIXELS)
    for path in paths_of(json.loads(split.read_text())):
        place = tmp_path / "dtd" / "images" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(image, place)
    data = load_data(f"dtd:{tmp_path}@{split}")
    assert len(data) == 5640
    assert len(data.class_names) == 47
    released = json.loads((RELEASED / "dtd/fewshot_dataset/seed_2_num_shots_4.json").read_text())
    learn, held_out = coop_few_shot(data, 4, 2)
    assert {image.id: image.label for image in learn.images} == released["train"]
    assert len(held_out) == 1692
    # The released list itself gives the same images; its split lies in the folder above it.
    shots = RELEASED / "dtd" / "fewshot_dataset" / "seed_2_num_shots_4.json"
    by_list = load_data(f"dtd:{tmp_path}@{shots}", check=False)
    assert by_list.of_split("train").images == learn.images
    assert by_list.of_split("test").images == held_out.images
