"""The files of an encoder as two ONNX towers, in the layout of Transformers.js."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from promptboost.encoders.base import Encoder
from promptboost.encoders.graph import traced_graph
from promptboost.encoders.runtime import first_line
from promptboost.errors import EncoderError
from promptboost.io import json_text

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TowerPair:
    """The towers of an encoder and the content of the files next to them."""

    vision: "Callable[..., torch.Tensor]"  # from pixels to embeddings
    text: "Callable[..., torch.Tensor]"  # from tokens, perhaps with a mask
    examples: "tuple[torch.Tensor, ...]"  # arguments of both, of two images and two texts
    configs: Mapping[str, Mapping[str, Any]]  # JSON files by name
    tokenizer: str  # tokenizer.json
    trims: bool = False  # whether the text tower takes shorter texts


def onnx_files(encoder: Encoder) -> dict[str, bytes]:
    """Return the files of an encoder by their names in the folder."""
    if not hasattr(encoder, "tower_pair"):
        raise EncoderError(
            f"{encoder.id} cannot be written as two ONNX towers: models of open_clip and hf: can"
        )
    pair: TowerPair = encoder.tower_pair()
    pixels, *tokens = pair.examples
    inputs = ("input_ids", "attention_mask")[: len(tokens)]
    axes = dict.fromkeys(inputs, {0: "n", 1: "length"} if pair.trims else {0: "n"})
    try:
        vision = traced_graph(pair.vision, (pixels,), {"pixel_values": {0: "n"}}, "image_embeds")
        text = traced_graph(pair.text, tuple(tokens), axes, "text_embeds")
    except Exception as error:  # whatever a model raises when it is traced
        raise EncoderError(
            f"{encoder.id} cannot be written as ONNX: {first_line(error)}"
        ) from error
    files = {"onnx/vision_model.onnx": vision, "onnx/text_model.onnx": text}
    files["tokenizer.json"] = pair.tokenizer.encode("utf-8")
    for name, content in pair.configs.items():
        files[f"{name}.json"] = json_text(content).encode("utf-8")
    return files
