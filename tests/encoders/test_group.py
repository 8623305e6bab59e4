"""Several encoders used as one: an encoder whose rows are theirs, next to each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from promptboost.data.decode import read_image
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, members_of, open_embedder
from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.group import EncoderGroup, join, split
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import DataError, EmbeddingError, EncoderError, SettingError

NAMES = ("fake:16-0", "fake:8-1", "fake:12-2")
IMAGES = [Image.new("RGB", (12, 9), color) for color in ("red", "green", "navy", "white")]
TEXTS = ["a cat", "a dog", "a cat", ""]


def group_of(*names, **options):
    return open_embedder(names or NAMES, **{"cache": False, **options})


def test_it_is_an_encoder():
    group = group_of()
    assert isinstance(group, Encoder)
    assert group.id == "fake:16-0+fake:8-1+fake:12-2"
    assert group.dim == 3 * 16
    for rows in (group.encode_texts(TEXTS), group.encode_images(iter(IMAGES))):
        assert rows.shape == (4, group.dim)
        assert rows.dtype == np.float32
        assert rows.flags.c_contiguous
    assert group.encode_texts([]).shape == (0, group.dim)
    assert group.encode_images([]).shape == (0, group.dim)


def test_it_needs_as_much_of_a_text_as_any_member():
    class Short(FakeEncoder):
        context_length = 5
        causal_text = False

        def count_tokens(self, texts):
            return 2 * super().count_tokens(texts)

    members = [Embedder(FakeEncoder(16)), Embedder(Short(8))]
    group = EncoderGroup(members)
    assert (group.context_length, group.causal_text) == (5, False)
    assert group.count_tokens(TEXTS).tolist() == members[1].count_tokens(TEXTS).tolist()
    assert group.logit_scale == members[0].logit_scale


@pytest.mark.parametrize("cache", [False, True])
def test_rows_are_those_of_the_encoders_alone(tmp_path, cache):
    group = group_of(cache=tmp_path / "group" if cache else False)
    texts, images = group.encode_texts(TEXTS), group.encode_images(IMAGES)
    crops = group.images(IMAGES, views=3, view_scale=0.3)
    assert crops.shape == (4, 4, group.dim)
    assert np.array_equal(group.originals(IMAGES), crops[:, 0])
    for number, name in enumerate(NAMES):
        alone = Embedder.open(name, cache=False)
        for rows, expected in (
            (texts, alone.encode_texts(TEXTS)),
            (images, alone.encode_images(IMAGES)),
            (crops, alone.images(IMAGES, views=3, view_scale=0.3)),
        ):
            assert np.array_equal(group.split(rows)[number], expected)


def test_members_share_a_store(tmp_path):
    group_of(cache=tmp_path).encode_texts(TEXTS)
    counts = {item.fingerprint: item.rows for item in EmbeddingStore(tmp_path).report().encoders}
    assert counts == {member.fingerprint: 3 for member in group_of().members}
    again = group_of(cache=tmp_path)
    again.encode_texts(TEXTS)
    assert [member.computed["texts"] for member in again.members] == [0, 0, 0]


blocks_of_rows = st.integers(0, 3).flatmap(
    lambda n: st.lists(
        st.integers(1, 5).flatmap(
            lambda dim: arrays(np.float32, (n, 2, dim), elements=st.floats(-1, 1, width=32))
        ),
        min_size=1,
        max_size=4,
    )
)


@given(blocks_of_rows)
def test_split_is_the_inverse_of_join(blocks):
    rows = join(blocks)
    dims = [block.shape[-1] for block in blocks]
    assert rows.shape == (*blocks[0].shape[:-1], len(blocks) * max(dims))
    for block, expected in zip(split(rows, dims), blocks, strict=True):
        assert block.dtype == expected.dtype
        assert np.array_equal(block, expected)
    # All else is zero, so that products of rows are sums of products of the blocks.
    assert np.count_nonzero(rows) == sum(map(np.count_nonzero, blocks))
    np.testing.assert_allclose(
        np.einsum("nvd,nvd->nv", rows, rows),
        sum(np.einsum("nvd,nvd->nv", block, block) for block in blocks),
        rtol=1e-5,
        atol=1e-30,
    )


def test_join_keeps_grids_and_the_wider_type():
    grid = join([np.int16([[1, 2]]), np.int16([[3]])])
    assert (grid.dtype, grid.tolist()) == (np.int16, [[1, 2, 3, 0]])
    assert join([np.float32([[1]]), np.array([[0.1]])]).tolist() == [[1.0, 0.1]]
    alone = np.eye(2)
    assert join([alone]) is alone


def test_the_fingerprint_changes_with_members_and_their_order():
    groups = [group_of(*names) for names in (NAMES, NAMES[:2], NAMES[1::-1], NAMES[1:])]
    assert len({group.fingerprint for group in groups}) == len(groups)
    assert group_of().fingerprint == groups[0].fingerprint
    assert groups[0].fingerprint not in [member.fingerprint for member in groups[0].members]


def test_a_single_name_is_its_encoder_and_not_a_group():
    alone = group_of(NAMES[0])
    assert isinstance(alone, Embedder)
    assert members_of(alone) == (alone,)
    group = group_of()
    assert members_of(group) == group.members
    assert [member.id for member in group.members] == list(NAMES)


def test_what_is_refused():
    with pytest.raises(SettingError, match="lists the same encoder twice: give each once"):
        group_of(NAMES[0], NAMES[1], NAMES[0])
    with pytest.raises(EmbeddingError, match=r"different numbers of inputs: \(3, 4\), \(2, 4\)"):
        join([np.zeros((3, 4)), np.zeros((2, 4))])
    with pytest.raises(DataError):
        group_of().images(["missing.png"])
    with pytest.raises(EncoderError, match="nothing"):
        group_of(NAMES[0], "nothing")


def test_images_are_decoded_once_for_all_encoders(tmp_path, monkeypatch):
    for number, image in enumerate(IMAGES):
        image.save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    decoded = []

    def counted(source, name, **options):
        decoded.append(name)
        return read_image(source, name, **options)

    monkeypatch.setattr("promptboost.encoders.embedder.read_image", counted)
    group_of().images(paths, views=2)
    assert len(decoded) == len({image.tobytes() for image in IMAGES})
