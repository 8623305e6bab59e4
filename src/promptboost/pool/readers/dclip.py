"""DCLIP: fragments such as "a hooked beak" that need the class and a connector to be a sentence.

"{class}, which has {fragment}." is the rule. As in the authors' use, a fragment that begins with
"a" or "an" is said to be what the thing is ("which is a small bird"), although that is at times a
part of it; one that begins with a verb follows "which" alone. Unlike theirs the test is on whole
words: "antlers" does not begin with "a". A list may be empty; such a class then has no sentence.
"""

import re

from promptboost.pool.readers.mapping import read_mapping
from promptboost.pool.readers.source import Reader

__all__ = ["DCLIP", "connect"]

_IS = frozenset(
    ["a", "an", "covered", "found", "known", "located", "made", "served", "similar", "used"]
)
_VERB = frozenset(
    [
        *("are", "can", "has", "have", "is", "looks"),
        *("may", "often", "sometimes", "typically", "usually"),
    ]
)
_FIRST_WORD = re.compile(r"[^\W\d_]+(?![\w-])")


def connect(class_name: str, fragment: str) -> str:
    """Make a sentence of a class and a fragment.

    Examples
    --------
    >>> connect("barn_owl", "a nocturnal bird")
    'barn owl, which is a nocturnal bird.'
    >>> connect("elk", "antlers"), connect("elk", "may have antlers.")
    ('elk, which has antlers.', 'elk, which may have antlers.')
    """
    first = _FIRST_WORD.match(fragment)
    word = first[0].lower() if first else ""
    connector = "which is" if word in _IS else "which" if word in _VERB else "which has"
    return f"{class_name.replace('_', ' ')}, {connector} {fragment.rstrip(' .')}."


DCLIP = Reader(
    "dclip",
    lambda path: path.suffix.lower() == ".json" and path.stem.lower().startswith("descriptors"),
    lambda path, _: (read_mapping(path, "dclip", "dclip", phrase=connect),),
)
