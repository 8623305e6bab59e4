import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.data import Dataset, LabeledImage, few_shot
from promptboost.data.shots import draw_shots, rest, uneven_classes
from promptboost.errors import DataError, SettingError

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80)


@given(labels=LABELS, shots=st.integers(1, 12), seed=st.integers(0, 2**40))
def test_draws_are_stratified_nested_and_repeatable(labels, shots, seed):
    drawn = draw_shots(labels, shots, seed)
    doubled = draw_shots(labels, 2 * shots, seed)
    assert set(drawn) <= set(doubled)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert drawn.tolist() == draw_shots(labels, shots, seed).tolist()
    for label in set(labels):
        taken = sum(labels[i] == label for i in drawn)
        assert taken == min(shots, labels.count(label))
    assert sorted([*drawn, *rest(len(labels), drawn)]) == list(range(len(labels)))


def test_seeds_draw_differently_and_evenly():
    labels = np.repeat([0, 1], 10)
    draws = [tuple(draw_shots(labels, 1, seed)) for seed in range(300)]
    counts = np.bincount(np.ravel(draws), minlength=20)
    assert counts.min() > 10
    assert len(set(draws)) > 60


@given(st.integers(2, 8), st.integers(1, 16), st.integers(0, 99))
def test_uneven_classes_have_one_to_all_images(classes, most, seed):
    data = Dataset.of(
        LabeledImage(f"{label}-{i}", f"{label}", b"") for label in range(classes) for i in range(16)
    )
    some = uneven_classes(data, most, seed)
    sizes = np.bincount(some.labels)
    steps = [round(most ** (step / (classes - 1))) for step in range(classes)]
    assert sorted(sizes.tolist()) == steps
    assert [image.id for image in uneven_classes(data, most, seed).images] == [
        image.id for image in some.images
    ]
    drawn = [np.bincount(uneven_classes(data, 16, s).labels).argmax() for s in range(20)]
    assert len(set(drawn)) > 1


def test_a_class_is_drawn_independently_of_the_others():
    alone = draw_shots(np.zeros(9, dtype=int), 3, 4)
    together = draw_shots([0] * 9 + [1] * 5, 3, 4)
    assert together[:3].tolist() == alone.tolist()


def test_too_few_images():
    assert draw_shots([0, 0, 2], 2).tolist() == [0, 1, 2]


@pytest.mark.parametrize("wrong", [{"shots": 0}, {"seed": -1}])
def test_wrong_settings(wrong):
    with pytest.raises(SettingError):
        draw_shots([0, 1], **{"shots": 1, **wrong})


def dataset(*splits: str | None) -> Dataset:
    return Dataset.of(
        LabeledImage(f"{split}/{label}{number}", label, b"", split)
        for split in splits
        for label in "ab"
        for number in range(5)
    )


def test_without_splits_the_rest_is_held_out():
    data = dataset(None)
    learn, held_out = few_shot(data, 2, seed=1)
    assert (len(learn), len(held_out)) == (4, 6)
    ids = {image.id for image in (*learn.images, *held_out.images)}
    assert ids == {image.id for image in data.images}


@pytest.mark.parametrize(
    ("splits", "held"), [(("train", "val", "test"), "test"), (("train", "val"), "val")]
)
def test_with_splits_the_test_images_are_held_out(splits, held):
    learn, held_out = few_shot(dataset(*splits), 2)
    assert {image.split for image in learn.images} == {"train"}
    assert {image.split for image in held_out.images} == {held}
    assert len(held_out) == 10


def test_a_train_split_alone_leaves_its_rest():
    learn, held_out = few_shot(dataset("train"), 2)
    assert (len(learn), len(held_out)) == (4, 6)


def test_images_of_a_drawn_group_are_not_held_out():
    images = [
        LabeledImage(f"{label}{number}", label, b"", group=f"{label}{number // 3}")
        for label in "ab"
        for number in range(9)
    ]
    data = Dataset.of([*images, LabeledImage("alone", "a", b"")])
    learn, held_out = few_shot(data, 2, seed=1)
    drawn = {image.group for image in learn.images if image.group}
    assert len(learn) == 4
    assert drawn
    assert drawn.isdisjoint(image.group for image in held_out.images)
    left = {image.id for image in data.images if image.group not in drawn}
    assert {image.id for image in held_out.images} == left - {image.id for image in learn.images}
    assert dataset(None).groups is None
    assert len(set(data.groups)) == 7


def test_all_images():
    learn, held_out = few_shot(dataset("train", "test"), None)
    assert (len(learn), len(held_out)) == (10, 10)
    assert len(few_shot(dataset(None), None)[1]) == 0


def test_splits_without_train():
    with pytest.raises(DataError, match="'train'; there are: test"):
        few_shot(dataset("test"), 1)
