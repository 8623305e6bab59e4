"""The image half of a ConSE encoder: an ImageNet classifier that gives class probabilities."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import batches
from promptboost.encoders.runtime import onnx_session, several_at_once

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

    def __init__(self, model: bytes, size: int) -> None:
        self.size = size
        # One thread for a batch and several batches at a time: threads of one batch wait for each
        # other at every layer.
        self._session = onnx_session(model, threads=1)

    def logits(self, images: Iterable["Image"]) -> NDArray[np.float32]:
        """Classify images: one row of 1000 logits each."""
        none = np.zeros((0, 1000), dtype=np.float32)
        return np.concatenate([none, *several_at_once(self._classify, batches(images, BATCH))])

    def _classify(self, images: list["Image"]) -> NDArray[np.float32]:
        pixels = np.stack([square_pixels(image, self.size) for image in images])
        (logits,) = self._session.run(None, {"pixels": pixels})
        return np.asarray(logits)
