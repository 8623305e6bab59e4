"""GPT4Vis: twenty whole sentences a class, ``*_20_prompts*.json``.

Actions are written in CamelCase and cars with the year first; the alias resolver knows both.
"""

import re
from pathlib import Path

from promptboost.pool.readers.mapping import read_mapping
from promptboost.pool.readers.source import Source

__all__ = ["KIND", "read", "recognises"]

KIND = "gpt4vis"
_FILE = re.compile(r"_\d+_prompts(_|$)", re.IGNORECASE)


def recognises(path: Path) -> bool:
    """Say whether a path is named as GPT4Vis names its files.

    Examples
    --------
    >>> recognises(Path("ucf_20_prompts.json")), recognises(Path("pets_prompts_full.json"))
    (True, False)
    """
    return path.suffix.lower() == ".json" and _FILE.search(path.stem) is not None


def read(path: Path) -> Source:
    """Read one file."""
    return read_mapping(path, KIND, KIND)
