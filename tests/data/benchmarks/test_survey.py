import json
import os

import pytest

from promptboost.data.benchmarks import BENCHMARKS, survey_benchmark
from promptboost.errors import DataError
from tests.beside import PHOTOGRAPHS, RELEASED, needs_beside
from tests.data.benchmarks.benchmark_tools import (
    SPLITS,
    tiny,
    tiny_split,
    write,
    write_json,
    write_tree,
)


def test_a_complete_benchmark(tmp_path):
    survey = survey_benchmark(tiny("dtd"), write_tree(tmp_path, "dtd"))
    assert survey.complete
    assert survey.counts() == {
        "train": {"published": 6, "listed": 6, "there": 6},
        "val": {"published": 2, "listed": 2, "there": 2},
        "test": {"published": 4, "listed": 4, "there": 4},
        "classes": {"published": 2, "listed": 2, "there": 2},
    }


def test_missing_empty_and_dangling_images(tmp_path):
    folder = write_tree(tmp_path, "dtd")
    banded = folder / "images" / "banded"
    (banded / "banded_0000.jpg").unlink()
    (banded / "banded_0001.jpg").write_bytes(b"")
    (banded / "banded_0002.jpg").unlink()
    (banded / "banded_0002.jpg").symlink_to(tmp_path / "nowhere")
    survey = survey_benchmark(tiny("dtd"), folder)
    assert survey.problems == (
        "2 of 12 listed images are missing; for example banded/banded_0000.jpg, "
        "banded/banded_0002.jpg",
        "1 file of no length, from a broken download: banded/banded_0001.jpg",
    )
    assert survey.counts()["train"] == {"published": 6, "listed": 6, "there": 3}
    for file in banded.iterdir():
        file.unlink()
    assert "all of 1 class (banded)" in survey_benchmark(tiny("dtd"), folder).problems[0]


def test_another_dataset_is_named(tmp_path):
    write(tmp_path / "dtd" / "images", ["cat/1.jpg"])
    write_json(tmp_path / "dtd" / "split_zhou_DescribableTextures.json", tiny_split("dtd"))
    problems = survey_benchmark(tiny("dtd"), tmp_path).problems
    assert problems == (
        "none of the 12 listed images is there; the folder holds other files, like cat/1.jpg",
    )


def test_another_split_is_named(tmp_path):
    folder = write_tree(tmp_path, "dtd")
    split = tiny_split("dtd")
    split["train"].append(split["val"].pop())
    other = write_json(tmp_path / "other.json", split)
    problems = survey_benchmark(tiny("dtd"), folder, other).problems
    assert len(problems) == 2
    assert problems[0].startswith("train has 7 images, but DTD is published with 6")
    assert problems[1].startswith("val has 1 image, but DTD is published with 2")
    assert survey_benchmark(tiny("dtd", classes=3), folder).problems == (
        "there are 2 classes, but DTD is published with 3",
    )
    del split["val"]
    write_json(folder / "split_zhou_DescribableTextures.json", split)
    assert "has no list val" in survey_benchmark(tiny("dtd"), folder).problems[0]


def test_shots_without_their_split_say_where_it_can_lie(tmp_path):
    folder = write_tree(tmp_path, "dtd")
    shots = write_json(tmp_path / "a" / "b" / "shots.json", {"train": {"banded/1.jpg": "banded"}})
    file = folder / "split_zhou_DescribableTextures.json"
    file.rename(tmp_path / "away.json")
    (problem,) = survey_benchmark(tiny("dtd"), folder, shots).problems
    assert "next to shots.json, which lists drawn shots and no test images" in problem
    assert "--split" not in problem
    for place in ("a/b", "a"):
        beside = (tmp_path / "away.json").rename(tmp_path / place / file.name)
        assert survey_benchmark(tiny("dtd"), folder, shots).lists.whole == beside
        beside.rename(tmp_path / "away.json")


def test_what_is_not_known_is_not_counted_as_none(tmp_path):
    counts = survey_benchmark("dtd", tmp_path).counts()
    assert list(counts) == ["train", "val", "test", "classes"]
    assert counts["classes"] == {"published": 47, "listed": None, "there": None}


