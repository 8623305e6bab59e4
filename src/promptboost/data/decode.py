"""Decoding of images: RGB pixels of a file, or the reason why it cannot be used."""

import errno
import io
import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import DataError
from promptboost.io import NotAFileError, Stamp, open_regular, stamp_of

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "Path | bytes | Image"

#: Most pixels of an image: above the 108 megapixels of phone cameras. Checked on the header.
MAX_PIXELS = 128 * 2**20

#: Most memory for decoding an image, estimated from its header: bytes, or a multiple of the file's size if
#: that is more. Images far larger than their files are decompression bombs.
MAX_DECODED, MAX_GROWTH = 192 * 2**20, 64

# As large as an image of that size can be: 16 bits in each of four channels, not compressed.
MAX_BYTES = MAX_PIXELS * 8

# Bytes per pixel once decoded, and during decoding for formats that need more (measured).
_MODE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_FORMAT_BYTES = {"WEBP": 17, "JPEG2000": 26, "AVIF": 12, "GIF": 8}
_PROGRESSIVE = 2  # bytes per sample of a progressive JPEG, all passes of which are in memory
_DEFLATE = 1032  # highest compression factor of a PNG
_LARGE = 32 * 2**20  # bytes; images that need more are decoded one after the other
_STRIP = 2**20  # pixels converted to RGB at a time

# Not EPS, which runs another program, nor formats that Pillow decodes in Python only.
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000")

# Limits on decoding time, which the number of pixels does not bound. At most some seconds (measured) for:
# scans of a JPEG, and scans times pixels; pixels of variants that Pillow decodes in Python; bytes of slow
# formats; reads from the file, one per chunk or block, besides one per so many bytes; values of a TIFF tag.
_MAX_SCANS, _MAX_SCANNED = 100, 2**31
_MAX_SLOW_PIXELS = 2**20
_MAX_SLOW_BYTES = {"JPEG2000": 8 * 2**20, "AVIF": 16 * 2**20}
_MAX_READS, _BYTES_PER_READ = 2**17, 256
_MAX_VALUES = 2**17
# A marker of a JPEG: neither a stuffed byte, nor a restart, nor a filler.
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
_SCAN, _END, _MAX_MARKERS = 0xDA, 0xD9, 10_000
_BYTE_KINDS = (1, 2, 6, 7)  # types of TIFF tags

# Enough to recognize copies: see promptboost.run.overlap.
THUMBNAIL_SIDE = 12
_DRAFT_SIDE = 32

_ORIENTATION = 0x0112  # the tag of EXIF
_HEIC = (".heic", ".heif")
_OS_REASONS = {
    errno.ENOENT: "no such file",
    errno.EACCES: "no permission to read it",
    errno.EPERM: "no permission to read it",
    errno.ELOOP: "a symbolic link that leads back to itself",
    errno.ENAMETOOLONG: "the name is too long",
}


