"""Random views of an image that are the same on every machine, in every order."""

import hashlib
import math
from typing import TYPE_CHECKING

from promptboost.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

#: Share of the image's area that a crop keeps. Half at least: boosting looks at few images and
#: takes each view for an example of its class, so a crop must still show the object. Training with
#: gradients goes down to 0.08, where many crops show background only.
DEFAULT_SCALE = (0.5, 1.0)

#: The name of view 0, the image itself.
ORIGINAL = "original"

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

    Examples
    --------
    >>> from PIL import Image
    >>> image = Image.new("RGB", (100, 80))
    >>> draw_view(image, 0, b"digest", 0) is image
    True
    >>> draw_view(image, 0, b"digest", 1).size
    (65, 71)
    """
    _check(number, scale)
    if number == 0:
        return image
    chances = _chances(seed, image_digest, number)
    box = _crop_box(image.size, scale, chances[:4])
    view = image.crop(box)
    if chances[4] < 0.5:
        from PIL import Image

        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return view


def view_name(seed: int, number: int, scale: tuple[float, float] = DEFAULT_SCALE) -> str:
    """Name a view, for the embedding store: equal names of one image are equal views.

    Examples
    --------
    >>> view_name(3, 0), view_name(3, 2)
    ('original', 'crop-1/0.5-1.0/seed-3/2')
    """
    _check(number, scale)
    if number == 0:
        return ORIGINAL
    # "crop-1" is the version of the recipe: it changes when the same chances cut another crop.
    return f"crop-1/{float(scale[0])}-{float(scale[1])}/seed-{seed}/{number}"


def _check(number: int, scale: tuple[float, float]) -> None:
    if number < 0:
        raise SettingError(f"view {number} does not exist: views are numbered 0, 1, 2, …")
    if not 0 < scale[0] <= scale[1] <= 1:
        raise SettingError(
            f"the scale of views is {scale}, but must be two shares with 0 < low <= high <= 1; "
            f"try {DEFAULT_SCALE}"
        )


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
