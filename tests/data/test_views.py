import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from promptboost.data.views import draw_view
from promptboost.encoders.embedder import view_keys
from tests.data.image_tools import noisy

PHOTO = noisy(0, (60, 40))


def test_view_zero_is_the_image():
    assert draw_view(PHOTO, 7, b"d", 0) is PHOTO


def test_the_same_view_again_and_another_for_each_part_of_the_key():
    view = draw_view(PHOTO, 1, b"d", 1)
    assert view.tobytes() == draw_view(PHOTO, 1, b"d", 1).tobytes()
    for other in [(2, b"d", 1), (1, b"e", 1), (1, b"d", 2)]:
        assert view.tobytes() != draw_view(PHOTO, *other).tobytes()


def test_views_are_the_ones_of_every_earlier_version():
    sizes = [draw_view(PHOTO, 0, b"digest", number).size for number in (1, 2, 3)]
    assert sizes == [(37, 37), (49, 38), (40, 37)]


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    number=st.integers(1, 1000),
    low=st.floats(0.05, 1.0),
)
def test_crops_fit_and_keep_their_share(width, height, number, low):
    view = draw_view(Image.new("L", (width, height)), 0, b"x", number, scale=(low, 1.0))
    assert 1 <= view.width <= width
    assert 1 <= view.height <= height
    # Rounding to whole pixels costs at most half a row and half a column.
    assert (view.width + 0.5) * (view.height + 0.5) >= low * width * height * 0.999
    if 3 / 4 <= width / height <= 4 / 3 and min(width, height) > 100:
        assert 0.72 < view.width / view.height < 1.39


def test_half_are_mirrored():
    ramp = Image.linear_gradient("L").rotate(90)
    mirrored = 0
    for number in range(1, 401):
        view = draw_view(ramp, 0, b"x", number)
        left, right = view.getpixel((0, 0)), view.getpixel((view.width - 1, 0))
        first, last = ramp.getpixel((0, 0)), ramp.getpixel((255, 0))
        mirrored += (left < right) != (first < last)
    assert 160 < mirrored < 240


def test_a_view_is_a_part_of_the_image():
    view = draw_view(PHOTO, 0, b"x", 5)
    for candidate in (view, ImageOps.mirror(view)):
        for left in range(PHOTO.width - view.width + 1):
            for top in range(PHOTO.height - view.height + 1):
                box = (left, top, left + view.width, top + view.height)
                if PHOTO.crop(box).tobytes() == candidate.tobytes():
                    return
    pytest.fail("the view is nowhere in the image")


def test_keys_in_the_store_tell_views_apart():
    scales = ((0.5, 1.0), (0.4, 1.0))
    keys = [view_keys(image, 3, scale) for image in (b"x", b"y") for scale in scales]
    assert keys[0][0] == keys[1][0] != keys[2][0]  # the image itself has no scale
    assert len({key for each in keys for key in each}) == 2 + 8
    assert view_keys(b"x", 2, (1, 1)) == view_keys(b"x", 2, (1.0, 1.0))