@dataclass(frozen=True, slots=True)
class BadImage:
    """A file that cannot be used, and why.

    Examples
    --------
    >>> str(BadImage("cat/7.jpg", "the file is empty"))
    'cat/7.jpg: the file is empty'
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    @property
    def too_large(self) -> bool:
        """Whether a smaller copy could be used."""
        return self.reason.startswith("too large")


class ImageError(DataError):
    """An image cannot be opened; ``bad`` is its name and the reason."""

    def __init__(self, bad: BadImage) -> None:
        super().__init__(str(bad))
        self.bad = bad


class _UnusableError(Exception):
    """A reason found here rather than by Pillow."""


def read_image(
    source: ImageSource,
    name: str = "image",
    *,
    at_least: int | None = None,
    most: int | None = None,
) -> "Image":
    """Open the first frame of an image as RGB, upright and on white; or raise ImageError.

    With `at_least`, a large image is reduced by a whole factor, to no fewer pixels on its shorter side: a
    JPEG is then decoded several times faster. `most` is a limit of the memory for decoding, in bytes.
    """
    with _opening(source, name) as image:
        full_size = image.size
        if at_least is not None:
            factor = max(1, min(image.size) // at_least)
            image.draft(None, (image.width // factor, image.height // factor))
        factor = 1 if at_least is None else max(1, min(image.size) // at_least)
        with _decoded(image, full_size, factor, most):
            return _as_rgb(_upright(image), factor)


def read_thumbnail(source: ImageSource, name: str = "image") -> bytes | None:
    """Read an image as 12 × 12 RGB pixels, faster than in full; or raise ImageError.

    Returns None if the image can be decoded but not reduced.

    Examples
    --------
    >>> from PIL import Image
    >>> len(read_thumbnail(Image.new("RGB", (64, 48), "red")))
    432
    """
    with _opening(source, name) as image:
        # Decoding a JPEG at an eighth of its size still reads the whole file, so that one which is
        # cut off fails. Other formats ignore this.
        whole = image.size
        image.draft(None, (_DRAFT_SIDE, _DRAFT_SIDE))
        factor = max(1, round(whole[0] / image.width))
        with _decoded(image, whole):
            try:
                return _small(image, whole[0] / factor, whole[1] / factor).tobytes()
            except Exception:
                return None


@contextmanager
def _opening(source: ImageSource, name: str) -> "Iterator[Image]":
    """Open an image without warnings; raise ImageError for any error with it."""
    # Pillow's plugins raise nearly any type of exception on damaged bytes.
    try:
        with quiet_pillow():
            image = _opened(source)
            width, height = image.size
            if width * height > MAX_PIXELS:
                size = f"{width} × {height} pixels, more than {MAX_PIXELS // 10**6} million"
                raise _UnusableError(f"too large: {size}; make it smaller")
            if width * height == 0:
                raise _UnusableError("it has no pixels")
            yield image
    except Exception as error:
        raise ImageError(BadImage(name, reason_for(error, source, name))) from error


def _small(image: "Image", width: float, height: float) -> "Image":
    """Return a thumbnail; a draft may be a fraction of a pixel larger than the image."""
    from PIL import Image

    side = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    box = (0.0, 0.0, min(width, image.width), min(height, image.height))
    # Reduced before it is converted, which for a large PNG would take longer than decoding. With a smooth
    # filter copies of other sizes have nearly the same thumbnail.
    if image.mode in ("L", "LA", "RGB", "RGBA", "CMYK"):
        small = image.resize(side, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        return _as_rgb(small, 1)
    factor = max(1, min(image.size) // (8 * THUMBNAIL_SIDE))
    return _as_rgb(image, factor).resize(side, Image.Resampling.BILINEAR)


def _opened(source: ImageSource) -> "Image":
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    data = source if isinstance(source, bytes) else _read(source)[0]
    if not data:
        raise _UnusableError("the file is empty")
    if data.startswith((b"II", b"MM")):
        _check_tags(data)
    image = Image.open(_CountedReads(data), formats=_known_formats())
    _check_time(image, data)
    return image


class _CountedReads(io.BytesIO):
    """The bytes of a file; raises once a parser has read too many small pieces."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._left = _MAX_READS + len(data) // _BYTES_PER_READ

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _UnusableError("made of too many pieces; save it again")
        return super().read(size)


def _check_tags(data: bytes) -> None:
    """Raise if a tag of a TIFF has too many values, such as millions of strips."""
    order = "<" if data.startswith(b"II") else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    start, head, entry = (8, "Q", "HHQQ") if big else (4, "H", "HHII")
    with suppress(struct.error):
        (position,) = struct.unpack_from(order + ("Q" if big else "I"), data, start)
        (entries,) = struct.unpack_from(order + head, data, position)
        position += struct.calcsize(order + head)
        size = struct.calcsize(order + entry)
        for number in range(entries):
            _, kind, values, _ = struct.unpack_from(order + entry, data, position + number * size)
            if values > _MAX_VALUES and kind not in _BYTE_KINDS:
                raise _UnusableError(f"a tag with {values:,} values; save it again")


