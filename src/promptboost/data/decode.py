"""One image, whatever state its file is in: its bytes, an RGB image, or the reason why not."""

import errno
import io
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import DataError
from promptboost.io import NotAFileError, Stamp, open_regular, stamp_of
from promptboost.progress import Progress, no_progress, stage
from promptboost.threads import thread_count

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "Path | bytes | Image"

#: The largest image that is decoded, in pixels: above the 108 megapixels of large phone cameras. A
#: small file can claim any size, so this is checked on its header.
MAX_PIXELS = 128 * 2**20

#: The most memory that decoding one image may take, worked out from its header: so many bytes, or so
#: many times its file where that is more. What is far larger than its file was made to be.
MAX_DECODED, MAX_GROWTH = 192 * 2**20, 64

# As large as an image of that size can be: 16 bits in each of four channels, not compressed.
_MAX_BYTES = MAX_PIXELS * 8

# Bytes a pixel takes once decoded, and while it is, where the format's decoder takes more (measured).
_MODE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_FORMAT_BYTES = {
    "WEBP": 17,
    "JPEG2000": 26,
    "AVIF": 12,
    "GIF": 8,
    "ICO": 8,
    "ICNS": 8,
    "DDS": 8,
    "SGI": 8,
    "QOI": 8,
    "PSD": 8,
}
_PROGRESSIVE = 2  # bytes of each sample of a JPEG that comes in passes, all of which are kept
_DEFLATE = 1032  # times: no PNG is larger than so much its file
_LARGE = 32 * 2**20  # bytes; those that take more are decoded one after the other
_STRIP = 2**20  # about so many pixels are made RGB at a time
_NESTED = rb"\x89PNG\r\n\x1a\n|\x00\x00\x00\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"
_MOST_NESTED = 64
_ICONS = (b"\0\0\1\0", b"icns")

# Formats that are plainly images. Left out on purpose are those that run another program to be
# drawn (EPS) and the scientific containers, which hold anything.
_FORMATS = (
    *("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000"),
    *("ICO", "ICNS", "TGA", "PCX", "PSD", "QOI", "SGI", "DDS"),
)

