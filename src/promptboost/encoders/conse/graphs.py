"""The networks of ConSE encoders as ONNX graphs, made of published weights without torch."""

import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from promptboost.errors import EncoderError

Weights = Mapping[str, NDArray[Any]]

#: Of the graphs made here. Kept graphs are made anew when it grows.
VERSION = 3
# Operators as of ONNX 1.15; files of this version are read by every later onnxruntime.
_OPERATORS = 'opset_import: ["": 20, "promptboost": 1]'
# The step of the first convolution of each of EfficientNet-Lite's seven stages. All else about the
# network can be read from the shapes of its weights.
_STEPS = (1, 2, 2, 2, 1, 2, 1)
_EPSILON = 1e-3


# From the logits to the mean of the class rows by the probabilities, scaled to length one.
_MEAN_OF_CLASSES = (
    "cooled = Div (imagenet_logits, temperature)",
    "chances = Softmax <axis = -1> (cooled)",
    "mixed = MatMul (chances, class_rows)",
    "length = ReduceL2 <keepdims = 1> (mixed, axes)",
    "embeddings = Div (mixed, length)",
)
# Those and the features, each with its share of the length.
_FEATURES_BESIDE = (
    "feature_length = ReduceL2 <keepdims = 1> (flat, axes)",
    "features = Div (flat, feature_length)",
    "names_share = Mul (names, share)",
    "features_share = Mul (features, weight)",
    "embeddings = Concat <axis = 1> (names_share, features_share)",
)


def efficientnet_graph(
    weights: Weights,
    size: int,
    *,
    class_rows: NDArray[np.floating] | None = None,
    temperature: float = 1.0,
    features: float = 0.0,
) -> bytes:
    """Make EfficientNet-Lite of its weights: pixels, uint8 of shape (n, size, size, 3), to logits.

    Normalization is folded into the convolutions, in float64. With the embeddings of the class names,
    `class_rows`, their mean by the probabilities is the output. With `features`, the pooled features are
    a second output, or appended to that mean with this length.
    """
    numbers = {"middle": 127, "scale": 1 / 128, "low": 0, "high": 6}
    constants: dict[str, Any] = {name: np.float32(value) for name, value in numbers.items()}
    nodes = [
        "values = Cast <to = 1> (pixels)",
        "centered = Sub (values, middle)",
        "scaled = Mul (centered, scale)",
        "states = Transpose <perm = [0, 3, 1, 2]> (scaled)",
    ]

    def layer(
        states: str, convolution: str, norm: str, step: int = 1, *, clamp: bool = True
    ) -> str:
        """Add a convolution with its normalization, and values kept within 0 and 6."""
        kernel = weights[f"{convolution}.weight"].astype(np.float64)
        mean, variance, scale, shift = (
            weights[f"{norm}.{tensor}"].astype(np.float64)
            for tensor in ("running_mean", "running_var", "weight", "bias")
        )
        factor = scale / np.sqrt(variance + _EPSILON)
        name = _identifier(convolution)
        constants[f"{name}_kernel"] = (kernel * factor[:, None, None, None]).astype(np.float32)
        constants[f"{name}_bias"] = (shift - mean * factor).astype(np.float32)
        # Each channel by itself if the kernel reads one; no other grouping occurs.
        group = len(kernel) if kernel.shape[1] == 1 else 1
        nodes.append(
            f'{name} = Conv <auto_pad = "SAME_UPPER", strides = [{step}, {step}], '
            f"kernel_shape = {list(kernel.shape[2:])}, group = {group}> "
            f"({states}, {name}_kernel, {name}_bias)"
        )
        if clamp:
            nodes.append(f"{name}_clamped = Clip ({name}, low, high)")
        return f"{name}_clamped" if clamp else name

    states = layer("states", "_conv_stem", "_bn0", step=2)
    stage, channels = -1, 0
    for number in range(_count(weights, "_blocks.")):
        block, inputs = f"_blocks.{number}", states
        outputs = len(weights[f"{block}._project_conv.weight"])
        is_first = outputs != channels
        stage, channels = stage + is_first, outputs
        if f"{block}._expand_conv.weight" in weights:
            states = layer(states, f"{block}._expand_conv", f"{block}._bn0")
        step = _STEPS[stage] if is_first else 1
        states = layer(states, f"{block}._depthwise_conv", f"{block}._bn1", step)
        states = layer(states, f"{block}._project_conv", f"{block}._bn2", clamp=False)
        if not is_first:
            nodes.append(f"{states}_added = Add ({states}, {inputs})")
            states += "_added"
    states = layer(states, "_conv_head", "_bn1")
    constants |= {"matrix": weights["_fc.weight"], "bias": weights["_fc.bias"]}
    nodes += [
        f"pooled = GlobalAveragePool ({states})",
        "flat = Flatten (pooled)",
        "imagenet_logits = Gemm <transB = 1> (flat, matrix, bias)",
    ]
    output, width = "imagenet_logits", len(constants["bias"])
    if class_rows is not None:
        constants |= {"temperature": np.float32(temperature), "axes": np.array([1])}
        constants["class_rows"] = class_rows.astype(np.float32)
        nodes += _MEAN_OF_CLASSES
        output, width = "embeddings", class_rows.shape[1]
    channels = constants["matrix"].shape[1]
    results = f"float[n, {width}] {output}"
    if features and class_rows is None:
        results += f", float[n, {channels}] flat"
    elif features:
        length = np.hypot(1.0, features)
        constants |= {"share": np.float32(1 / length), "weight": np.float32(features / length)}
        nodes[-1] = nodes[-1].replace("embeddings", "names")
        nodes += _FEATURES_BESIDE
        results = f"float[n, {width + channels}] {output}"
    signature = f"(uint8[n, {size}, {size}, 3] pixels) => ({results})"
    return _model(signature, nodes, constants)


