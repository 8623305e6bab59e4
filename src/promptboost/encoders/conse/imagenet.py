"""The image half of a ConSE encoder: an ImageNet classifier that gives class probabilities."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.runtime import batches, onnx_session

if TYPE_CHECKING:
    from PIL.Image import Image

# The share of the shorter side that the network was evaluated on.
CENTRE = 0.875
# Four images keep the activations inside the cache of a core.
BATCH = 4


def square_pixels(image: "Image", size: int) -> NDArray[np.uint8]:
    """Scale the central square of an image to `size` × `size` pixels."""
    from PIL.Image import Resampling

    rgb = image if image.mode == "RGB" else image.convert("RGB")
    side = CENTRE * min(rgb.size)
    left, top = (rgb.width - side) / 2, (rgb.height - side) / 2
    box = (left, top, left + side, top + side)
    square = rgb.resize((size, size), Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return np.asarray(square)


class ImageNetClassifier:
    """EfficientNet-Lite as ONNX, which maps pixels of `size` × `size` to logits."""

    def __init__(self, model: bytes, size: int, threads: int | None = None) -> None:
        self.size = size
        self._session = onnx_session(model, threads)

    def logits(self, images: Iterable["Image"]) -> NDArray[np.float32]:
        """Classify images: one row of 1000 logits each."""
        blocks = [np.zeros((0, 1000), dtype=np.float32)]
        for batch in batches(images, BATCH):
            pixels = np.stack([square_pixels(image, self.size) for image in batch])
            blocks += self._session.run(None, {"pixels": pixels})
        return np.concatenate(blocks)
