"""What may stand in an ensemble, whoever made it: a fit, an edit, a file.

Every message begins with the place, spelled as in the JSON file: ``rounds[3].banks["cat"]``.
"""

import json
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from promptboost.errors import InputError, LabelError, PoolError, SettingError

__all__ = [
    "Scalar",
    "as_banks",
    "as_class_names",
    "as_number",
    "as_numbers",
    "as_optional_number",
    "as_optional_text",
    "as_scalars",
    "as_sequence",
    "as_text",
    "as_texts",
]

Scalar = str | int | float | bool | None


def as_text(value: object, where: str) -> str:
    """Check that a value is a string that has something in it and can be written as UTF-8."""
    if not isinstance(value, str):
        raise InputError(f"{where}: must be a string, not {_kind(value)}.")
    if not value.strip():
        raise InputError(f"{where}: is blank.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{where}: {value!r} is not valid Unicode text.") from None
    return str(value)


def as_number(value: object, where: str, *, positive: bool = False) -> float:
    """Check that a value is a finite number; numpy's are welcome."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{where}: must be a number, not {_kind(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{where}: must be a finite number, not {number}.")
    if positive and number <= 0:
        raise SettingError(f"{where}: must be positive, not {number}.")
    return number


def as_optional_number(value: object, where: str) -> float | None:
    """Check that a value is a finite number or None."""
    return None if value is None else as_number(value, where)


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
    """Check one bank of prompts per class; give them in the order of the class names."""
    banks = _as_object(value, where)
    missing = [name for name in class_names if name not in banks]
    if missing:
        raise LabelError(f"{where}: has no bank for {', '.join(map(repr, missing))}.")
    unknown = sorted(set(banks) - set(class_names))
    if unknown:
        raise LabelError(
            f"{where}: has a bank for {', '.join(map(repr, unknown))}, not in class_names."
        )
    return {name: _as_bank(banks[name], f"{where}[{_quoted(name)}]") for name in class_names}


def _as_bank(value: object, where: str) -> dict[str, int]:
    bank = _as_object(value, where)
    if not bank:
        raise PoolError(f"{where}: is empty; a bank needs at least one prompt.")
    checked = {}
    for prompt, copies in bank.items():
        text = as_text(prompt, where)
        if isinstance(copies, bool) or not isinstance(copies, numbers.Integral) or copies < 1:
            raise PoolError(
                f"{where}[{_quoted(text)}]: the number of copies must be a whole number from 1 up, "
                f"not {copies!r}."
            )
        checked[text] = int(copies)
    return checked


def as_scalars(value: object, where: str) -> dict[str, Scalar]:
    """Check named settings: text, finite numbers, true, false or nothing; sorted by name."""
    return {
        name: _as_scalar(item, f"{where}[{_quoted(name)}]")
        for name, item in sorted(_as_object(value, where).items())
    }


def _as_scalar(value: object, where: str) -> Scalar:
    # numpy's scalars are not JSON; those that come from a fit are unpacked here.
    plain = value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value
    if plain is None or isinstance(plain, bool | int):
        return plain
    if isinstance(plain, str):
        return str(plain)
    return as_number(plain, where)


def as_numbers(value: object, where: str) -> dict[str, float]:
    """Check named numbers; sorted by name."""
    return {
        name: as_number(item, f"{where}[{_quoted(name)}]")
        for name, item in sorted(_as_object(value, where).items())
    }


def as_texts(value: object, where: str) -> dict[str, str]:
    """Check named texts; sorted by name."""
    return {
        name: as_text(item, f"{where}[{_quoted(name)}]")
        for name, item in sorted(_as_object(value, where).items())
    }


def as_optional_text(value: object, where: str) -> str | None:
    """Check a text that may be unknown."""
    return None if value is None else as_text(value, where)


def as_sequence(value: object, where: str) -> tuple[Any, ...]:
    """Check for a list; a string, which Python would take for one, is refused."""
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
    """Name the type of a value in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names: dict[type, str] = {str: "text", int: "a number", float: "a number", list: "a list"}
    return "an object" if isinstance(value, dict) else names.get(type(value), type(value).__name__)
