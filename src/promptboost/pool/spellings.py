"""Ways in which the same name is spelled, from the strictest to the loosest."""

import re
from collections.abc import Callable

from promptboost.pool.text import name_key, text_key

__all__ = ["LOOSE", "STRICT", "Key", "Spelling", "singular"]

# "ApplyLipstick", and the capitals of "BMWCar" stay together.
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_YEAR_LAST = re.compile(r"(?P<rest>.+) (?P<year>(?:19|20)\d\d)")
_BRACKETS_LAST = re.compile(r"(?P<rest>[^()]+) \((?P<inside>[^()]+)\)")
_BETWEEN_LETTERS = re.compile(r"[\s_/.'’\-]")


def _same(name: str) -> str:
    return name


def _slash(name: str) -> str:
    return name_key(name.replace("SLASH", "/"))


def _camel_case(name: str) -> str:
    return name_key(_CAMEL_HUMP.sub(" ", name.replace("SLASH", "/")))


def _year(name: str) -> str:
    return _YEAR_LAST.sub(r"\g<year> \g<rest>", _camel_case(name))


def _brackets(name: str) -> str:
    return _BRACKETS_LAST.sub(r"\g<inside> \g<rest>", _year(name))


def _joined(name: str) -> str:
    return _BETWEEN_LETTERS.sub("", _brackets(name))


def singular(name: str) -> str:
    """Return what is left of a name when spaces, marks and a plural do not count.

    Examples
    --------
    >>> singular("Faces"), singular("Yo-Yo"), singular("hot dogs"), singular("grass")
    ('face', 'yoyo', 'hotdog', 'grass')
    """
    joined = _joined(name)
    if joined.endswith("ies") and len(joined) > 4:
        return f"{joined[:-3]}y"
    if re.search(r"(?:s|x|z|ch|sh)es$", joined):
        return joined[:-2]
    return joined[:-1] if re.search(r"[^su]s$", joined) else joined


Key = Callable[[str], str]
Spelling = tuple[str, Key]

STRICT: tuple[Spelling, ...] = (
    ("exact", _same),
    ("case", text_key),
    ("underscores", name_key),
)
"""What a reader would not call another name. Tried before synonyms."""

LOOSE: tuple[Spelling, ...] = (
    ("slash", _slash),
    ("camel case", _camel_case),
    ("year first", _year),
    ("brackets first", _brackets),
    ("joined", _joined),
    ("plural", singular),
)
"""What is tried after synonyms: a synonym is what somebody said, this is a rule."""
