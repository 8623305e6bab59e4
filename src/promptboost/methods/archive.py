"""Fitted methods as files: JSON for text and settings, safetensors for vectors, no pickle.

Files name the kind of a classifier, never code to import.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec
import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import FileFormatError, SettingError
from promptboost.io import load_json, open_regular, read_text, write_text
from promptboost.methods.base import CLASSIFIERS, FittedMethod, Origin
from promptboost.methods.registry import METHODS
from promptboost.model.head import read_tensors, write_tensors

_ARRAYS = "promptboost-method-arrays"
_ARRAYS_FILE = "arrays.safetensors"


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["promptboost-method"]
    schema_version: Literal[2]
    kind: str
    method: str
    class_names: tuple[str, ...]
    encoder: dict[str, str]
    fields: dict[str, Any]
    arrays: tuple[str, ...]
    arrays_digest: str = ""  # detects an interruption between the two files

    def json(self) -> str:
        content = msgspec.to_builtins(self)
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def save_fitted(fitted: FittedMethod, folder: str | os.PathLike[str]) -> None:
    """Write a classifier into a folder: ``method.json``, and ``arrays.safetensors`` if it has any.

    Raises a SettingError if its class has no kind of its own.
    """
    values = {f.name: getattr(fitted, f.name) for f in fields(fitted) if f.name != "origin"}  # type: ignore[arg-type]
    if inner := [name for name, value in values.items() if isinstance(value, FittedMethod)]:
        raise SettingError(
            f"{fitted.origin.method} is emulated and cannot be saved; save its {inner[0]} classifier, and "
            "emulate it again when it is loaded"
        )
    if CLASSIFIERS.get(fitted.kind) is not type(fitted):
        raise SettingError(f"{type(fitted).__name__} cannot be saved: give it a kind of its own")
    arrays = {
        name: np.ascontiguousarray(x, np.float32 if x.dtype.kind == "f" else x.dtype)
        for name, x in values.items()
        if isinstance(x, np.ndarray)
    }
    origin = fitted.origin
    record = _Record(
        "promptboost-method",
        2,
        fitted.kind,
        origin.method,
        origin.class_names,
        {"id": origin.encoder.id, "fingerprint": origin.encoder.fingerprint},
        {name: value for name, value in values.items() if name not in arrays},
        tuple(sorted(arrays)),
    )
    record.json()  # raises before anything is written
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if arrays:
        write_tensors(path / _ARRAYS_FILE, _ARRAYS, arrays, {"kind": fitted.kind})
        record.arrays_digest = _digest(path / _ARRAYS_FILE)
    write_text(path / "method.json", record.json(), follow=False)


def load_fitted(folder: str | os.PathLike[str], encoder: Encoder) -> FittedMethod:
    """Load a classifier with the encoder it was fitted on.

    Raises a FileFormatError if a file is damaged, or the encoder is another one; see
    :meth:`FittedMethod.transfer`.
    """
    path = Path(folder) / "method.json"
    if not path.exists():
        raise FileFormatError(f"{path.parent}: there is no {path.name} in it")
    content = load_json(read_text(path, error=FileFormatError), str(path))
    try:
        record = msgspec.convert(content, _Record)
    except msgspec.ValidationError as error:
        raise FileFormatError(
            f"{path}: was not written by this version of promptboost for a method: {error}; fit it again"
        ) from error
    if record.encoder.get("fingerprint") != encoder.fingerprint:
        raise FileFormatError(
            f"{path}: was fitted on {record.encoder.get('id')!r}, and {encoder.id} is another "
            "encoder; load it with its own, then transfer it"
        )
    classifier = _classifier(record.kind, path)
    values: dict[str, Any] = {}
    if record.arrays:
        file = path.parent / _ARRAYS_FILE
        if not file.is_file():
            raise FileFormatError(f"{path.parent}: there is no {file.name} in it")
        values, facts = read_tensors(file, _ARRAYS, frozenset(record.arrays))
        if facts.get("kind") != record.kind or record.arrays_digest != _digest(file):
            raise FileFormatError(
                f"{path.parent}: its two files do not belong together; fit the method again"
            )
    try:
        hints = get_type_hints(classifier)
        values |= {name: msgspec.convert(x, hints[name]) for name, x in record.fields.items()}
        origin = Origin(record.method, record.class_names, encoder)
        return classifier(origin=origin, **values)  # type: ignore[call-arg]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read: {error}") from error


def _classifier(kind: str, path: Path) -> type[FittedMethod]:
    """Return the class of a kind; importing a method defines its classifier."""
    for record in METHODS.values() if kind not in CLASSIFIERS else ():
        with suppress(SettingError):
            record.load()
    if kind not in CLASSIFIERS:
        raise FileFormatError(
            f"{path}: holds a {kind!r}; there are {', '.join(CLASSIFIERS)}. A classifier of another "
            "package is known when that package is imported"
        )
    return CLASSIFIERS[kind]


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
