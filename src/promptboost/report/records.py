"""JSON objects as dataclasses: each field checked against its annotation, each fault given its place."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

from promptboost.errors import FileFormatError

__all__ = ["listed", "record_from"]

T = TypeVar("T")


def record_from(cls: type[T], value: object, where: str) -> T:
    """Make a dataclass of a JSON object.

    A field may be left out when it has a default. Fields that are not known are skipped: the file
    may be of a later promptboost, and a report loses nothing by not showing them.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: float
    ...     name: str | None = None
    >>> record_from(Point, {"x": 1}, "points[0]")
    Point(x=1.0, name=None)
    >>> record_from(Point, {"x": "1"}, "points[0]")
    Traceback (most recent call last):
    promptboost.errors.FileFormatError: points[0].x: must be a number, not '1'
    """
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{where}: must be an object, not {value!r:.60}")
    found: dict[str, Any] = {}
    for name, key, kind, needed in _plan(cls):  # type: ignore[arg-type]  # a class can be hashed
        place = f"{where}.{key}" if where else key
        if key in value:
            found[name] = _converted(kind, value[key], place)
        elif needed:
            raise FileFormatError(f"{place}: is missing")
    return cls(**found)


def listed(cls: type[T], value: object, where: str) -> tuple[T, ...]:
    """Make a dataclass of each object in a JSON list."""
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: must be a list, not {value!r:.60}")
    return tuple(record_from(cls, item, f"{where}[{i}]") for i, item in enumerate(value))


@cache
def _plan(cls: type[Any]) -> tuple[tuple[str, str, Any, bool], ...]:
    """Give name, JSON key, annotation, and whether it must be there, for each field."""
    hints = get_type_hints(cls)
    return tuple(
        (item.name, item.metadata.get("key", item.name), hints[item.name], _is_needed(item))
        for item in dataclasses.fields(cls)
    )


def _is_needed(item: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return item.default is missing and item.default_factory is missing


def _converted(kind: Any, value: object, where: str) -> Any:
    convert = _CONVERTERS.get(kind)
    if convert is not None:
        return convert(value, where)
    if dataclasses.is_dataclass(kind):
        return record_from(kind, value, where)  # type: ignore[arg-type]
    return listed(kind.__args__[0], value, where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise FileFormatError(f"{where}: must be text, not {value!r:.60}")
    return value


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FileFormatError(f"{where}: must be a whole number from 0 up, not {value!r:.60}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FileFormatError(f"{where}: must be a number, not {value!r:.60}")
    return float(value)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: must be a list, not {value!r:.60}")
    return tuple(_text(item, f"{where}[{i}]") for i, item in enumerate(value))


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{where}: must be an object, not {value!r:.60}")
    return value


def _optional(convert: Callable[[object, str], T]) -> Callable[[object, str], T | None]:
    return lambda value, where: None if value is None else convert(value, where)


_CONVERTERS: dict[Any, Callable[[object, str], Any]] = {
    str: _text,
    int: _count,
    float: _number,
    tuple[str, ...]: _texts,
    Mapping[str, Any]: _mapping,
    str | None: _optional(_text),
    int | None: _optional(_count),
    float | None: _optional(_number),
}
