"""Fitted methods as files: JSON for words and settings, safetensors for vectors, no pickle.

A file names the kind of its classifier. Only kinds that are built in or registered are read, so
that no file can have code imported.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from promptboost.encoders.base import Encoder
from promptboost.errors import FileFormatError, SettingError, a_type
from promptboost.io import load_json, open_regular, read_text, write_text
from promptboost.methods.base import Arrays, FittedMethod, Origin
from promptboost.methods.registry import METHODS
from promptboost.model.head import read_tensors, write_tensors
from promptboost.plugins import import_object

_FORMAT = "promptboost-method"
_ARRAYS = "promptboost-method-arrays"
_ARRAYS_FILE = "arrays.safetensors"
_VERSION = 1

# By kind, the class or where it is. A file can name one of these and nothing else.
_KINDS: dict[str, str | type[FittedMethod]] = {
    "text": "promptboost.methods.fitted:TextClassifier",
    "linear": "promptboost.methods.fitted:LinearClassifier",
    "text+residual": "promptboost.methods.promptboost:ResidualClassifier",
    "tip-adapter": "promptboost.methods.tip_adapter:CacheClassifier",
    "promptsrc": "promptboost.methods.promptsrc:PromptedClassifier",
    "eft": "promptboost.methods.eft:EmulatedClassifier",
}


def register_fitted(classifier: type[FittedMethod]) -> type[FittedMethod]:
    """Let the classifiers of another package be saved and loaded; also as a decorator.

    Call it where the class is defined: importing the method then registers its classifier. A
    method that returns a :class:`TextClassifier` or a :class:`LinearClassifier` needs no such call.

    Its `kind` tells its files apart and must be new.

    Examples
    --------
    >>> from promptboost.methods.fitted import LinearClassifier
    >>> @register_fitted
    ... class Mine(LinearClassifier):
    ...     pass
    Traceback (most recent call last):
    promptboost.errors.SettingError: the kind 'linear' of Mine belongs to another classifier; \
choose another
    """
    kind = getattr(classifier, "kind", None)
    if not isinstance(kind, str) or not kind:
        raise SettingError(f"{classifier.__name__} has no kind: give it a text of its own")
    place = f"{classifier.__module__}:{classifier.__qualname__}"
    registered = _KINDS.get(kind, classifier)
    # A module that is imported anew defines its classes anew.
    if place != (
        registered
        if isinstance(registered, str)
        else f"{registered.__module__}:{registered.__qualname__}"
    ):
        raise SettingError(
            f"the kind {kind!r} of {classifier.__name__} belongs to another classifier; choose another"
        )
    _KINDS[kind] = classifier
    return classifier


def save_fitted(fitted: FittedMethod, folder: str | os.PathLike[str]) -> None:
    """Write a classifier into a folder: ``method.json``, and ``arrays.safetensors`` if it has any.

    Raises a SettingError if it is of another package and not registered: it could not be loaded.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.methods.base import Origin
    >>> from promptboost.methods.fitted import TextClassifier
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> encoder = FakeEncoder()
    >>> fitted = TextClassifier(Origin("x", ("cat", "dog"), encoder), ({"a cat": 1}, {"a dog": 1}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_fitted(fitted, folder)
    ...     load_fitted(folder, encoder).words()
    ({'a cat': 1.0}, {'a dog': 1.0})
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    record, arrays = to_record(fitted)
    json.dumps(record, allow_nan=False)  # what cannot be written is found before anything is
    if arrays:
        write_tensors(path / _ARRAYS_FILE, _ARRAYS, arrays, {"kind": fitted.kind})
        # Interrupted here, new arrays do not match the old record.
        record["arrays_digest"] = _digest(path / _ARRAYS_FILE)
    # Last: a folder without it holds nothing.
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path / "method.json", text + "\n", follow=False)


def load_fitted(folder: str | os.PathLike[str], encoder: Encoder) -> FittedMethod:
    """Read what :func:`save_fitted` wrote, with the encoder it was fitted on.

    Raises a FileFormatError if a file is damaged, or the classifier is of another encoder. Text may be
    read by any: see :meth:`FittedMethod.transfer`.
    """
    record, arrays = read_record(folder)
    return from_record(record, arrays, encoder, Path(folder) / "method.json")


def to_record(fitted: FittedMethod) -> tuple[dict[str, Any], Arrays]:
    """Return what is written of a classifier, perhaps inside another: a record for JSON, and arrays."""
    if fitted.kind not in _KINDS:
        raise SettingError(
            f"{a_type(fitted)} cannot be saved: its kind {fitted.kind!r} is not registered; "
            f"call promptboost.methods.register_fitted({type(fitted).__name__})"
        )
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
    return record, arrays


def read_record(folder: str | os.PathLike[str]) -> tuple[Mapping[str, Any], Arrays]:
    """Read the record and the arrays of a folder that :func:`save_fitted` wrote."""
    path = Path(folder) / "method.json"
    record = _read(path)
    try:
        names = frozenset(map(str, record["arrays"]))
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path}: {error!r} is missing or not as it should be") from error
    return record, _arrays(path.parent, record, _kind(record, path), names)


def from_record(
    record: Mapping[str, Any], arrays: Arrays, encoder: Encoder, path: Path
) -> FittedMethod:
    """Make the classifier of a record that was read from `path`, if it is of this encoder."""
    try:
        made_with = record["encoder"]["fingerprint"]
        origin = Origin(str(record["method"]), tuple(map(str, record["class_names"])), encoder)
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path}: {error!r} is missing or not as it should be") from error
    kind = _KINDS[_kind(record, path)]
    if made_with != encoder.fingerprint:
        raise FileFormatError(
            f"{path}: was fitted on {record['encoder'].get('id')!r}, and {encoder.id} is another "
            "encoder; load it with its own, then transfer it"
        )
    classifier: type[FittedMethod] = import_object(kind) if isinstance(kind, str) else kind
    return classifier.from_state(origin, record, arrays)


def _kind(record: Mapping[str, Any], path: Path) -> str:
    kind = str(record.get("kind"))
    if kind not in _KINDS:
        _import_methods()
    if kind not in _KINDS:
        raise FileFormatError(
            f"{path}: holds a {kind!r}; there are {', '.join(_KINDS)}. A classifier of another package "
            "is known when that package is imported"
        )
    return kind


def _import_methods() -> None:
    """Import the methods that others have registered: their modules register classifiers."""
    for record in METHODS.values():
        if isinstance(record.factory, str) and not record.factory.startswith("promptboost."):
            with suppress(SettingError):  # what cannot be imported registers nothing
                record.load()


def _arrays(folder: Path, record: Mapping[str, Any], kind: str, names: frozenset[str]) -> Arrays:
    if not names:
        return {}
    path = folder / _ARRAYS_FILE
    if not path.is_file():
        raise FileFormatError(f"{folder}: there is no {path.name} in it")
    arrays, fields = read_tensors(path, _ARRAYS, names)
    if fields.get("kind") != kind or record.get("arrays_digest") != _digest(path):
        raise FileFormatError(
            f"{folder}: its two files do not belong together; fit the method again"
        )
    return arrays


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _read(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise FileFormatError(f"{path.parent}: there is no {path.name} in it")
    record = load_json(read_text(path, error=FileFormatError), str(path))
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise FileFormatError(f"{path}: was not written by promptboost for a method")
    if record.get("schema_version") != _VERSION:
        raise FileFormatError(
            f"{path}: has schema version {record.get('schema_version')}, this promptboost reads "
            f"{_VERSION}; upgrade with: pip install -U promptboost"
        )
    return record
