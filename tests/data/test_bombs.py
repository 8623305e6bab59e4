"""Small files that would take gigabytes: each is decoded within bounds, or has a reason why not."""

import io
import struct
import zlib

import pytest
from PIL import Image

from promptboost.data.decode import MAX_DECODED, read_image
from tests.data.image_tools import check_one, encoded
from tests.memory import run_measured

READING = """
import sys
from pathlib import Path
from promptboost.data.decode import ImageError, read_image
from promptboost.data.dataset import LabeledImage
for path in sorted(Path(sys.argv[1]).iterdir()):
    bad = LabeledImage(path.name, "", path).check()
    try:
        image = read_image(path, at_least=1024)
        assert bad is None, (path, bad)
        print(path.name, image.size)
    except ImageError as error:
        print(path.name, error.bad.reason)
"""


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, depth, color, *more):
    """A PNG of zeros, made without holding it."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    row = bytes(1 + width * channels * depth // 8)
    packer = zlib.compressobj(1)
    packed = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    palette = [chunk(b"PLTE", bytes(768)), chunk(b"tRNS", bytes(256))] if color == 3 else []
    parts = [chunk(b"IHDR", header), *palette, *more, chunk(b"IDAT", packed), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def packed_zeros(megabytes):
    packer = zlib.compressobj(1)
    return b"".join([*(packer.compress(bytes(2**20)) for _ in range(megabytes)), packer.flush()])


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def moving(side, frames, kind):
    first, *rest = [Image.new("P", (side, side), i % 2) for i in range(frames)]
    return saved(first, kind, save_all=True, append_images=rest)


TOO_LARGE = {
    "sixteen-bit grey.png": lambda: png(11_500, 11_500, 16, 0),
    "rgb.png": lambda: png(9_000, 9_000, 8, 2),
    "sixteen-bit rgba.png": lambda: png(8_000, 8_000, 16, 6),
    "grey and alpha.png": lambda: png(8_000, 8_000, 8, 4),
    "in passes.jpg": lambda: saved(Image.new("CMYK", (5_000, 5_000)), "JPEG", progressive=True),
    "one strip.tif": lambda: saved(
        Image.new("RGB", (6_000, 6_000)), "TIFF", compression="tiff_deflate", tiffinfo={278: 6_000}
    ),
    "still.webp": lambda: saved(Image.new("RGB", (4_000, 4_000)), "WEBP"),
    "waves.jp2": lambda: saved(Image.new("RGB", (3_000, 3_000)), "JPEG2000"),
}
DECODED = {
    "palette.png": lambda: png(10_000, 10_000, 8, 3),
    "sixteen-bit.png": lambda: png(8_000, 8_000, 16, 0),
    "transparent.png": lambda: png(5_000, 5_000, 8, 6),
    "cmyk.jpg": lambda: saved(Image.new("CMYK", (6_000, 6_000)), "JPEG"),
    "phone.jpg": lambda: saved(Image.new("RGB", (10_000, 8_000)), "JPEG"),
    "frames.gif": lambda: moving(500, 400, "GIF"),
    "frames.webp": lambda: moving(300, 100, "WEBP"),
    "pages.tif": lambda: moving(90, 300, "TIFF"),
}
NOTES = {
    "profile.png": lambda: png(9, 9, 8, 2, chunk(b"iCCP", b"x\0\0" + packed_zeros(300))),
    "text.png": lambda: png(9, 9, 8, 2, *[chunk(b"zTXt", b"x\0\0" + packed_zeros(100))] * 5),
    "notes.png": lambda: png(9, 9, 8, 2, *[chunk(b"tEXt", b"x\0" + bytes(900_000))] * 80),
}


def test_bombs_take_less_than_300_megabytes(tmp_path):
    for name, make in {**TOO_LARGE, **DECODED, **NOTES}.items():
        content = make()
        assert len(content) < 3 * 2**20 or name in NOTES, name
        (tmp_path / name).write_bytes(content)
    lines, megabytes = run_measured(READING, tmp_path)
    assert megabytes < 300
    outcome = dict(zip(sorted([*TOO_LARGE, *DECODED, *NOTES]), lines, strict=True))
    for name in TOO_LARGE:
        assert "too large: " in outcome[name], name
    for name in DECODED:
        assert outcome[name].endswith(")"), name


def test_the_reason_says_how_much_it_would_take():
    bad = check_one(png(9_000, 9_000, 16, 6), "big.png")
    assert str(bad).startswith("big.png: too large: 9000 × 9000 pixels (RGBA) take 309 MiB decoded")
    assert bad.reason.endswith("make it smaller")


def test_a_large_file_may_take_more_than_a_small_one():
    image = png(8_000, 8_000, 8, 2)
    assert check_one(image) is not None
    assert check_one(image + bytes(MAX_DECODED // 40)) is None


def test_an_image_in_memory_is_there_already():
    image = Image.new("RGB", (8_000, 7_000))
    assert read_image(image, at_least=1024).size == (1_334, 1_167)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_large_images_in_threads_wait_for_each_other(kind):
    from concurrent.futures import ThreadPoolExecutor

    data = encoded(Image.new("RGB", (3_200, 3_100)), kind)
    with ThreadPoolExecutor(4) as threads:
        sizes = set(threads.map(lambda _: read_image(data, at_least=1024).size, range(4)))
    assert len(sizes) == 1
    assert min(*sizes.pop()) >= 1024
