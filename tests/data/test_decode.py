import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from promptboost.data.decode import MAX_PIXELS, ImageError, quiet_pillow, read_image
from promptboost.errors import DataError
from tests.data.image_tools import check_one, claimed_png, encoded, noisy, plain


def pixel(image: Image.Image, at: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    assert image.mode == "RGB"
    return image.getpixel(at)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation):
    image = plain("white", (40, 20))
    image.paste("red", (0, 0, 20, 10))
    exif = Image.Exif()
    exif[0x0112] = orientation
    opened = read_image(encoded(image, "JPEG", exif=exif, quality=95))
    assert opened.size == ((40, 20) if orientation < 5 else (20, 40))
    red_corner = {1: 0, 2: 1, 3: 3, 4: 2, 5: 0, 6: 1, 7: 3, 8: 2}[orientation]
    width, height = opened.size
    corners = [(2, 2), (width - 3, 2), (2, height - 3), (width - 3, height - 3)]
    redness = [pixel(opened, corner)[1] < 80 for corner in corners]
    assert redness == [corner == red_corner for corner in range(4)]


def test_damaged_exif_is_no_reason_to_refuse():
    data = encoded(plain(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert read_image(data).size == (32, 24)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 128)), (255, 127, 127)),
        (Image.new("LA", (4, 4), (0, 0)), (255, 255, 255)),
        (Image.new("L", (4, 4), 77), (77, 77, 77)),
        (Image.new("1", (4, 4), 1), (255, 255, 255)),
        (Image.new("CMYK", (4, 4), (0, 255, 255, 0)), (255, 0, 0)),
        (Image.new("YCbCr", (4, 4), (255, 128, 128)), (255, 255, 255)),
        (Image.new("HSV", (4, 4), (0, 255, 255)), (255, 0, 0)),
    ],
    ids=lambda value: getattr(value, "mode", ""),
)
def test_every_mode_becomes_rgb_on_white(image, expected):
    assert pixel(read_image(image)) == expected


def test_cmyk_jpeg():
    opened = read_image(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = pixel(opened)
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize("transparency", [1, b"\xff\x00"])
def test_palette_with_transparency(transparency):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((0, 0), 0)
    opened = read_image(encoded(image, "PNG", transparency=transparency))
    assert pixel(opened, (0, 0)) == (255, 0, 0)
    assert pixel(opened, (1, 1)) == (255, 255, 255)


def test_grey_with_a_transparent_value():
    opened = read_image(encoded(Image.new("L", (4, 4), 9), "PNG", transparency=9))
    assert pixel(opened) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_full_range(kind):
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    opened = read_image(encoded(Image.fromarray(values), kind))
    assert [pixel(opened, (x, 0))[0] for x in range(4)] == [0, 1, 128, 255]


def test_thirty_two_bits_and_floats():
    whole = Image.fromarray(np.array([[0, 500_000, 1_000_000]], dtype=np.int32))
    assert [pixel(read_image(whole), (x, 0))[0] for x in range(3)] == [0, 128, 255]
    floats = Image.fromarray(np.array([[0.0, 0.5, 1.0, np.nan]], dtype=np.float32))
    assert [pixel(read_image(floats), (x, 0))[0] for x in range(4)] == [0, 128, 255, 0]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind):
    frames = [plain(color, (16, 16)) for color in ("red", "lime", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    red, green, blue = pixel(read_image(data))
    assert red > 240
    assert max(green, blue) < 15


def test_a_image_in_memory_keeps_its_frame_position_irrelevant(tmp_path):
    path = tmp_path / "moving.gif"
    plain("red").save(path, save_all=True, append_images=[plain("blue")])
    with Image.open(path) as image:
        image.seek(1)
        assert pixel(read_image(image)) == (255, 0, 0)


def test_large_images_may_be_read_smaller():
    data = encoded(noisy(1, (900, 600)), "JPEG")
    assert 100 <= read_image(data, at_least=100).height < 200
    assert read_image(data, at_least=301).size == (900, 600)
    assert read_image(noisy(1, (900, 600)), at_least=200).size == (300, 200)


def test_the_size_is_refused_before_anything_is_decoded():
    side = int(MAX_PIXELS**0.5) + 1
    with pytest.raises(ImageError, match=f"big.png: too large: {side} × {side} pixels"):
        read_image(claimed_png(side, side), "big.png")
    with pytest.raises(ImageError, match=r"big.png: too large"):
        read_image(claimed_png(2**16, 2**16), "big.png")
    # Above what Pillow warns about and below the limit: it is tried, and found to be a lie.
    assert "cut off" in str(check_one(claimed_png(10_000, 10_000)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_cut_anywhere_never_leaks_anything_but_its_own_error(kind):
    data = encoded(noisy(3, (40, 40)), kind)
    for end in range(0, len(data), max(1, len(data) // 60)):
        bad = check_one(data[:end], "x")
        try:
            read_image(data[:end], "x")
        except ImageError:
            assert bad is not None, end
        else:
            assert bad is None, end


def test_the_error_is_a_data_error_that_names_the_file(tmp_path):
    path = tmp_path / "Käse 日本.jpg"
    path.write_text("no")
    with pytest.raises(DataError, match=r"Käse 日本\.jpg: not an image of a known kind"):
        read_image(path, str(path))


def test_non_ascii_names_open(tmp_path):
    path = tmp_path / "Käse 日本 🧀.png"
    plain("blue").save(path)
    assert pixel(read_image(path)) == (0, 0, 255)


def test_a_folder_called_like_a_image(tmp_path):
    (tmp_path / "x.jpg").mkdir()
    assert check_one(tmp_path / "x.jpg").reason == "a folder, not an image"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_permissions(tmp_path):
    path = tmp_path / "secret.png"
    plain().save(path)
    path.chmod(0)
    assert check_one(path).reason == "no permission to read it"


def test_unreadable_permissions_as_the_system_reports_them(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    plain().save(tmp_path / "secret.png")
    monkeypatch.setattr("promptboost.data.decode.open_regular", refuse)
    assert check_one(tmp_path / "secret.png").reason == "no permission to read it"


def test_a_file_too_large_to_be_a_image_is_not_read(tmp_path):
    path = tmp_path / "disk.jpg"
    with path.open("wb") as file:
        file.truncate(MAX_PIXELS * 8 + 1)
    assert check_one(path).reason == "too large: 1.0 GiB; make it smaller"


def test_programs_are_not_run_to_draw_a_image():
    assert "known kind" in str(check_one(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"))


def test_warnings_are_quiet_in_threads_and_come_back():
    before = list(warnings.filters)
    bomb = claimed_png(10_000, 10_000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: check_one(bomb), range(12)))
    assert all("cut off" in str(bad) for bad in found)
    assert list(warnings.filters) == before
    with quiet_pillow(), pytest.raises(UserWarning, match="mine"):
        warnings.warn("mine", UserWarning, stacklevel=1)
