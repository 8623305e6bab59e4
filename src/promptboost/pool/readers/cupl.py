"""CuPL: whole sentences of a language model, ``*_prompts_base.json`` and ``*_prompts_full.json``.

Names are CLIP's: cars have the year last, scenes a word in brackets, Caltech has "background".
Sentences may hold line breaks, and many occur twice.
"""

import re
from pathlib import Path

from promptboost.pool.readers.mapping import read_mapping
from promptboost.pool.readers.source import Source

__all__ = ["KIND", "read", "recognises"]

KIND = "cupl"
_FILE = re.compile(r"prompts_(base|full)$", re.IGNORECASE)


def recognises(path: Path) -> bool:
    """Say whether a path is named as CuPL names its files.

    Examples
    --------
    >>> recognises(Path("pets_prompts_full.json")), recognises(Path("pets.json"))
    (True, False)
    """
    return path.suffix.lower() == ".json" and _FILE.search(path.stem) is not None


def read(path: Path) -> Source:
    """Read one file; its name says whether it is the base or the full set."""
    named = _FILE.search(path.stem)
    return read_mapping(path, f"{KIND}_{named[1].lower()}" if named else KIND, KIND)