# How files of a format begin and end.
_ENDS = (
    (b"\xff\xd8\xff", b"\xff\xd9"),  # JPEG
    (b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"),
)
# Enough to know an image again by: see promptboost.run.overlap.
THUMBNAIL_SIDE = 12
_DRAFT_SIDE = 32

_AT_ONCE = 256  # one task a file would cost more than the look at it

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
        """Whether a smaller copy of it could be used."""
        return self.reason.startswith("too large")


class ImageError(DataError):
    """One image cannot be opened; ``bad`` says which and why."""

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
    """Open an image as RGB, the right way up, on white, first frame only; or raise ImageError.

    `source` is a file, the bytes of one, or an image in memory, and `name` what errors call it. With
    `at_least`, a large image may be read smaller by a whole factor, as long as its shorter side keeps
    so many pixels: a JPEG is then decoded several times faster. `most` is how many bytes of memory
    decoding may take, however large the file is.

    Examples
    --------
    >>> from PIL import Image
    >>> half_red = Image.new("RGBA", (2, 2), (255, 0, 0, 128))
    >>> read_image(half_red).getpixel((0, 0))
    (255, 127, 127)
    """
    # Pillow's plugins raise nearly any type of exception on damaged bytes, so all are caught.
    try:
        with quiet_pillow():
            image = _opened(source, most)
            _check_size(image)
            full_size = image.size
            if at_least is not None:
                factor = max(1, min(image.size) // at_least)
                image.draft(None, (image.width // factor, image.height // factor))
            factor = 1 if at_least is None else max(1, min(image.size) // at_least)
            with _decoded(image, source, full_size, factor, most):
                return _as_rgb(_upright(image), factor)
    except Exception as error:
        raise ImageError(BadImage(name, reason_for(error, source, name))) from error


def check_one(source: ImageSource, name: str = "image") -> BadImage | None:
    """Return what is wrong with an image, or None; quicker than opening it in full."""
    try:
        read_thumbnail(source, name)
    except ImageError as error:
        return error.bad
    return None


def read_thumbnail(source: ImageSource, name: str = "image") -> bytes | None:
    """Read an image as 12 × 12 RGB pixels, quicker than opening it in full; or raise ImageError.

    None if it can be decoded and yet not be made small, which says nothing about the file.

    Examples
    --------
    >>> from PIL import Image
    >>> len(read_thumbnail(Image.new("RGB", (64, 48), "red")))
    432
    """
    try:
        with quiet_pillow():
            image = _opened(source)
            _check_size(image)
            # A JPEG at an eighth of its size still has every coded byte read, so it is found out
            # if it is cut off, without the cost of its pixels. Other formats ignore this.
            whole = image.size
            image.draft(None, (_DRAFT_SIDE, _DRAFT_SIDE))
            factor = max(1, round(whole[0] / image.width))
            with _decoded(image, source, whole):
                try:
                    return _small(image, whole[0] / factor, whole[1] / factor).tobytes()
                except Exception:
                    return None
    except Exception as error:
        raise ImageError(BadImage(name, reason_for(error, source, name))) from error


def _small(image: "Image", width: float, height: float) -> "Image":
    """Make a thumbnail of the first pixels; a draft may have part of a pixel more than the image."""
    from PIL import Image

    side = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    box = (0.0, 0.0, min(width, image.width), min(height, image.height))
    # Made small before it is converted: a large PNG would take longer for that than to decode. The
    # filter is smooth, as a copy of another size has its pixels elsewhere.
    if image.mode in ("L", "LA", "RGB", "RGBA", "CMYK"):
        small = image.resize(side, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        return _as_rgb(small, 1)
    factor = max(1, min(image.size) // (8 * THUMBNAIL_SIDE))
    return _as_rgb(image, factor).resize(side, Image.Resampling.BILINEAR)


def cut_off(
    files: Sequence[Path], *, workers: int | None = None, progress: Progress = no_progress
) -> list[BadImage]:
    """List the images that are cut off or are none, in order, by a look at both ends of each file.

    A file that begins and ends as its format says was written to its end; only the others are decoded,
    as some good ones have more after their end. For a benchmark, of which a few of a million are used.
    """
    parts = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
    bad: list[BadImage] = []
    with (
        ThreadPoolExecutor(workers or thread_count()) as threads,
        stage(progress, "checking images", len(files)) as advance,
    ):
        for part, problems in zip(parts, threads.map(_bad_ones, parts), strict=True):
            bad += problems
            advance(len(part))
    return bad


def _bad_ones(files: Sequence[Path]) -> list[BadImage]:
    checked = (check_one(file, str(file)) for file in files if not _has_both_ends(file))
    return [bad for bad in checked if bad is not None]


def _has_both_ends(file: Path) -> bool:
    longest = max(len(end) for ends in _ENDS for end in ends)
    try:
        with open_regular(file) as stream:
            first = stream.read(longest)
            stream.seek(-min(longest, len(first)), os.SEEK_END)
            last = stream.read(longest)
    except OSError:
        return False
    return any(first.startswith(begin) and last.endswith(end) for begin, end in _ENDS)


def _opened(source: ImageSource, most: int | None = None) -> "Image":
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    data = source if isinstance(source, bytes) else _read(source)[0]
    if not data:
        raise _UnusableError("the file is empty")
    if data.startswith(_ICONS):
        _check_icon(data, most)
    return Image.open(io.BytesIO(data), formats=_known_formats())


def read_file(path: Path, name: str) -> tuple[bytes, Stamp]:
    """Read an image's file whole, with the stamp it had; raise ImageError if that fails."""
    try:
        return _read(path)
    except (OSError, _UnusableError) as error:
        raise ImageError(BadImage(name, reason_for(error, path))) from error


def file_bytes(path: Path, name: str) -> bytes:
    """Read an image's file whole; raise ImageError, with the name and the reason, if that fails."""
    return read_file(path, name)[0]


def _read(path: Path) -> tuple[bytes, Stamp]:
    try:
        file = open_regular(path)
    except IsADirectoryError:
        raise _UnusableError("a folder, not an image") from None
    except NotAFileError:
        raise _UnusableError("not a file") from None
    with file:
        status = os.fstat(file.fileno())
        if status.st_size > _MAX_BYTES:
            raise _UnusableError(f"too large: {status.st_size / 2**30:.1f} GiB; make it smaller")
        # The stamp from before the read: a change during it makes another one.
        return file.read(), stamp_of(status)


@cache
def _known_formats() -> tuple[str, ...]:
    from PIL import Image

    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _check_size(image: "Image") -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        size = f"{width} × {height} pixels, more than {MAX_PIXELS // 10**6} million"
        raise _UnusableError(f"too large: {size}; make it smaller")
    if width * height == 0:
        raise _UnusableError("it has no pixels")


@contextmanager
def _decoded(
    image: "Image",
    source: ImageSource,
    full_size: tuple[int, int],
    factor: int | None = None,
    most: int | None = None,
) -> Iterator[None]:
    """Decode an image if it may take the memory; large ones one after the other.

    `factor` is by how much what is made of it will be smaller; None if nothing is. `most` is how many
    bytes it may take, whatever the size of its file.
    """
    stream = getattr(image, "fp", None)  # None once it is decoded, or if it never was in a file
    needed = 0
    if stream is not None:
        needed = _memory(image, full_size)
        needed += 0 if factor is None else 4 * image.width * image.height // factor**2
        _check_memory(image, full_size, needed, _size_of(stream), most)
    with _large_images if needed > _LARGE else nullcontext():
        if image.tell() != 0:
            image.seek(0)
        image.load()
        yield


def _size_of(stream: Any) -> int:
    position = stream.tell()
    size = int(stream.seek(0, os.SEEK_END))
    stream.seek(position)
    return size


def _check_memory(
    image: "Image",
    full_size: tuple[int, int],
    needed: int,
    file_size: int,
    most: int | None = None,
) -> None:
    """Raise if decoding takes far more memory than the file is worth."""
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
    """Return about how many bytes decoding takes at its peak, by size, mode and format."""
    pixels = image.width * image.height
    needed = pixels * _FORMAT_BYTES.get(image.format or "", _MODE_BYTES.get(image.mode, 4))
    if image.format == "TIFF":
        tags: Any = getattr(image, "tag_v2", {})
        width = max(image.width, tags.get(322, 0))
        rows = tags.get(323) or min(image.height, tags.get(278, image.height))
        needed += width * rows * max(4, tags.get(277, 1) * max(tags.get(258, (8,))) // 8)
    elif image.format in ("JPEG", "MPO") and "progressive" in image.info:
        # At its full size, whatever it is drawn at.
        needed += full_size[0] * full_size[1] * _PROGRESSIVE * len(image.getbands())
    return needed


def _check_icon(data: bytes, most: int | None) -> None:
    """Raise if an icon holds an image that is too large: Pillow decodes it when it opens the icon."""
    from PIL import Image

    starts = [match.start() for match in re.finditer(_NESTED, data)]
    if len(starts) > _MOST_NESTED:
        raise _UnusableError(f"an icon of more than {_MOST_NESTED} images")
    for start in starts:
        with suppress(OSError):
            image = Image.open(io.BytesIO(data[start:]), formats=("PNG", "JPEG2000"))
            # It is decoded, made RGBA, and perhaps made to fit.
            needed = _memory(image, image.size) + 8 * image.width * image.height
            _check_memory(image, image.size, needed, len(data), most)


def _as_rgb(image: "Image", factor: int) -> "Image":
    """Make a decoded image RGB on white, smaller by a factor, a strip at a time: pixels are many."""
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
    # Only the pixels are kept: the rest (EXIF, profiles) has been applied or does not matter.
    rgb.info = {}
    return rgb


def _strip_as_rgb(strip: "Image", white: float) -> "Image":
    from PIL import Image

    if _is_deep(strip):
        strip = _to_eight_bits(strip, white)
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
        # Damaged EXIF says nothing about the pixels, which have just been decoded: keep them.
        return image


def reason_for(error: Exception, source: ImageSource, name: str = "") -> str:
    """Return in plain words why an image could not be opened."""
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
    """Ignore what Pillow warns about; whatever matters is an error with the file's name instead.

    Python's warning filters belong to the process: threads that each set and restore them would
    restore each other's. So the first to enter sets the filter and the last to leave removes it.
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
    """Return the value that is white in a grey image of 16 or 32 bits, or of floats.

    16-bit images keep their full range. Wider ones do not say where white is: it is taken to be the
    next of 1 (floats only), 255 and 65535 that holds all their values, else their largest.
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


def _to_eight_bits(image: "Image", white: float) -> "Image":
    """Scale a grey image to eight bits; Pillow's own way makes all above 255 white."""
    from PIL import Image

    scaled = np.clip(np.rint(_finite(image) * (255.0 / white)), 0, 255).astype(np.uint8)
    return Image.fromarray(scaled)


def _finite(image: "Image") -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
