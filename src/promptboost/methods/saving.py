"""Fitted classifiers as files: JSON for words and settings, safetensors for vectors, no pickle."""

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from promptboost.encoders.base import Encoder
from promptboost.errors import FileFormatError
from promptboost.files import write_text
from promptboost.head.tensors import read_tensors, write_tensors
from promptboost.methods.contract import Arrays, Fitted, Origin

__all__ = ["load_fitted", "save_fitted"]

_FORMAT = "promptboost-method"
_ARRAYS = "promptboost-method-arrays"
_VERSION = 1

# By kind, where the classifier is. A file can name one of these and nothing else.
_KINDS = {
    "text": "text:TextClassifier",
    "linear": "linear:LinearClassifier",
    "tip-adapter": "tip_adapter:CacheClassifier",
    "promptsrc": "promptsrc:PromptedClassifier",
    "eft": "eft:EmulatedClassifier",
}


def save_fitted(fitted: Fitted, folder: str | os.PathLike[str]) -> None:
    """Write a classifier into a folder: ``method.json``, and ``arrays.safetensors`` if it has any.

    Parameters
    ----------
    fitted : Fitted
        What :meth:`Method.fit` gave.
    folder : path-like
        Made if it is not there.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.methods import Origin, TextClassifier
    >>> from promptboost.testing import FakeEncoder
    >>> encoder = FakeEncoder()
    >>> fitted = TextClassifier(Origin("x", ("cat", "dog"), encoder), ({"a cat": 1}, {"a dog": 1}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_fitted(fitted, folder)
    ...     load_fitted(folder, encoder).words()
    ({'a cat': 1.0}, {'a dog': 1.0})
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    fields, arrays = fitted.state()
    encoder = fitted.origin.encoder
    record = {
        "format": _FORMAT,
        "schema_version": _VERSION,
        "kind": fitted.kind,
        "method": fitted.origin.method,
        "class_names": list(fitted.origin.class_names),
        "encoder": {"id": encoder.id, "fingerprint": encoder.fingerprint},
        "arrays": sorted(arrays),
        **fields,
    }
    if arrays:
        write_tensors(path / "arrays.safetensors", _ARRAYS, arrays, {"kind": fitted.kind})
    # Last: a folder without it holds nothing.
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path / "method.json", text + "\n")


def load_fitted(folder: str | os.PathLike[str], encoder: Encoder) -> Fitted:
    """Read what :func:`save_fitted` wrote.

    Parameters
    ----------
    folder : path-like
        The folder.
    encoder : Encoder
        The encoder it was fitted on. Text may be read by any other: see :meth:`Fitted.transfer`.

    Raises
    ------
    FileFormatError
        If a file is damaged, or the classifier is of another encoder.
    """
    path = Path(folder) / "method.json"
    record = _read(path)
    try:
        made_with = record["encoder"]["fingerprint"]
        origin = Origin(str(record["method"]), tuple(map(str, record["class_names"])), encoder)
        kind, names = record["kind"], frozenset(map(str, record["arrays"]))
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path}: {error!r} is missing or not as it should be") from error
    if kind not in _KINDS:
        raise FileFormatError(f"{path}: holds a {kind!r}; there are {', '.join(_KINDS)}")
    if made_with != encoder.fingerprint:
        raise FileFormatError(
            f"{path}: was fitted on {record['encoder'].get('id')!r}, and {encoder.id} is another "
            "encoder; load it with its own, then transfer it"
        )
    module, name = _KINDS[kind].split(":")
    made: type[Fitted] = getattr(import_module(f"promptboost.methods.{module}"), name)
    return made.from_state(origin, record, _arrays(path.parent, kind, names))


def _arrays(folder: Path, kind: str, names: frozenset[str]) -> Arrays:
    if not names:
        return {}
    arrays, fields = read_tensors(folder / "arrays.safetensors", _ARRAYS, names)
    if fields.get("kind") != kind:
        raise FileFormatError(f"{folder}: its two files do not belong together")
    return arrays


def _read(path: Path) -> Mapping[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"{path.parent}: there is no {path.name} in it") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is cut off or not JSON ({error})") from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise FileFormatError(f"{path}: was not written by promptboost for a method")
    if record.get("schema_version") != _VERSION:
        raise FileFormatError(
            f"{path}: has schema version {record.get('schema_version')}, this promptboost reads "
            f"{_VERSION}; upgrade with: pip install -U promptboost"
        )
    return record
