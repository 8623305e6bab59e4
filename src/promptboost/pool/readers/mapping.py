"""The shape most of the field uses: ``{"class": ["sentence", …], …}`` in one JSON file."""

from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError
from promptboost.files import load_json, read_text
from promptboost.pool.readers.source import Gathering, Phrase, Source

__all__ = ["has_templates", "read_mapping", "source_from_mapping"]


def read_mapping(path: Path, name: str, kind: str, phrase: Phrase | None = None) -> Source:
    """Read a file of that shape.

    Examples
    --------
    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "birds.json")
    ...     _ = path.write_text(json.dumps({"owl": ["large round eyes", ""]}))
    ...     read_mapping(path, "mine", "plain").sentences
    {'owl': ('large round eyes',)}
    """
    return source_from_mapping(load_json(read_text(path), str(path)), path, name, kind, phrase)


def source_from_mapping(
    loaded: Any, path: Path, name: str, kind: str, phrase: Phrase | None = None
) -> Source:
    """Make a source of such a JSON object; `path` is where it was read."""
    if not isinstance(loaded, dict):
        raise FileFormatError(
            f'{path} holds a {type(loaded).__name__}; it should be {{"class": ["sentence", …]}}'
        )
    found = Gathering(str(path))
    for entry, sentences in loaded.items():
        found.add(entry, sentences)
    return found.source(name, kind, path, phrase=phrase)


def has_templates(listed: object) -> bool:
    """Say whether a JSON value is a list of sentences with a place for the class name.

    Examples
    --------
    >>> has_templates(["a photo of a {c}."]), has_templates(["a photo of an owl."])
    (True, False)
    """
    return (
        isinstance(listed, list)
        and bool(listed)
        and all(isinstance(text, str) and ("{}" in text or "{c}" in text) for text in listed)
    )
