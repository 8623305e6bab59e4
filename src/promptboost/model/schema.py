"""The file format of ensembles: JSON that can be read, compared and edited by hand.

Fields are checked here, values by :class:`~promptboost.model.PromptEnsemble`. msgspec accepts 6 of 49
faulty files and does not locate 11 faults (``python -m benchmarks.validation``).
"""

import difflib
import json
import math
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from promptboost.errors import FileFormatError, InputError, LabelError, PoolError, SettingError
from promptboost.io import LARGEST_INTEGER, LARGEST_NUMBER, check_values, json_text, parse_json

Scalar = str | int | float | bool | None
T = TypeVar("T")


def as_text(value: object, where: str) -> str:
    """Check that a value is a string, not blank, and valid Unicode."""
    if not isinstance(value, str):
        raise InputError(f"{where}: must be a string, not {_kind(value)}.")
    if not value.strip():
        raise InputError(f"{where}: is blank.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{where}: {value!r} is not valid Unicode text.") from None
    return str(value)


def check_class(class_names: Sequence[str], name: str) -> None:
    """Raise for an unknown class, with similar names."""
    if name not in class_names:
        close = difflib.get_close_matches(str(name), class_names, n=3, cutoff=0)
        raise LabelError(f"There is no class {name!r}. Near it: {', '.join(map(repr, close))}.")


def as_number(value: object, where: str, *, positive: bool = False) -> float:
    """Check that a value is a finite number, possibly numpy's."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{where}: must be a number, not {_kind(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{where}: must be a finite number, not {number}.")
    if abs(number) > LARGEST_NUMBER:
        raise SettingError(f"{where}: must be at most {LARGEST_NUMBER:g}, not {number:g}.")
    if positive and number <= 0:
        raise SettingError(f"{where}: must be positive, not {number}.")
    if positive and number < 1 / LARGEST_NUMBER:  # something is divided by it
        raise SettingError(f"{where}: must be at least {1 / LARGEST_NUMBER:g}, not {number:g}.")
    return number


def as_optional_number(value: object, where: str, *, positive: bool = False) -> float | None:
    """Check that a value is a finite number or None."""
    return None if value is None else as_number(value, where, positive=positive)


def as_class_names(value: object) -> tuple[str, ...]:
    """Check that there are two classes or more, each named once."""
    if not isinstance(value, list | tuple):
        raise LabelError(f"class_names: must be a list of strings, not {_kind(value)}.")
    names = tuple(as_text(name, f"class_names[{i}]") for i, name in enumerate(value))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LabelError(f"class_names: {', '.join(map(repr, twice))} occurs more than once.")
    if len(names) < 2:
        raise LabelError(f"class_names: has {len(names)} class(es); a classifier needs two.")
    return names


def as_banks(value: object, class_names: tuple[str, ...], where: str) -> dict[str, dict[str, int]]:
    """Check one bank of prompts per class; return them in the order of the class names."""
    banks = _as_object(value, where)
    missing = [name for name in class_names if name not in banks]
    if missing:
        raise LabelError(f"{where}: has no bank for {', '.join(map(repr, missing))}.")
    unknown = sorted(set(banks) - set(class_names))
    if unknown:
        raise LabelError(
            f"{where}: has a bank for {', '.join(map(repr, unknown))}, not in class_names."
        )
    return {name: as_bank(banks[name], f"{where}[{_quoted(name)}]") for name in class_names}


def as_bank(value: object, where: str) -> dict[str, int]:
    """Check the prompts of one class; return them heaviest first, equals by their text."""
    bank = _as_object(value, where)
    if not bank:
        raise PoolError(f"{where}: is empty; a bank needs at least one prompt.")
    checked = {}
    for prompt, copies in bank.items():
        text = as_text(prompt, where)
        if isinstance(copies, bool) or not isinstance(copies, numbers.Integral) or copies < 1:
            raise PoolError(
                f"{where}[{_quoted(text)}]: the number of copies must be a whole number from 1 up, "
                f"not {copies!r:.60}."
            )
        if int(copies) > LARGEST_INTEGER:  # no file could hold it
            raise PoolError(f"{where}[{_quoted(text)}]: the number of copies is too large.")
        checked[text] = int(copies)
    return dict(sorted(checked.items(), key=lambda pair: (-pair[1], pair[0])))


def as_pinned(
    value: object, rounds: Sequence[Mapping[str, Mapping[str, int]]], class_names: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Check the pinned sentences of each class; return those that are in a round, sorted."""
    pinned = {}
    for name, sentences in _as_object(value, PINNED).items():
        check_class(class_names, name)
        where = f"{PINNED}[{_quoted(name)}]"
        texts = {as_text(text, where) for text in as_sequence(sentences, where)}
        pinned[name] = tuple(sorted(t for t in texts if any(t in banks[name] for banks in rounds)))
    return {name: pinned[name] for name in class_names if pinned.get(name)}


