"""WaffleCLIP: what is drawn, and that it is text like any other."""

import string
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.errors import SettingError
from promptboost.methods import make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.sentence_means import WORDS, WaffleCLIP
from tests.methods.small_task import ENCODER, IMAGES, NAMES, OTHER, POOL, SHOTS

BIRDS = ["barn owl", "king_penguin"]


def fitted_with(**settings):
    return WaffleCLIP(**settings).fit(SHOTS, POOL, ENCODER)


def test_noise_is_as_long_as_the_names():
    # Two words each, 4.5 letters a word on the average (4 when rounded); the longest word has 5.5, so
    # that 6 letters are spread over two groups, and one is added to each.
    noises = WaffleCLIP(pairs=3).noises(BIRDS)
    assert len(noises) == 6
    cut = {word[:4] for word in WORDS}
    for words, letters in zip(noises[::2], noises[1::2], strict=True):
        assert len(words.split()) == 2
        assert set(words.split()) <= cut
        assert [len(group) for group in letters.split(", ")] == [4, 4]
        assert set(letters) <= set(string.ascii_lowercase + ", ")


@given(
    st.lists(st.from_regex(r"[a-z]{1,12}( [a-z]{1,12}){0,3}", fullmatch=True), min_size=1),
    st.integers(0, 100),
)
def test_any_names_give_noise_that_can_be_read(names, seed):
    noises = WaffleCLIP(pairs=2, seed=seed).noises(names)
    assert len(noises) == 4
    assert all(noise.strip(" ,") == noise != "" for noise in noises)


def test_all_classes_have_the_same_draws():
    fire, ice = fitted_with(pairs=4).words()
    assert next(iter(fire)).startswith("a photo of fire, which has ")
    assert next(iter(ice)).startswith("a photo of ice, which has ")
    for bank in (fire, ice):
        assert all(text.endswith(".") for text in bank)
    tails = [[text.split("which has ")[1] for text in bank] for bank in (fire, ice)]
    assert tails[0] == tails[1] == [f"{n}." for n in WaffleCLIP(pairs=4).noises(NAMES)]


def test_what_is_drawn_twice_counts_twice():
    bank = fitted_with(pairs=40).words()[0]
    assert sum(bank.values()) == 80
    noises = WaffleCLIP(pairs=40).noises(NAMES)
    most = max(noises, key=noises.count)
    assert bank[f"a photo of fire, which has {most}."] == noises.count(most) > 1


def test_a_score_is_the_mean_of_cosines():
    fitted = fitted_with(pairs=2)
    texts = ENCODER.encode_texts(list(fitted.words()[1]))
    expected = ENCODER.logit_scale * (IMAGES.rows(ENCODER) @ texts.T).mean(axis=1)
    np.testing.assert_allclose(fitted.logits(IMAGES)[:, 1], expected, rtol=1e-4)


def test_the_seed_decides():
    texts = [list(fitted_with(seed=seed).words()[0]) for seed in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert texts[1] != texts[2]
    for one, next_one in pairwise(WaffleCLIP(seed=3).noises(BIRDS)):
        assert one != next_one


def test_is_kept_and_moves_as_text(tmp_path):
    fitted = fitted_with(template="an icon of a {}.", seed=4)
    save_fitted(fitted, tmp_path)
    again = load_fitted(tmp_path, ENCODER)
    assert again.words() == fitted.words()
    assert again.origin.method == "waffle?template=an icon of a {}.&seed=4"
    moved, there = again.transfer(OTHER), WaffleCLIP(template="an icon of a {}.", seed=4)
    np.testing.assert_array_equal(
        moved.logits(IMAGES), there.fit(SHOTS, POOL, OTHER).logits(IMAGES)
    )


@pytest.mark.parametrize("setting", ["pairs=0", "template=a photo", "template={} and {}"])
def test_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(SettingError, match=setting.split("=")[0]):
        make_method(f"waffle?{setting}")
