"""Images of every good and bad kind, made on the spot."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from promptboost.data.dataset import LabeledImage


def check_one(source, name="image"):
    """Return the problem of an image, or None."""
    return LabeledImage(name, "", source).check()


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(color: str = "red", size: tuple[int, int] = (32, 24)) -> Image.Image:
    return Image.new("RGB", size, color)


def noisy(seed: int, size: tuple[int, int] = (32, 24)) -> Image.Image:
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def claimed_png(width: int, height: int) -> bytes:
    """A tiny PNG whose header claims any size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def write_classes(root: Path, counts: dict[str, int]) -> Path:
    for label, count in counts.items():
        (root / label).mkdir(parents=True)
        for number in range(count):
            seed = zlib.crc32(f"{label}/{number}".encode())
            noisy(seed).save(root / label / f"{number}.png")
    return root


def write_bad(folder: Path) -> dict[str, str]:
    """Write one file of each bad kind; gives each name and a part of the expected reason."""
    photo = encoded(noisy(0, (200, 200)), "JPEG")
    (folder / "cut.jpg").write_bytes(photo[: len(photo) // 2])
    png = encoded(noisy(0, (200, 200)))
    (folder / "cut.png").write_bytes(png[: len(png) // 2])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("this is not an image")
    (folder / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 40)
    (folder / "huge.png").write_bytes(claimed_png(12_000, 12_000))
    (folder / "bomb.png").write_bytes(claimed_png(60_000, 60_000))
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    (folder / "gone.jpg").symlink_to(folder / "nothing-here.jpg")
    (folder / "above").symlink_to(folder, target_is_directory=True)
    os.mkfifo(folder / "pipe.jpg")
    return {
        "cut.jpg": "cut off or damaged",
        "cut.png": "cut off or damaged",
        "empty.jpg": "the file is empty",
        "text.jpg": "not an image of a known kind",
        "phone.heic": "save it as JPEG",
        "huge.png": "too large: 12000 × 12000 pixels",
        "bomb.png": "too large",
        "loop.jpg": "leads back to itself",
        "gone.jpg": "no such file",
        "above": "a link back to a folder above it",
        "pipe.jpg": "not a file",
    }
