"""Writing the little TOML a run needs: tables of numbers, words, switches and lists of words.

Python reads TOML but does not write it, and what a run writes is flat: twenty lines do.
"""

import json
import re
from collections.abc import Mapping

__all__ = ["TomlValue", "write_toml"]

TomlValue = str | int | float | bool | list[str] | list[float]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(tables: Mapping[str, Mapping[str, TomlValue | None]]) -> str:
    """Write tables as TOML text; a value of None is left out, as TOML has no word for it.

    Examples
    --------
    >>> print(write_toml({"fit": {"shots": 8, "encoder": "conse:lite0", "prompts": None}}))
    [fit]
    shots = 8
    encoder = "conse:lite0"
    <BLANKLINE>
    """
    parts = []
    for table, values in tables.items():
        lines = [f"[{_key(table)}]"]
        lines += [f"{_key(k)} = {_value(v)}" for k, v in values.items() if v is not None]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _value(value: TomlValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def _text(text: str) -> str:
    # A JSON string is a TOML string, but for two things: TOML wants DEL escaped, and knows no
    # surrogates, which stand for the bytes of file names that are not UTF-8.
    sound = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return json.dumps(sound, ensure_ascii=False).replace("\x7f", "\\u007f")