# What a layer of BERT has a weight and a bias of, in the order of its inputs below.
_PARTS = (
    *("attention.self.query", "attention.self.key", "attention.self.value"),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
# The matrix of a linear layer is turned once, when the graph is made ready.
_BERT = """
<domain: "promptboost", opset_import: ["": 20]>
linear (states, matrix, bias) => (outputs) {{
    turned = Transpose <perm = [1, 0]> (matrix)
    product = MatMul (states, turned)
    outputs = Add (product, bias)
}}
<domain: "promptboost", opset_import: ["": 20, "promptboost": 1]>
layer (states, mask, q_w, q_b, k_w, k_b, v_w, v_b, mix_w, mix_b, norm1_w, norm1_b,
       wide_w, wide_b, narrow_w, narrow_b, norm2_w, norm2_b) => (outputs) {{
    apart = Constant <value_ints = [0, 0, {heads}, {width}]> ()
    together = Constant <value_ints = [0, 0, {dim}]> ()
    root = Constant <value_float = {root}> ()
    q_all = promptboost.linear (states, q_w, q_b)
    q_heads = Reshape (q_all, apart)
    k_all = promptboost.linear (states, k_w, k_b)
    k_heads = Reshape (k_all, apart)
    v_all = promptboost.linear (states, v_w, v_b)
    v_heads = Reshape (v_all, apart)
    queries = Transpose <perm = [0, 2, 1, 3]> (q_heads)
    keys = Transpose <perm = [0, 2, 3, 1]> (k_heads)
    values = Transpose <perm = [0, 2, 1, 3]> (v_heads)
    products = MatMul (queries, keys)
    divided = Div (products, root)
    scores = Add (divided, mask)
    attention = Softmax <axis = -1> (scores)
    context_heads = MatMul (attention, values)
    context_turned = Transpose <perm = [0, 2, 1, 3]> (context_heads)
    context = Reshape (context_turned, together)
    mixed = promptboost.linear (context, mix_w, mix_b)
    mixed_sum = Add (mixed, states)
    attended = LayerNormalization <epsilon = 1e-12> (mixed_sum, norm1_w, norm1_b)
    wide = promptboost.linear (attended, wide_w, wide_b)
    bent = Gelu (wide)
    narrow = promptboost.linear (bent, narrow_w, narrow_b)
    narrow_sum = Add (narrow, attended)
    outputs = LayerNormalization <epsilon = 1e-12> (narrow_sum, norm2_w, norm2_b)
}}
"""


def bert_graph(weights: Weights, heads: int) -> bytes:
    """Make BERT of its weights: tokens and their mask, int64 of shape (n, length), to token states.

    The graph has the names of the weights, see :func:`given_weights`, and not their values.
    """
    dim = weights["embeddings.word_embeddings.weight"].shape[1]
    constants: dict[str, Any] = {
        "zero": np.array([0]),
        "one": np.float32(1),
        "far": np.float32(-1e9),
    }
    constants["axes"] = np.array([1, 2])
    nodes = [
        "length = Shape <start = 1, end = 2> (input_ids)",
        "kind = Gather (embeddings_token_type_embeddings_weight, zero)",
        "places = Add (embeddings_position_embeddings_weight, kind)",
        "needed = Slice (places, zero, length, zero)",
        "words = Gather (embeddings_word_embeddings_weight, input_ids)",
        "embedded = Add (words, needed)",
        "states_0 = LayerNormalization <epsilon = 1e-12> "
        "(embedded, embeddings_LayerNorm_weight, embeddings_LayerNorm_bias)",
        # The attention mask: 0 for a token, a large negative number for padding.
        "present = Cast <to = 1> (attention_mask)",
        "present_keys = Unsqueeze (present, axes)",
        "missing = Sub (one, present_keys)",
        "mask = Mul (missing, far)",
    ]
    layers = _count(weights, "encoder.layer.")
    for number in range(layers):
        names = [
            _identifier(f"encoder.layer.{number}.{layer}.{kind}")
            for layer in _PARTS
            for kind in ("weight", "bias")
        ]
        inputs = ", ".join([f"states_{number}", "mask", *names])
        nodes.append(f"states_{number + 1} = promptboost.layer ({inputs})")
    signature = (
        "(int64[n, length] input_ids, int64[n, length] attention_mask) => "
        f"(float[n, length, {dim}] states_{layers})"
    )
    width = dim // heads
    functions = _BERT.format(heads=heads, width=width, dim=dim, root=float(np.sqrt(width)))
    return _model(signature, nodes, constants, functions, given_weights(weights))


def given_weights(weights: Weights) -> dict[str, NDArray[Any]]:
    """Return weights by their names in a graph that does not contain them."""
    return {_identifier(name): values for name, values in weights.items()}


def _identifier(name: str) -> str:
    return name.replace(".", "_")


def _count(weights: Iterable[str], prefix: str) -> int:
    """Count the layers whose weights are called `prefix` and a number."""
    return len(
        {name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)}
    )


