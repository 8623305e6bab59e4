"""One image, whatever state its file is in: its bytes, an RGB image, or the reason why not."""

import errno
import io
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from promptboost.errors import DataError
from promptboost.files import NotAFileError, Stamp, open_regular, stamp_of

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "Path | bytes | Image"

#: The largest image that is decoded, in pixels: above the 108 megapixels of large phone cameras,
#: and 400 MB once decoded. A small file can claim any size, so this is checked on its header.
MAX_PIXELS = 128 * 2**20

# As large as an image of that size can be: 16 bits in each of four channels, not compressed.
_MAX_BYTES = MAX_PIXELS * 8

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
# Enough to know an image again by: see promptboost.data.copies.
THUMBNAIL_SIDE = 12
_DRAFT_SIDE = 32

_AT_ONCE = 256  # one task a file would cost more than the look at it

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


class ImageError(DataError):
    """One image cannot be opened; ``bad`` says which and why."""

    def __init__(self, bad: BadImage) -> None:
        super().__init__(str(bad))
        self.bad = bad


class _UnusableError(Exception):
    """A reason found here rather than by Pillow."""


def read_image(source: ImageSource, name: str = "image", *, at_least: int | None = None) -> "Image":
    """Open an image as RGB, the right way up, on white, first frame only; or raise ImageError.

    `source` is a file, the bytes of one, or an image in memory, and `name` what errors call it. With
    `at_least`, a large image may be read smaller by a whole factor, as long as its shorter side keeps
    so many pixels: a JPEG is then decoded several times faster.

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
            image = _opened(source)
            _check_size(image)
            if at_least is not None:
                factor = max(1, min(image.size) // at_least)
                image.draft(None, (image.width // factor, image.height // factor))
            rgb = _as_rgb(image)
            if at_least is not None and (factor := min(rgb.size) // at_least) > 1:
                rgb = rgb.reduce(factor)
            return rgb
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
            image.load()
    except Exception as error:
        raise ImageError(BadImage(name, reason_for(error, source, name))) from error
    try:
        with quiet_pillow():
            return _small(image, whole[0] / factor, whole[1] / factor).tobytes()
    except Exception:
        return None


def _small(image: "Image", width: float, height: float) -> "Image":
    """Make a thumbnail of the first pixels; a draft may have part of a pixel more than the image."""
    from PIL import Image

    side = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    box = (0.0, 0.0, min(width, image.width), min(height, image.height))
    # Made small before it is converted: a large PNG would take longer for that than to decode. The
    # filter is smooth, as a copy of another size has its pixels elsewhere.
    if image.mode in ("L", "LA", "RGB", "RGBA", "CMYK"):
        small = image.resize(side, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        return _as_rgb(small)
    return _as_rgb(image).resize(side, Image.Resampling.BILINEAR)


def cut_off(files: Sequence[Path], *, workers: int = 2, progress: bool = False) -> list[BadImage]:
    """List the images that are cut off or are none, in order, by a look at both ends of each file.

    A file that begins and ends as its format says was written to its end; only the others are decoded,
    as some good ones have more after their end. For a benchmark, of which a few of a million are used.
    """
    parts = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
    bad: list[BadImage] = []
    with ThreadPoolExecutor(workers) as threads, checking_bar(len(files), progress) as bar:
        for part, problems in zip(parts, threads.map(_bad_ones, parts), strict=True):
            bad += problems
            bar.update(len(part))
    return bad


def checking_bar(total: int, progress: bool) -> Any:
    """Return a progress bar, which is shown on a terminal only."""
    from tqdm import tqdm

    hidden = None if progress else True  # None: shown on a terminal only
    return tqdm(total=total, desc="checking images", unit=" images", disable=hidden, leave=False)


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


def _opened(source: ImageSource) -> "Image":
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    data = source if isinstance(source, bytes) else _read(source)[0]
    if not data:
        raise _UnusableError("the file is empty")
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


def _as_rgb(image: "Image") -> "Image":
    from PIL import Image

    if getattr(image, "n_frames", 1) > 1:
        image.seek(0)
    image = _upright(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_eight_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    rgb = image.convert("RGB")
    # Only the pixels are kept: the rest (EXIF, profiles) has been applied or does not matter.
    rgb.info = {}
    return rgb


def _upright(image: "Image") -> "Image":
    from PIL import ImageOps

    image.load()
    try:
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


def _to_eight_bits(image: "Image") -> "Image":
    """Scale a grey image of 16 or 32 bits, or of floats, to eight bits.

    Pillow's own conversion clips everything above 255 to white. Here 16-bit images keep their
    full range. Wider ones do not say where white is: it is taken to be the next of 1 (floats
    only), 255 and 65535 that holds all their values, else their largest.
    """
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    if image.mode.startswith("I;16"):
        white = 65535.0
    else:
        steps = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        top = float(values.max(initial=0.0))
        white = next((step for step in steps if top <= step), top)
    scaled = np.clip(np.rint(values * (255.0 / white)), 0, 255).astype(np.uint8)
    return Image.fromarray(scaled)
