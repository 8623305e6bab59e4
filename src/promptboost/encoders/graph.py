"""ImageGraph: the image tower of an encoder as an ONNX graph, for programs without promptboost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageGraph:
    """An image tower as ONNX: pixels in, embeddings out.

    Attributes
    ----------
    model : bytes
        The content of an ONNX file with one input ``pixels``, uint8 of shape (n, size, size, 3), RGB, and
        one output ``embeddings``, float32 of shape (n, dim), rows of length one.
    preprocessing : mapping
        How an image becomes such pixels, as plain data.
    """

    model: bytes
    preprocessing: Mapping[str, Any]


@runtime_checkable
class GraphEncoder(Protocol):
    """An encoder whose image tower can be written as a graph."""

    def image_graph(self) -> ImageGraph:
        """Return the image tower."""

    def pixels(self, image: "Image") -> NDArray[np.uint8]:
        """Return what the graph takes for an image, (size, size, 3)."""


def graph_encoder(encoder: Encoder) -> GraphEncoder:
    """Return the encoder behind a store, if its image tower can be written as a graph."""
    inner: Any = encoder
    while hasattr(inner, "encoder"):  # a store is in front of it
        inner = inner.encoder
    if not isinstance(inner, GraphEncoder):
        raise EncoderError(
            f"the image tower of {encoder.id} cannot be written as ONNX: it has no method image_graph. "
            "ConSE and open_clip encoders have one"
        )
    return inner


def classifier_graph(
    graph: ImageGraph, matrix: ArrayLike, class_names: Sequence[str], facts: Mapping[str, str]
) -> bytes:
    """Return an image tower and a class matrix as one ONNX file.

    Parameters
    ----------
    graph : ImageGraph
        The tower.
    matrix : array of shape (K, D)
        Class rows: logits are the products of embeddings with them.
    class_names : sequence of str
        Their names, kept in the file as JSON under ``class_names``.
    facts : mapping of str to str
        What else the file says of itself.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_from_string(graph.model)
    columns = np.ascontiguousarray(np.asarray(matrix, dtype=np.float32).T)
    (embeddings,) = (output.name for output in model.graph.output)
    model.graph.initializer.append(numpy_helper.from_array(columns, "class_matrix"))
    model.graph.node.append(
        helper.make_node("MatMul", [embeddings, "class_matrix"], ["logits"], "classify")
    )
    model.graph.node.append(
        helper.make_node("Softmax", ["logits"], ["probabilities"], "probabilities", axis=-1)
    )
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
