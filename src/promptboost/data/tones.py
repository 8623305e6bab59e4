"""Pictures with more than eight bits a channel."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["to_eight_bits"]


def to_eight_bits(image: "Image") -> "Image":
    """Scale a grey picture of 16 or 32 bits, or of floats, to eight bits.

    Pillow's own conversion clips everything above 255 to white. Here 16-bit pictures keep their
    full range. Wider ones do not say where white is: it is taken to be the next of 1 (floats
    only), 255 and 65535 that holds all their values, else their largest.

    Examples
    --------
    >>> import numpy as np
    >>> from PIL import Image
    >>> deep = Image.fromarray(np.array([[0, 32896, 65535]], dtype=np.uint16))
    >>> np.asarray(to_eight_bits(deep)).tolist()
    [[0, 128, 255]]
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
