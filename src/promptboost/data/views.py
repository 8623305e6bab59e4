"""Random views of an image that are the same on every machine, in every order."""

import hashlib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

#: Share of the image's area that a crop keeps. At least half: each view counts as an example of its
#: class, so a crop must show the object. Training with gradients goes down to 0.08, where many crops
#: show background only.
DEFAULT_SCALE = (0.5, 1.0)

_RATIO = (3 / 4, 4 / 3)


def draw_view(
    image: "Image",
    seed: int,
    image_digest: bytes,
    number: int,
    *,
    scale: tuple[float, float] = DEFAULT_SCALE,
) -> "Image":
    """Crop a random part of an image, perhaps mirrored; view 0 is the image itself.

    The view depends on the seed, the image's content and the number only: not on the order in
    which views are drawn, the number of workers, or the version of a random number generator.

    Crops are cut at the image's own resolution; `scale` is the smallest and largest share of the area
    that they keep.
    """
    if number == 0:
        return image
    chances = _chances(seed, image_digest, number)
    box = _crop_box(image.size, scale, chances[:4])
    view = image.crop(box)
    if chances[4] < 0.5:
        from PIL import Image

        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return view


def _chances(seed: int, image_digest: bytes, number: int) -> list[float]:
    """Eight numbers in [0, 1), each made of 53 bits of a hash."""
    words = hashlib.blake2b(b"%d/%d/" % (seed, number) + image_digest).digest()
    pieces = (words[start : start + 8] for start in range(0, len(words), 8))
    return [(int.from_bytes(piece, "little") >> 11) / 2**53 for piece in pieces]


def _crop_box(
    size: tuple[int, int], scale: tuple[float, float], chances: list[float]
) -> tuple[int, int, int, int]:
    width, height = size
    area = width * height * _between(*scale, chances[0])
    # Width² = area × ratio and height² = area / ratio must fit. For a long, narrow image no
    # ratio does all: then the crop keeps its area and takes the nearest ratio that fits.
    narrowest, widest = area / height**2, width**2 / area
    low, high = (min(max(ratio, narrowest), widest) for ratio in _RATIO)
    ratio = math.exp(_between(math.log(low), math.log(high), chances[1]))
    crop_width = min(width, max(1, round(math.sqrt(area * ratio))))
    crop_height = min(height, max(1, round(math.sqrt(area / ratio))))
    left = int(chances[2] * (width - crop_width + 1))
    top = int(chances[3] * (height - crop_height + 1))
    return left, top, left + crop_width, top + crop_height


def _between(low: float, high: float, chance: float) -> float:
    return low + (high - low) * chance
