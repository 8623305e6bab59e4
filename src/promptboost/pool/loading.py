"""Text and JSON as people save them, and what is wrong when they cannot be read."""

import json
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, PoolError

__all__ = ["decode", "load_json", "read_text", "unique"]


def read_text(path: str | Path) -> str:
    r"""Read a text file, whatever editor saved it.

    Raises
    ------
    PoolError
        If the file cannot be opened.
    FileFormatError
        If it is not UTF-8.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "owl.txt")
    ...     _ = path.write_bytes(b"\xef\xbb\xbflarge round eyes")
    ...     read_text(path)
    'large round eyes'
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise PoolError(f"cannot read the descriptions {path}: {error.strerror}") from error
    return decode(content, str(path))


def decode(content: bytes, file: str) -> str:
    """Turn the bytes of a file into text; `file` is its name, for the message.

    Examples
    --------
    >>> decode(b"an owl", "owl.txt")
    'an owl'
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{file} is not UTF-8 (byte {error.start}); save it again as UTF-8"
        ) from error


def load_json(text: str, where: str) -> Any:
    """Read JSON in which no key occurs twice.

    Examples
    --------
    >>> load_json('{"owl": ["large round eyes"]}', "birds.json")
    {'owl': ['large round eyes']}
    >>> load_json('{"owl": [], "owl": []}', "birds.json")
    Traceback (most recent call last):
        ...
    promptboost.errors.FileFormatError: birds.json: 'owl' occurs twice; join the two lists
    """
    try:
        return json.loads(text, object_pairs_hook=unique)
    except PoolError as error:
        raise FileFormatError(f"{where}: {error}") from error
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"{where} is cut off or not JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} cannot be read as JSON: {error}") from error


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of pairs, or say which key occurs twice.

    Examples
    --------
    >>> unique([("owl", 1), ("bat", 2)])
    {'owl': 1, 'bat': 2}
    """
    # json keeps the last of two equal keys in silence, and the sentences of the first are lost.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PoolError(f"{key!r} occurs twice; join the two lists")
        found[key] = value
    return found