def _check_time(image: "Image", data: bytes) -> None:
    """Raise if decoding would take more than some seconds."""
    from PIL import Image

    pixels = image.width * image.height
    scans = _count_scans(data) if image.format in ("JPEG", "MPO") else 1
    if scans > max(1, min(_MAX_SCANS, _MAX_SCANNED // max(pixels, 1))):
        raise _UnusableError("too many scans for its size; save it again")
    if pixels > _MAX_SLOW_PIXELS and any(
        tile[0] in Image.DECODERS for tile in getattr(image, "tile", ())[:1]
    ):
        raise _UnusableError(
            f"too large: {pixels / 1e6:.1f} million pixels in a slow variant of {image.format}; save it "
            "as PNG"
        )
    most = _MAX_SLOW_BYTES.get(image.format or "", len(data))
    if len(data) > most:
        raise _UnusableError(
            f"too large: more than {most // 2**20} MiB of {image.format}; save it as JPEG or PNG"
        )


def _count_scans(data: bytes) -> int:
    """Count the scans of a JPEG, up to one more than allowed; libjpeg visits all pixels in each."""
    position, scans = 2, 0
    for _ in range(_MAX_MARKERS):
        match = _MARKER.search(data, position)
        if match is None or match[1][0] == _END or scans > _MAX_SCANS:
            return scans
        scans += match[1][0] == _SCAN
        position = match.end() + int.from_bytes(data[match.end() : match.end() + 2], "big")
    return _MAX_SCANS + 1


def read_file(path: Path, name: str) -> tuple[bytes, Stamp]:
    """Read an image file, and its stamp; raise ImageError if that fails."""
    try:
        return _read(path)
    except (OSError, _UnusableError) as error:
        raise ImageError(BadImage(name, reason_for(error, path))) from error


def _read(path: Path) -> tuple[bytes, Stamp]:
    try:
        file = open_regular(path)
    except IsADirectoryError:
        raise _UnusableError("a folder, not an image") from None
    except NotAFileError:
        raise _UnusableError("not a file") from None
    with file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_BYTES:
            raise _UnusableError(f"too large: {status.st_size / 2**30:.1f} GiB; make it smaller")
        # The stamp before reading: a change meanwhile changes it.
        return file.read(), stamp_of(status)


@cache
def _known_formats() -> tuple[str, ...]:
    from PIL import Image

    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


@contextmanager
def _decoded(
    image: "Image", full_size: tuple[int, int], factor: int | None = None, most: int | None = None
) -> Iterator[None]:
    """Decode an image within the memory limits; large ones one after the other.

    `factor` is that of the RGB copy to be made, None if there is none; `most` as for :func:`read_image`.
    """
    stream = getattr(image, "fp", None)  # None if it is decoded already
    needed = 0
    if stream is not None:
        needed = _memory(image, full_size)
        needed += 0 if factor is None else 4 * image.width * image.height // factor**2
        position = stream.tell()
        _check_memory(image, full_size, needed, int(stream.seek(0, os.SEEK_END)), most)
        stream.seek(position)
    with _large_images if needed > _LARGE else nullcontext():
        if image.tell() != 0:
            image.seek(0)
        image.load()
        yield


def _check_memory(
    image: "Image", full_size: tuple[int, int], needed: int, file_size: int, most: int | None
) -> None:
    """Raise if decoding needs too much memory for the size of the file."""
    width, height = full_size
    if image.format == "PNG" and file_size * _DEFLATE < width * height // 8:
        raise _UnusableError("cut off or damaged (it has fewer bytes than its size needs)")
    allowed = max(MAX_DECODED, MAX_GROWTH * file_size)
    if needed > (allowed if most is None else min(allowed, most)):
        raise _UnusableError(
            f"too large: {width} × {height} pixels ({image.mode}) take "
            f"{needed / 2**20:,.0f} MiB decoded, from a file of {file_size / 2**10:,.0f} KiB; "
            "make it smaller"
        )


def _memory(image: "Image", full_size: tuple[int, int]) -> int:
    """Estimate the peak memory of decoding in bytes, by size, mode and format."""
    pixels = image.width * image.height
    needed = pixels * _FORMAT_BYTES.get(image.format or "", _MODE_BYTES.get(image.mode, 4))
    if image.format == "TIFF":
        tags: Any = getattr(image, "tag_v2", {})
        width = max(image.width, tags.get(322, 0))
        rows = tags.get(323) or min(image.height, tags.get(278, image.height))
        needed += width * rows * max(4, tags.get(277, 1) * max(tags.get(258, (8,))) // 8)
    elif image.format in ("JPEG", "MPO") and "progressive" in image.info:
        # In full size, even for a draft.
        needed += full_size[0] * full_size[1] * _PROGRESSIVE * len(image.getbands())
    return needed


def _as_rgb(image: "Image", factor: int) -> "Image":
    """Convert a decoded image to RGB on white, reduced by a factor, in strips to save memory."""
    from PIL import Image

    if image.mode == "RGB" and not image.has_transparency_data:
        rgb = image.reduce(factor) if factor > 1 else image.convert("RGB")
    else:
        white = _white_level(image) if _is_deep(image) else 0.0
        size = (-(-image.width // factor), -(-image.height // factor))
        rgb = Image.new("RGB", size)
        rows = max(1, _STRIP // max(1, image.width * factor)) * factor
        for top in range(0, image.height, rows):
            strip = image.crop((0, top, image.width, min(image.height, top + rows)))
            strip = _strip_as_rgb(strip, white)
            rgb.paste(strip.reduce(factor) if factor > 1 else strip, (0, top // factor))
    # EXIF has been applied; color profiles are ignored.
    rgb.info = {}
    return rgb


def _strip_as_rgb(strip: "Image", white: float) -> "Image":
    from PIL import Image

    if _is_deep(strip):  # Pillow would clip at 255
        scaled = np.rint(_finite(strip) * (255.0 / white))
        strip = Image.fromarray(np.clip(scaled, 0, 255).astype(np.uint8))
    if strip.has_transparency_data:
        strip = strip.convert("RGBA")
        strip = Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip)
    return strip.convert("RGB")


def _upright(image: "Image") -> "Image":
    from PIL import ImageOps

    try:
        if image.getexif().get(_ORIENTATION, 1) == 1:
            return image
        return ImageOps.exif_transpose(image)
    except Exception:
        # Damaged EXIF, but the pixels are good.
        return image


def reason_for(error: Exception, source: ImageSource, name: str = "") -> str:
    """Return the reason why an image could not be opened."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, _UnusableError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        heic = Path(source if isinstance(source, Path) else name).suffix.lower() in _HEIC
        return "HEIC is not supported; save it as JPEG" if heic else "not an image of a known kind"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: more than {MAX_PIXELS // 10**6} million pixels; make it smaller"
    if isinstance(error, OSError) and error.errno is not None:
        return _OS_REASONS.get(error.errno, error.strerror or str(error))
    return f"cut off or damaged ({error or type(error).__name__})"


_large_images = threading.Lock()
_filter_lock = threading.Lock()
_depth = 0
_guard: "warnings.catch_warnings[None] | None" = None


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Ignore warnings of Pillow.

    Warning filters are global: the first thread to enter sets the filter, the last removes it.
    """
    global _depth, _guard
    with _filter_lock:
        if _depth == 0:
            _guard = warnings.catch_warnings()
            _guard.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _depth += 1
    try:
        yield
    finally:
        with _filter_lock:
            _depth -= 1
            if _depth == 0 and _guard is not None:
                _guard.__exit__(None, None, None)
                _guard = None


def _is_deep(image: "Image") -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def _white_level(image: "Image") -> float:
    """Return the value of white in a gray image of 16 or 32 bits, or of floats.

    16-bit images have their full range. In wider ones it is the least of 1 (floats only), 255 and 65535
    that is not exceeded, else the largest value.
    """
    if image.mode.startswith("I;16"):
        return 65535.0
    rows = max(1, _STRIP // max(1, image.width))
    strips = (
        image.crop((0, top, image.width, min(image.height, top + rows)))
        for top in range(0, image.height, rows)
    )
    top = max(float(_finite(strip).max(initial=0.0)) for strip in strips)
    steps = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
    return next((step for step in steps if top <= step), top)


def _finite(image: "Image") -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
