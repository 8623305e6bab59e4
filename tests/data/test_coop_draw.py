import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.data import Dataset, LabeledImage
from promptboost.data.benchmarks import BENCHMARKS, Item, read_split
from promptboost.data.shots import coop_draw, coop_few_shot, draw_shots
from promptboost.errors import DataError, SettingError
from tests.beside import RELEASED, needs_beside
from tests.data.benchmarks.benchmark_tools import SPLITS


def _drawn(items, shots, seed):
    return [items[index] for index in coop_draw([item.label for item in items], shots, seed)]


@needs_beside
@pytest.mark.parametrize("name", SPLITS)
def test_draws_are_the_released_ones(name):
    folder, file = SPLITS[name]
    items = read_split(RELEASED / folder / file)
    benchmark = BENCHMARKS[name]
    assert {split: len(listed) for split, listed in items.items()} == benchmark.sizes
    assert len({item.label for item in items["test"]}) == benchmark.classes
    for seed in (1, 2, 3):
        for shots in (1, 2, 4, 8, 16):
            list_file = f"seed_{seed}_num_shots_{shots}.json"
            released = json.loads((RELEASED / folder / "fewshot_dataset" / list_file).read_text())
            drawn = _drawn(items["train"], shots, seed)
            assert [item.path for item in drawn] == list(released["train"]), (seed, shots)


@needs_beside
def test_the_exceptions_are_as_documented():
    shots = "fewshot_dataset/seed_1_num_shots_1.json"
    resplit = read_split(RELEASED / "fgvc_aircraft" / "split.json")
    aircraft = read_split(RELEASED / "fgvc_aircraft" / shots)
    # By the same rule, but from another split than the protocol's.
    assert {split: len(listed) for split, listed in resplit.items()} != BENCHMARKS[
        "fgvc_aircraft"
    ].sizes
    assert [item.path for item in _drawn(resplit["train"], 1, 1)] == [
        item.path for item in aircraft["train"]
    ]
    official = set((RELEASED / "food101" / "meta" / "train.txt").read_text().split())
    food = read_split(RELEASED / "food101" / shots)
    assert all(item.path.removesuffix(".jpg") in official for item in food["train"])
    imagenet = read_split(RELEASED / "imagenet" / shots)
    assert len({item.label for item in imagenet["train"]}) == 998


def _items(labels):
    return [Item(f"{number}.jpg", label, str(label)) for number, label in enumerate(labels)]


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    shots=st.integers(1, 20),
    seed=st.integers(0, 2**40),
)
def test_the_draw_step_by_step(labels, shots, seed):
    random.seed(seed)
    plainly = []
    for label in dict.fromkeys(labels):
        members = [item for item in _items(labels) if item.label == label]
        plainly += random.sample(members, shots) if len(members) >= shots else members
    assert _drawn(_items(labels), shots, seed) == plainly


def test_the_generator_of_others_is_left_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    _drawn(_items([0, 0, 1]), 1, 1)
    assert random.random() == expected


def test_a_dataset_is_divided_by_the_same_draw():
    labels = [3, 1, 3, 1, 2, 2, 3, 1, 2, 3]
    images = [LabeledImage(f"{i}.jpg", str(label), b"", "train") for i, label in enumerate(labels)]
    others = [LabeledImage("v.jpg", "1", b"", "val"), LabeledImage("t.jpg", "2", b"", "test")]
    data = Dataset.of([*others, *images])
    for seed in range(10):
        learn, held_out = coop_few_shot(data, 2, seed)
        drawn = _drawn(_items(labels), 2, seed)
        assert [image.id for image in learn.images] == [item.path for item in drawn]
        assert [image.id for image in held_out.images] == ["t.jpg"]
        assert learn.class_names == ("1", "2", "3")
    assert len(coop_few_shot(data, None, 1)[0]) == 10


def test_other_data_keeps_its_own_draw():
    assert draw_shots([0, 0, 0, 1, 1, 1], 1, seed=5).tolist() == [2, 5]


@pytest.mark.parametrize(("shots", "seed"), [(0, 1), (-1, 1), (1, -1)])
def test_impossible_numbers(shots, seed):
    with pytest.raises(SettingError, match="try shots 1 or more"):
        _drawn(_items([0, 1]), shots, seed)


def test_nothing_to_draw_from():
    data = Dataset.of([LabeledImage("t.jpg", "2", b"", "test")])
    with pytest.raises(DataError, match="no image is in the split 'train'"):
        coop_few_shot(data, 1, 1)