def test_images_that_are_cut_off_are_named_when_looked_at(tmp_path):
    folder = write_tree(tmp_path, "dtd")
    for number in (1, 2):
        file = folder / "images" / "banded" / f"banded_000{number}.jpg"
        file.write_bytes(file.read_bytes()[:-30])
    assert survey_benchmark(tiny("dtd"), folder).complete
    assert survey_benchmark(tiny("dtd"), folder, look=True).problems == (
        "2 files cut off or damaged: banded/banded_0001.jpg, banded/banded_0002.jpg; get them again",
    )


def test_links_are_followed_but_not_in_circles(tmp_path):
    folder = write_tree(tmp_path / "disk", "dtd")
    (tmp_path / "dtd").mkdir()
    (tmp_path / "dtd" / "images").symlink_to(folder / "images")
    (folder / "images" / "banded" / "up").symlink_to(folder / "images")
    split = folder / "split_zhou_DescribableTextures.json"
    survey = survey_benchmark(tiny("dtd"), tmp_path, split)
    assert survey.complete


def test_no_such_folder(tmp_path):
    with pytest.raises(DataError, match="gone is not a folder; give the folder of DTD"):
        survey_benchmark("dtd", tmp_path / "gone")


@needs_beside
def test_real_pets_are_known_for_a_part():
    split = RELEASED / "oxford_pets" / "split_zhou_OxfordPets.json"
    survey = survey_benchmark("oxford_pets", PHOTOGRAPHS / "oxford_pets", split)
    assert not survey.complete
    counts = survey.counts()
    assert counts["train"] == {"published": 2944, "listed": 2944, "there": 1624}
    assert counts["classes"] == {"published": 37, "listed": 37, "there": 37}
    there = sum(counts[part]["there"] for part in ("train", "val", "test"))
    assert survey.problems[0].startswith(f"{7349 - there:,} of 7,349 listed images are missing;")
    # The folder of an image, which nobody looked at, agrees with the split file's class.
    names = {item.path: item.name for items in survey.lists.items.values() for item in items}
    for path, file in survey.files.items():
        assert file.parent.name == names[path].replace("_", " ")


@needs_beside
def test_real_textures_are_known_for_a_part():
    split = RELEASED / "dtd" / "split_zhou_DescribableTextures.json"
    survey = survey_benchmark("dtd", PHOTOGRAPHS / "dtd10", split)
    assert survey.counts()["classes"] == {"published": 47, "listed": 47, "there": 10}
    assert survey.problems[0].startswith("5,040 of 5,640 listed images are missing")
    folders = {entry.name for entry in os.scandir(PHOTOGRAPHS / "dtd10")}
    assert "all of 37 classes (dotted, fibrous, flecked and 34 more)" in survey.problems[0]
    assert not folders & {"dotted", "fibrous", "flecked"}
    assert len(survey.files) == 600


@needs_beside
def test_released_shots_of_real_textures_find_the_split_they_are_from():
    shots = RELEASED / "dtd" / "fewshot_dataset" / "seed_1_num_shots_1.json"
    survey = survey_benchmark("dtd", PHOTOGRAPHS / "dtd10", shots)
    counts = survey.counts()
    assert (counts["train"]["listed"], counts["test"]["listed"]) == (47, 1692)
    whole = RELEASED / "dtd" / "split_zhou_DescribableTextures.json"
    assert survey.lists.whole == whole


@needs_beside
@pytest.mark.parametrize("name", SPLITS)
def test_the_protocols_list_is_known_and_a_new_draw_of_it_is_not(tmp_path, name):
    folder, file = SPLITS[name]
    split = json.loads((RELEASED / folder / file).read_text())
    shots = RELEASED / folder / "fewshot_dataset" / "seed_1_num_shots_1.json"

    def foreign(given):
        found = survey_benchmark(name, tmp_path, given).problems
        return [line for line in found if "not the protocol's list" in line]

    assert foreign(RELEASED / folder / file) == []
    assert foreign(shots) == []
    (first, *rest) = split["train"] if isinstance(split["train"], list) else split["train"].items()
    moved = [*rest, first]
    split["train"] = moved if isinstance(split["train"], list) else dict(moved)
    other = write_json(tmp_path / BENCHMARKS[name].split_file, split)
    assert len(foreign(other)) == len(foreign(None)) == 1
    shots = write_json(tmp_path / "shots" / "1.json", json.loads(shots.read_text()))
    assert str(other) in foreign(shots)[0]
