"""Encoders as ONNX graphs, for programs without promptboost or torch."""

import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder, without_store
from promptboost.encoders.runtime import first_line
from promptboost.errors import EncoderError
from promptboost.io import json_text

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageGraph:
    """An image tower as the content of an ONNX file.

    The input ``pixels`` is uint8 of shape (n, size, size, 3), RGB; the output ``embeddings`` is float32 of
    shape (n, dim), with rows of length one. `preprocessing` describes how an image becomes such pixels.
    """

    model: bytes
    preprocessing: Mapping[str, Any]


@runtime_checkable
class GraphEncoder(Protocol):
    """An encoder whose image tower can be written as a graph."""

    def image_graph(self) -> ImageGraph:
        """Return the image tower."""

    def pixels(self, image: "Image") -> NDArray[np.uint8]:
        """Return the input of the graph for an image, (size, size, 3)."""


def graph_encoder(encoder: Encoder) -> GraphEncoder:
    """Return the encoder without its store; raise EncoderError if it cannot be exported."""
    inner = without_store(encoder)
    if not isinstance(inner, GraphEncoder):
        raise EncoderError(
            f"the image tower of {encoder.id} cannot be written as ONNX: it has no method image_graph. "
            "ConSE and open_clip encoders have one"
        )
    return inner


_OPSET = 18


def traced_graph(
    tower: "Callable[..., torch.Tensor]",
    examples: "tuple[torch.Tensor, ...]",
    axes: Mapping[str, Mapping[int, str]],
    output: str,
) -> bytes:
    """Return a function of torch, from tensors to rows, as the content of an ONNX file.

    `axes` has the names of the inputs, each with the names of its axes of any length.
    """
    import torch

    class Traced(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return tower(*inputs)

    file: Any = io.BytesIO()  # the types of the exporter do not allow it
    # The fused attention of torch has no counterpart in ONNX.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # on how it traces, which is not the user's
            torch.onnx.export(
                Traced().eval(),
                examples,
                file,
                input_names=list(axes),
                output_names=[output],
                dynamic_axes={**axes, output: {0: "n"}},
                opset_version=_OPSET,
                dynamo=False,
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    content: bytes = file.getvalue()
    return content


def classifier_graph(
    graph: ImageGraph, matrix: ArrayLike, class_names: Sequence[str], facts: Mapping[str, str]
) -> bytes:
    """Return an image tower and a class matrix, (K, D), as one ONNX file.

    Logits are the products of embeddings with the rows of `matrix`. `facts` are metadata of the file.
    """
    import onnx
    from onnx import helper, numpy_helper, parser

    model = onnx.load_from_string(graph.model)
    columns = np.ascontiguousarray(np.asarray(matrix, dtype=np.float32).T)
    model.graph.initializer.append(numpy_helper.from_array(columns, "class_matrix"))
    model.graph.node.append(parser.parse_node("logits = MatMul (embeddings, class_matrix)"))
    model.graph.node.append(parser.parse_node("probabilities = Softmax <axis = -1> (logits)"))
    shape = ["n", columns.shape[1]]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name in ("logits", "probabilities")
    )
    helper.set_model_props(
        model, {**facts, "class_names": json.dumps(list(class_names), ensure_ascii=False)}
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


@dataclass(frozen=True)
class TowerPair:
    """The two towers of an encoder, and the files next to them in the layout of Transformers.js."""

    vision: "Callable[..., torch.Tensor]"  # from pixels to embeddings
    text: "Callable[..., torch.Tensor]"  # from tokens, perhaps with a mask
    examples: "tuple[torch.Tensor, ...]"  # arguments of both, of two images and two texts
    configs: Mapping[str, Mapping[str, Any]]  # JSON files by name
    tokenizer: str  # tokenizer.json
    trims: bool = False  # whether the text tower takes shorter texts


def onnx_files(encoder: Encoder) -> dict[str, bytes]:
    """Return the files of an encoder as two towers, by their names in the folder."""
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