def _model(
    signature: str,
    nodes: Iterable[str],
    constants: Mapping[str, Any],
    functions: str = "",
    external: Weights | None = None,
) -> bytes:
    """Return a graph as the content of an ONNX file; `external` are given when it runs."""
    from onnx import TensorProto, helper, numpy_helper, parser

    header = f'<ir_version: 9, {_OPERATORS}, producer_name: "promptboost">'
    lines = [header, f"network {signature} {{", *nodes, "}", functions]
    model = parser.parse_model("\n".join(lines))
    for name, values in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    for name, values in (external or {}).items():
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = model.graph.initializer.add(name=name, dims=values.shape, data_type=kind)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
    content: bytes = model.SerializeToString()
    return content


class _Unpickler(pickle.Unpickler):
    """Unpickler of tensors that imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch", "FloatStorage":
                return np.dtype("<f4")
            case "torch", "LongStorage":
                return np.dtype("<i8")
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda *description: description
        raise EncoderError(f"a file of weights may not name {module}.{name}: it was not read")

    def persistent_load(self, description: Any) -> tuple[str, np.dtype[Any], int]:
        _, dtype, key, _, length, _ = description
        return key, dtype, length


def read_checkpoint(file: Path) -> dict[str, NDArray[Any]]:
    """Read the tensors of a published file in torch's old format."""
    with file.open("rb") as stream:
        _magic, _version, _system, tensors, keys = (_Unpickler(stream).load() for _ in range(5))
        storages = {storage[0]: storage for storage, *_ in tensors.values()}
        memory = {}
        for key in keys:
            stream.seek(8, 1)  # the length, which the storage has too
            _, dtype, length = storages[key]
            memory[key] = np.frombuffer(stream.read(length * dtype.itemsize), dtype=dtype)
    arrays = {}
    for name, (storage, offset, shape, strides, *_) in tensors.items():
        values = memory[storage[0]][offset:]
        steps = [step * values.itemsize for step in strides]
        arrays[name] = np.ascontiguousarray(as_strided(values, shape, steps)).reshape(shape)
    return arrays
