"""What encoders run on: installed parts, devices, batches, hashes, and what is kept of them."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows
from promptboost.errors import EncoderError, MissingExtraError
from promptboost.io import open_regular, read_bytes, write_bytes, write_text
from promptboost.threads import thread_count

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Made = TypeVar("Made")

# Narrow enough to compute little padding, wide enough to fill batches.
_BUCKET = 8
_BYTES = 16


def require_modules(modules: Iterable[str], extra: str, purpose: str) -> None:
    """Raise an error with the command to type unless all `modules` can be imported."""
    if missing := [module for module in modules if find_spec(module) is None]:
        raise _missing(missing, extra, purpose)


def installed_file(distribution: str, path: str, extra: str, purpose: str) -> Path:
    """Find a file that an installed distribution carries."""
    with suppress(metadata.PackageNotFoundError):
        file = Path(str(metadata.distribution(distribution).locate_file(path)))
        if file.is_file():
            return file
    raise _missing([distribution], extra, purpose)


def _missing(missing: list[str], extra: str, purpose: str) -> MissingExtraError:
    verb = "is" if len(missing) == 1 else "are"
    return MissingExtraError(
        f"{purpose} need {', '.join(missing)}, which {verb} not installed. "
        f"Type: pip install 'promptboost[{extra}]'"
    )


def pick_device(device: str | None) -> "torch.device":
    """Take the device asked for, or the fastest there is: CUDA, then MPS, then the processor."""
    import gc

    # Collecting garbage while torch is imported takes a sixth of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        import torch
    finally:
        if collects:
            gc.enable()
    there = ["cpu"]
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    if torch.cuda.is_available():
        there.insert(0, "cuda")
    if device is None:
        return torch.device(there[0])
    there += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device not in there:
        raise EncoderError(
            f"There is no device {device!r} here. Devices to ask for: {', '.join(there)}; "
            "without a device the first of them is used"
        )
    return torch.device(device)


def length_batches(lengths: Sequence[int] | NDArray[np.int64], size: int) -> list[NDArray[np.intp]]:
    """Cut texts into batches of at most `size` texts of similar length, shortest first."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    buckets = (np.asarray(lengths)[order] - 1) // _BUCKET
    edges = np.flatnonzero(np.diff(buckets)) + 1
    return [
        bucket[start : start + size]
        for bucket in np.split(order, edges)
        for start in range(0, len(bucket), size)
    ]


def encode_by_length(
    lengths: Sequence[int] | NDArray[np.int64],
    dim: int,
    size: int,
    encode: Callable[[NDArray[np.intp], int], NDArray[np.float32]],
) -> UnitRows:
    """Encode batches of similar length and put the rows back in the order of the texts."""
    lengths = np.asarray(lengths)
    rows = np.zeros((len(lengths), dim), dtype=np.float32)
    for batch in length_batches(lengths, size):
        rows[batch] = encode(batch, int(lengths[batch].max()))
    return rows


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Hash named settings and hashes into one."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=_BYTES).hexdigest()


def hash_bytes(data: bytes) -> str:
    """Hash bytes as `hash_file` hashes a file with these bytes."""
    return hashlib.blake2b(data, digest_size=_BYTES).hexdigest()


def hash_file(path: Path) -> str:
    """Hash the bytes of a file, about a second for each gigabyte."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_BYTES)).hexdigest()


def installed_hash(path: Path, notes: Path) -> str:
    """Hash a file of an installed package, once: later processes find the hash in `notes`.

    A file with another size or time of change is hashed again.
    """
    status = path.stat()
    state = [status.st_size, status.st_mtime_ns]
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError, RecursionError):
        known = dict(json.loads(read_bytes(notes)))
    match known.get(str(path)):
        case {"state": noted, "hash": str(digest)} if noted == state:
            return digest
    digest = hash_file(path)
    with suppress(OSError):  # it only saves time
        notes.parent.mkdir(parents=True, exist_ok=True)
        entry = {str(path): {"state": state, "hash": digest}}
        write_text(notes, json.dumps({**known, **entry}))
    return digest


def kept_array(
    file: Path, shape: tuple[int, ...], compute: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return an array that an earlier process computed, or compute and keep it."""

    def content() -> bytes:
        return np.ascontiguousarray(compute(), dtype="<f4").tobytes()

    kept = kept_bytes(file, content, size=4 * math.prod(shape))
    return np.frombuffer(kept, dtype="<f4").reshape(shape).astype(np.float32)


def kept_bytes(file: Path, compute: Callable[[], bytes], size: int | None = None) -> bytes:
    """Return bytes, `size` of them if given, that an earlier process computed, or compute and keep them.

    A file that is not as it was written is written anew; where nothing can be written, the bytes
    are computed every time.
    """
    with suppress(OSError):
        data = memoryview(read_bytes(file))
        digest, content = data[:_BYTES], data[_BYTES:]
        is_sound = hashlib.blake2b(content, digest_size=_BYTES).digest() == digest
        if is_sound and size in (None, len(content)):
            return bytes(content)
    computed = compute()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, hashlib.blake2b(computed, digest_size=_BYTES).digest() + computed)
    return computed


def several_at_once(work: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """Return what `work` makes of each item, in order, on as many items at a time as there are threads."""
    with ThreadPoolExecutor(thread_count()) as threads:
        return list(threads.map(work, items))


def onnx_session(
    model: bytes | Path,
    threads: int | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> Any:
    """Make an ONNX model ready to run on the processor, by default in the threads of the process.

    `weights` are arrays that the model only names; they must outlive it.
    """
    # It would write down an identifier of this machine when it is imported, and send what is run on it to
    # its makers. Who wants that sets the variable to 0.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its hints on how a file was exported are not the user's
    # Threads that wait in a loop take the cores from those that decode the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.intra_op_num_threads = threads or thread_count()
    if weights:
        values = map(onnxruntime.OrtValue.ortvalue_from_numpy, weights.values())
        options.add_external_initializers(list(weights), list(values))
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def hash_tensors(tensors: Mapping[str, "torch.Tensor"]) -> str:
    """Hash names, types, shapes and values: the same weights in another file are the same model."""
    import torch

    digest = hashlib.blake2b(digest_size=_BYTES)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # Bytes, because numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
