"""The ensemble's file: JSON that a person can read, compare and mend.

:func:`write_record` and :func:`read_record` turn the fields of an ensemble into text and back.
They know JSON, the schema's versions and the fields' names; what the fields may hold is checked
where an ensemble is made.
"""

import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from promptboost.errors import FileFormatError, PromptBoostError

__all__ = ["json_schema", "read_record", "write_record"]

FORMAT = "promptboost-ensemble"
SCHEMA_VERSION = 1

_HEADER = ("format", "schema_version")
_REQUIRED = ("class_names", "rounds")
_OPTIONAL = (
    "algorithm",
    "temperature",
    "encoder_id",
    "encoder_fingerprint",
    "pool_fingerprint",
    "settings",
    "versions",
    "history",
    "sample_weights",
)
_ROUND_REQUIRED = ("template", "error", "template_error", "banks")
_ROUND_OPTIONAL = ("composer", "vote", "objective", "gap")


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema of the files, for editors and other languages.

    Examples
    --------
    >>> json_schema()["title"]
    'promptboost ensemble, version 1'
    """
    name = f"ensemble-v{SCHEMA_VERSION}.json"
    text = (resources.files("promptboost.ensemble") / "schemas" / name).read_text(encoding="utf-8")
    return dict(json.loads(text))


def write_record(fields: Mapping[str, Any]) -> str:
    """Give the fields of an ensemble as JSON: a prompt a line, the same text every time."""
    record = {"format": FORMAT, "schema_version": SCHEMA_VERSION, **fields}
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    # File names that are not valid Unicode reach Python as lone surrogates, and may be image ids.
    # They occur only inside strings, where JSON's escape stands for the same thing.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def read_record(text: str) -> dict[str, Any]:
    """Read the fields of an ensemble, whichever version of promptboost wrote them.

    Raises
    ------
    FileFormatError
        If the text is cut off, not JSON, not an ensemble, of a later version, or has a field
        too many or too few.
    """
    record = _parse(text)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise FileFormatError(f'not a promptboost ensemble (no "format": "{FORMAT}").')
    version = record.get("schema_version")
    if type(version) is not int or version < 1:
        raise FileFormatError(f"schema_version: must be a whole number from 1 up, not {version!r}.")
    if version not in _READERS:
        raise FileFormatError(
            f"schema_version: is {version}, and this promptboost reads up to {max(_READERS)}: the "
            "file was made by a later promptboost: upgrade with pip install -U promptboost"
        )
    return _READERS[version](record)


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except PromptBoostError:
        raise
    except json.JSONDecodeError as error:
        raise FileFormatError(_explain(text.rstrip(), error)) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets nested thousands deep.
        raise FileFormatError(f"not JSON that can be read: {error}.") from None


def _explain(text: str, error: json.JSONDecodeError) -> str:
    if not text:
        return "empty: there is nothing to read."
    place = f"line {error.lineno}, column {error.colno}: {error.msg}"
    if text[0] != "{":
        return f"not a JSON object ({place})."
    if error.pos >= len(text) or not text.endswith("}") or "Unterminated" in error.msg:
        return f"cut off: the JSON ends in the middle ({place}). Copy the file again."
    return f"not valid JSON ({place}). If it was edited by hand, look for a comma or a quote there."


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that says two things about one key: one would be lost in silence."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise FileFormatError(f"the key {json.dumps(key)} occurs twice in one object.")
    return unique


def _read_v1(record: dict[str, Any]) -> dict[str, Any]:
    _check_fields(record, (*_HEADER, *_REQUIRED), _OPTIONAL, "")
    if not isinstance(record["rounds"], list):
        raise FileFormatError("rounds: must be a list.")
    for i, item in enumerate(record["rounds"]):
        if not isinstance(item, dict):
            raise FileFormatError(f"rounds[{i}]: must be an object.")
        _check_fields(item, _ROUND_REQUIRED, _ROUND_OPTIONAL, f"rounds[{i}].")
    return {name: value for name, value in record.items() if name not in _HEADER}


def _check_fields(
    record: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...], prefix: str
) -> None:
    for name in required:
        if name not in record:
            raise FileFormatError(f"{prefix}{name}: is missing.")
    for name in record:
        if name not in required and name not in optional:
            # To skip it would be to lose it when the ensemble is saved again.
            raise FileFormatError(f"{prefix}{name}: is not a field of this format; take it out.")


# Readers of old versions stay: a file written today is readable by every later promptboost.
_READERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _read_v1}