def as_mapping(value: object, where: str, check: Callable[[object, str], T]) -> dict[str, T]:
    """Check named values; return them sorted by name."""
    return {
        name: check(inner, f"{where}[{_quoted(name)}]")
        for name, inner in sorted(_as_object(value, where).items())
    }


def as_scalar(value: object, where: str) -> Scalar:
    """Check a setting: text, a finite number, true, false or nothing."""
    # numpy's scalars are not JSON; those that come from a fit are unpacked here.
    plain = value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value
    if isinstance(plain, int) and abs(plain) > LARGEST_INTEGER:
        raise SettingError(f"{where}: is too large; whole numbers go up to 2**63 - 1.")
    if plain is None or isinstance(plain, bool | int):
        return plain
    if isinstance(plain, str):
        return str(plain)
    return as_number(plain, where)


def as_sequence(value: object, where: str) -> tuple[Any, ...]:
    """Check that a value is a list or another sequence, not a string."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InputError(f"{where}: must be a list, not {_kind(value)}.")
    return tuple(value)


def _as_object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: must be an object, not {_kind(value)}.")
    for name in value:
        if not isinstance(name, str):
            raise InputError(f"{where}: the key {name!r} must be a string, not {_kind(name)}.")
    return value


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _kind(value: object) -> str:
    """Return the JSON name of the type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names: dict[type, str] = {str: "text", int: "a number", float: "a number", list: "a list"}
    return "an object" if isinstance(value, dict) else names.get(type(value), type(value).__name__)


FORMAT = "promptboost-ensemble"
#: Version 2 adds the field of further encoders. Ensembles of one encoder are written as version 1.
SCHEMA_VERSION = 2

_HEADER = ("format", "schema_version")
_REQUIRED = ("class_names", "rounds")
#: How rounds are added up, and the weight of each. Other values belong to fits that are no longer read.
ALGORITHM, VOTE = "samme.r", 1.0
# In the order in which they are written.
FACTS = (
    *("algorithm", "temperature", "logit_scale", "encoder_logit_scale"),
    *("encoder_id", "encoder_fingerprint", "pool_fingerprint", "settings", "versions", "history"),
)
# Fields that are written only where they say something: the encoders after the first, and sentences
# that people added.
FURTHER, PINNED = "further_encoders", "pinned"
_FURTHER_FIELDS = ("id", "fingerprint", "logit_scale", "encoder_logit_scale")
_ROUND_REQUIRED = ("template", "error", "template_error", "banks")
_ROUND_OPTIONAL = ("composer", "vote", "objective", "gap")


def json_schema(version: int = 1) -> dict[str, Any]:
    """Return the JSON Schema of the files, for editors and other languages.

    Version 1 is for ensembles fitted on one encoder, version 2 for several.

    Examples
    --------
    >>> json_schema()["title"]
    'promptboost ensemble, version 1'
    """
    if version not in range(1, SCHEMA_VERSION + 1):
        raise SettingError(f"version is {version!r}: there are 1 and {SCHEMA_VERSION}")
    name = f"ensemble-v{version}.json"
    text = (resources.files("promptboost.model") / "schemas" / name).read_text(encoding="utf-8")
    return dict(json.loads(text))


