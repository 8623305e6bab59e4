"""Content addresses of models: two that could embed differently never share one."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["fingerprint", "hash_file", "hash_tensors"]

_BYTES = 16


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Hash named settings and hashes into one.

    Examples
    --------
    >>> fingerprint({"size": 224, "weights": "ab"}) == fingerprint({"weights": "ab", "size": 224})
    True
    >>> fingerprint({"size": 224}) == fingerprint({"size": 256})
    False
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=_BYTES).hexdigest()


def hash_file(path: Path) -> str:
    """Hash the bytes of a file, about a second for each gigabyte.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "weights").write_bytes(b"1234")
    ...     len(hash_file(Path(folder, "weights")))
    32
    """
    digest = hashlib.blake2b(digest_size=_BYTES)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hash_tensors(tensors: Mapping[str, "torch.Tensor"]) -> str:
    """Hash the names, types, shapes and values of tensors, in order of name.

    What was loaded is hashed, not the file it came from: the same weights in another file format
    are the same model. It costs about a second for each gigabyte.
    """
    import torch

    digest = hashlib.blake2b(digest_size=_BYTES)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # Bytes, because numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
