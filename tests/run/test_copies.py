import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from promptboost.data import LabeledImage
from promptboost.run import overlap as module
from promptboost.run.overlap import (
    UNKNOWN,
    find_copies,
    near_images,
    near_pairs,
    thumbnail_rows,
)
from tests.data.image_tools import encoded, plain


def scene(seed, size=(240, 160)):
    """An image with something in it: noise has no thumbnail that survives scaling."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def of_bytes(*contents):
    return [LabeledImage(str(i), "", content) for i, content in enumerate(contents)]


def pairs_of(rows, **options):
    return {
        (min(pair), max(pair))
        for i, j in near_pairs(rows, **options)
        for pair in zip(i.tolist(), j.tolist(), strict=True)
    }


def plainly(digests, labels, learned):
    """What is a copy of what, from the definition."""
    n = len(digests)
    alike = [[j for j in range(n) if j != i and digests[i] == digests[j]] for i in range(n)]
    side = [i >= learned for i in range(n)]
    kinds = (
        lambda i, j: side[i] and not side[j],
        lambda i, j: UNKNOWN not in (labels[i], labels[j]) and labels[i] != labels[j],
        lambda i, j: labels[i] == labels[j] != UNKNOWN and side[i] == side[j],
    )
    return [[next((j for j in alike[i] if kind(i, j)), -1) for i in range(n)] for kind in kinds]


images = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 2)), max_size=14)


@given(images, st.integers(0, 14), st.randoms(use_true_random=False))
def test_every_planted_copy_is_found_in_any_order(items, learned, chance):
    digests = [bytes([content]) for content, _ in items]
    labels = np.array([label for _, label in items], dtype=np.int64)
    found = find_copies(digests, labels, learned)
    expected = plainly(digests, labels.tolist(), learned)
    assert found.tolist() == expected
    # Shuffled among those learned from and among those held out, the same images are copies.
    first, second = list(range(len(items)))[:learned], list(range(len(items)))[learned:]
    chance.shuffle(first)
    chance.shuffle(second)
    order = first + second
    again = find_copies([digests[i] for i in order], labels[order], learned)
    for one, other in zip(found, again, strict=True):
        assert ((one >= 0)[order] == (other >= 0)).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 8), st.integers(1, 7))
def test_near_pairs_are_those_of_the_definition_whatever_the_block(seed, n, dim, block):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, dim)).astype(np.float32)
    planted = rng.integers(0, n, n // 3)
    rows[: len(planted)] = rows[planted] + 0.02 * rng.standard_normal((len(planted), dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[rng.random(n) < 0.1] = 0
    cosines = rows @ rows.T
    far = {tuple(pair) for pair in np.argwhere(cosines < 0.9899).tolist()}
    near = {(i, j) for i, j in np.argwhere(cosines >= 0.9901).tolist() if i < j}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        blocks = list(near_pairs(rows))
    found = [pair for i, j in blocks for pair in zip(i.tolist(), j.tolist(), strict=True)]
    found = [(min(pair), max(pair)) for pair in found]
    assert len(found) == len(set(found))
    assert near <= set(found)
    assert not set(found) & far


def test_an_image_saved_anew_is_known_again_and_another_is_not():
    small = scene(0).resize((97, 64))
    rows = thumbnail_rows(
        of_bytes(
            encoded(scene(0)),
            encoded(scene(0), "JPEG", quality=40),
            encoded(small, "JPEG"),
            encoded(scene(1)),
        )
    )
    assert pairs_of(rows) == {(0, 1), (0, 2), (1, 2)}


@pytest.mark.parametrize("most", [0, 3])
def test_thumbnails_are_counted(monkeypatch, most):
    monkeypatch.setattr(module, "_MOST_DECODED", most)
    data = of_bytes(encoded(scene(0)), encoded(plain("white")), b"not an image")
    calls = []
    assert list(near_images(data, progress=lambda *call: calls.append(call))) == []
    count = 3 if most == 3 else 0
    assert calls[0] == ("looking for copies", 0, count)
    assert calls[-1] == ("looking for copies", count, count)


def test_images_of_one_color_are_known_by_their_bytes_alone():
    rows = thumbnail_rows(of_bytes(encoded(plain("white")), encoded(plain("white", (64, 64)))))
    assert not rows.any()


def test_what_was_not_checked_is_opened_only_if_it_is_not_much(monkeypatch):
    data = of_bytes(encoded(scene(0)), encoded(scene(0), "JPEG"), b"not an image")
    monkeypatch.setattr(module, "_MOST_DECODED", 1)
    assert data[0].check() is None
    assert [row.any() for row in thumbnail_rows(data)] == [True, False, False]
    monkeypatch.setattr(module, "_MOST_DECODED", 3)
    assert [row.any() for row in thumbnail_rows(data)] == [True, True, False]
