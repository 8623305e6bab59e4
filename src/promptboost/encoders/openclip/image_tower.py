"""The image tower of an open_clip model as an ONNX graph."""

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.graph import ImageGraph
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    from PIL.Image import Image

_OPSET = 18


def pixels_before_normalization(preprocess: Any, image: "Image") -> NDArray[np.uint8]:
    """Do what a model's preprocessing does, up to where pixels become numbers of another scale."""
    for step in preprocess.transforms:
        if type(step).__name__ in ("ToTensor", "MaybeToTensor", "Normalize"):
            break
        image = step(image)
    return np.asarray(image.convert("RGB"))


def exported_tower(model: Any, preprocess: Any) -> ImageGraph:
    """Write an image tower as ONNX, with the normalization of the pixels in front of it."""
    import torch

    facts = dict(getattr(model.visual, "preprocess_cfg", {}))
    normalize = next(
        (step for step in preprocess.transforms if type(step).__name__ == "Normalize"), None
    )
    size = model.visual.image_size
    height, width = size if isinstance(size, tuple | list) else (size, size)
    if normalize is None:
        raise EncoderError("the preprocessing of this model does not say how pixels are normalized")
    mean, std = tuple(map(float, normalize.mean)), tuple(map(float, normalize.std))

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.scale = torch.nn.Buffer(1 / (255 * torch.tensor(std)))
            self.shift = torch.nn.Buffer(torch.tensor(mean) / torch.tensor(std))

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            values = pixels.float() * self.scale - self.shift
            rows: torch.Tensor = self.model.encode_image(values.permute(0, 3, 1, 2), normalize=True)
            return rows

    tower = Tower().eval()
    example = torch.zeros((2, height, width, 3), dtype=torch.uint8)
    file: Any = io.BytesIO()  # which the exporter takes, though its types do not say so
    # The fused attention of torch has no counterpart in ONNX.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # on how it traces, which is not the user's
            torch.onnx.export(
                tower,
                (example,),
                file,
                input_names=["pixels"],
                output_names=["embeddings"],
                dynamic_axes={"pixels": {0: "n"}, "embeddings": {0: "n"}},
                opset_version=_OPSET,
                dynamo=False,
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    preprocessing = {
        "size": [height, width],
        "crop": str(facts.get("resize_mode", "shortest")),
        "interpolation": str(facts.get("interpolation", "bicubic")),
        "colors": "RGB",
        "values": "uint8, 0 to 255; normalized inside",
        "mean": list(mean),
        "std": list(std),
        "shape": ["n", height, width, 3],
    }
    return ImageGraph(file.getvalue(), preprocessing)
