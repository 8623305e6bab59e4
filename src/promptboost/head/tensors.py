"""Heads as safetensors files: arrays, and the fields that say what they are."""

import json
import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from promptboost.errors import FileFormatError
from promptboost.files import write_bytes

__all__ = ["read_tensors", "write_tensors"]

SCHEMA_VERSION = 1

# safetensors keeps metadata in an unordered map: a single entry makes equal heads equal files.
_METADATA_KEY = "promptboost"


def write_tensors(
    path: str | os.PathLike[str],
    form: str,
    tensors: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Any],
) -> None:
    """Write arrays and named fields as a safetensors file, whole or not at all."""
    from safetensors.numpy import save

    record = {"format": form, "schema_version": SCHEMA_VERSION, **fields}
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    write_bytes(path, save(dict(tensors), metadata={_METADATA_KEY: text}))


def read_tensors(
    path: str | os.PathLike[str], form: str, names: frozenset[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote, or say why it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            fields = _read_fields(path, form, file.metadata())
            if set(file.keys()) != names:
                raise FileFormatError(
                    f"{path}: holds the arrays {sorted(file.keys())}, not {sorted(names)}."
                )
            return {name: file.get_tensor(name) for name in names}, fields
    except SafetensorError as error:
        raise FileFormatError(
            f"{path}: is cut off, damaged or not a safetensors file ({error}). "
            "Copy it again, or embed the ensemble again and save the head."
        ) from error


def _read_fields(
    path: str | os.PathLike[str], form: str, metadata: Mapping[str, str] | None
) -> dict[str, Any]:
    try:
        fields = json.loads((metadata or {})[_METADATA_KEY])
        found, version = fields.pop("format"), fields.pop("schema_version")
    except (KeyError, ValueError, AttributeError, TypeError, RecursionError):
        raise FileFormatError(
            f"{path}: is a safetensors file, but not one that promptboost wrote."
        ) from None
    if found != form:
        raise FileFormatError(f"{path}: holds a {found}, not a {form}.")
    if version != SCHEMA_VERSION:
        raise FileFormatError(
            f"{path}: has schema version {version}, this promptboost reads {SCHEMA_VERSION}. If it "
            "was made by a later promptboost, upgrade with: pip install -U promptboost"
        )
    return dict(fields)