def write_record(fields: Mapping[str, Any]) -> str:
    """Return the fields of an ensemble as JSON: a prompt a line, the same text every time."""
    version = SCHEMA_VERSION if FURTHER in fields else 1
    return json_text({"format": FORMAT, "schema_version": version, **fields})


def read_record(text: str) -> dict[str, Any]:
    """Read the fields of an ensemble, whichever version of promptboost wrote them."""
    record = parse(text)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise FileFormatError(f'not a promptboost ensemble (no "format": "{FORMAT}").')
    version = record.get("schema_version")
    if type(version) is not int or version < 1:
        raise FileFormatError(f"schema_version: must be a whole number from 1 up, not {version!r}.")
    if version > SCHEMA_VERSION:
        raise FileFormatError(
            f"schema_version: is {version}, and this promptboost reads up to {SCHEMA_VERSION}: the "
            "file was made by a later promptboost: upgrade with pip install -U promptboost"
        )
    optional: tuple[str, ...] = (*FACTS, PINNED, "sample_weights")
    if version > 1:
        further = record.get(FURTHER)
        if not isinstance(further, list) or not further:
            raise FileFormatError(f"{FURTHER}: must be a list of the encoders after the first.")
        for i, encoder in enumerate(further):
            _check_fields(encoder, ("id",), _FURTHER_FIELDS[1:], f"{FURTHER}[{i}]")
        optional = (*optional, FURTHER)
    _check_fields(record, (*_HEADER, *_REQUIRED), optional)
    algorithm = record.get("algorithm", ALGORITHM)
    if algorithm == "samme":
        raise FileFormatError(
            'algorithm: is "samme", where each round casts a hard vote. Such ensembles are no longer '
            "supported and cannot be read: fit again."
        )
    if algorithm != ALGORITHM:
        raise FileFormatError(f'algorithm: must be "{ALGORITHM}", not {algorithm!r:.60}.')
    if not isinstance(record["rounds"], list):
        raise FileFormatError("rounds: must be a list.")
    for i, round_ in enumerate(record["rounds"]):
        _check_fields(round_, _ROUND_REQUIRED, _ROUND_OPTIONAL, f"rounds[{i}]")
        vote = round_.pop("vote", VOTE)
        if isinstance(vote, bool) or vote != VOTE:
            raise FileFormatError(f"rounds[{i}].vote: must be 1, not {vote!r:.60}.")
    return {k: v for k, v in record.items() if k not in (*_HEADER, "algorithm")}


def parse(text: str) -> Any:
    """Read JSON in which no key occurs twice, or raise with the place where it stops being JSON."""
    try:
        record = parse_json(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(_explain(text.rstrip(), error)) from None
    except ValueError as error:  # a duplicate key, or a number of thousands of digits
        raise FileFormatError(f"not JSON that can be read: {error}.") from None
    check_values(record)
    return record


def _explain(text: str, error: json.JSONDecodeError) -> str:
    if not text:
        return "empty: there is nothing to read."
    where = f"line {error.lineno}, column {error.colno}: {error.msg}"
    if text[0] != "{":
        return f"not a JSON object ({where})."
    if error.pos >= len(text) or not text.endswith("}") or "Unterminated" in error.msg:
        return f"cut off: the JSON ends in the middle ({where}). Copy the file again."
    return f"not valid JSON ({where}). If it was edited by hand, look for a comma or a quote there."


def _check_fields(
    record: Any, required: tuple[str, ...], optional: tuple[str, ...], where: str = ""
) -> None:
    if not isinstance(record, dict):
        raise FileFormatError(f"{where}: must be an object.")
    prefix = f"{where}." if where else ""
    for name in required:
        if name not in record:
            raise FileFormatError(f"{prefix}{name}: is missing.")
    for name in record:
        if name not in required and name not in optional:
            # An ignored field would be lost when the ensemble is saved again.
            raise FileFormatError(f"{prefix}{name}: is not a field of this format; take it out.")
