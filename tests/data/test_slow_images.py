"""Images that would take a decoder minutes: each is refused, or read within seconds."""

import io
import struct
import time
import zlib

import pytest
from PIL import Image

from promptboost.data.dataset import LabeledImage
from promptboost.data.decode import ImageError, read_image


def saved(kind, size=(8, 8), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def scanned(side, more, **options):
    """A JPEG whose last scan is repeated."""
    data = saved("JPEG", (side, side), **{"progressive": True, **options})
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * more + b"\xff\xd9"


def with_comments(number):
    jpeg = saved("JPEG")
    return jpeg[:2] + b"\xff\xfe\0\2" * number + jpeg[2:]


def with_chunks(number):
    png, chunk = saved("PNG"), struct.pack(">I4sI", 0, b"abCd", zlib.crc32(b"abCd"))
    return png[:33] + chunk * number + png[33:]


def with_strips(number, order="<", big=False):
    """A TIFF with many offsets of strips, for a few rows."""
    mark = b"II" if order == "<" else b"MM"
    head, count, entry = ("HHHQ", "Q", "HHQQ") if big else ("HI", "H", "HHII")
    data = mark + struct.pack(order + head, *((43, 8, 0, 16) if big else (42, 8)))
    ends = len(data) + struct.calcsize(order + count) + 9 * struct.calcsize(order + entry) + 8
    tags = [(256, 3, 8), (257, 4, 60_000), (258, 3, 8), (259, 3, 1), (262, 3, 1)]
    entries = [(tag, kind, 1, value) for tag, kind, value in tags]
    entries += [(273, 4, number, ends), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, number, ends)]

    def packed(values):
        # A value of two bytes is at the start of its field.
        tag, kind, n, value = values
        shift = (48 if big else 16) if order == ">" and kind == 3 else 0
        return struct.pack(order + entry, tag, kind, n, value << shift)

    data += struct.pack(order + count, 9) + b"".join(map(packed, entries)) + bytes(8)
    return data + struct.pack(order + "I", 8) * number


SLOW = {
    "scans.jpg": (lambda: scanned(3_000, 1_500), "too many scans"),
    "scans of one pass.jpg": (lambda: scanned(500, 2_000, progressive=False), "too many scans"),
    "scans after comments.jpg": (
        lambda: scanned(500, 1_500).replace(b"\xff\xda", b"\xff\xfe\0\4\xff\xd9\xff\xff\xda"),
        "too many scans",
    ),
    "scans and pixels.jpg": (lambda: scanned(7_000, 40), "too many scans"),
    "comments.jpg": (lambda: with_comments(2_000_000), "too many pieces"),
    "chunks.png": (lambda: with_chunks(1_000_000), "too many pieces"),
    "strips.tif": (lambda: with_strips(1_000_000), "1,000,000 values"),
    "strips of the other order.tif": (lambda: with_strips(1_000_000, ">"), "1,000,000 values"),
    "strips of a big.tif": (lambda: with_strips(1_000_000, big=True), "1,000,000 values"),
    "comments.pgm": (lambda: b"P5 " + b"#a\n" * 2_000_000 + b"1 1 255 x", "too many pieces"),
    "other maximum.ppm": (lambda: b"P6 2000 2000 254 " + bytes(12_000_000), "slow variant"),
    "waves.jp2": (lambda: saved("JPEG2000") + bytes(9 * 2**20), "8 MiB of JPEG2000"),
    "unknown.qoi": (lambda: b"qoif" + bytes(100), "not an image of a known kind"),
}


@pytest.mark.parametrize("name", SLOW)
def test_no_image_occupies_a_decoder_for_long(name):
    make, reason = SLOW[name]
    data = make()
    start = time.process_time()
    with pytest.raises(ImageError, match=reason):
        read_image(data, name, at_least=448)
    assert time.process_time() - start < 3
    assert LabeledImage(name, "a", data).check() is not None


@pytest.mark.parametrize(
    "data",
    [
        scanned(300, 20),
        scanned(300, 0, progressive=False) + b"\xff\xda" * 1_000,  # a film after the image
        saved("JPEG", exif=b"Exif\0\0" + b"\xff\xda" * 1_000),
        saved("MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))] * 120),
        saved("PNG", (300, 300)),
        saved("TIFF", (10, 9_000), tiffinfo={278: 1}),
        saved("TIFF", (300, 300), big_tiff=True),
        b"P6 20 20 254 " + bytes(1200),
        saved("BMP", (300, 300)),
        saved("GIF", mode="P", comment=b"a" * 60_000),
    ],
)
def test_ordinary_images_are_read(data):
    assert read_image(data).mode == "RGB"
