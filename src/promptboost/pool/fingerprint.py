"""One short text for all the words of a pool, computed without holding them."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice

__all__ = ["words_fingerprint"]

_AT_ONCE = 4096


def words_fingerprint(
    class_names: Sequence[str], templates: Sequence[str], texts_by_class: Iterable[Iterable[str]]
) -> str:
    """Give what changes whenever a class name, a template, a text or their order changes.

    Saved ensembles carry it: it must stay what it is for pools that stay what they are.

    Examples
    --------
    >>> words_fingerprint(["owl"], ["a {}"], [["an owl"]])
    '535e65611a5d3d243e2bbecdb1342026'
    """
    digest = hashlib.blake2b(digest_size=16)
    # JSON marks where each string and list ends: ["ab", "c"] and ["a", "bc"] differ.
    digest.update(json.dumps([list(class_names), list(templates)]).encode())
    for texts in texts_by_class:
        digest.update(b"[")
        rest, comma = iter(texts), b""
        # A part at a time gives the bytes of one long list without making it.
        while some := list(islice(rest, _AT_ONCE)):
            digest.update(comma + json.dumps(some)[1:-1].encode())
            comma = b", "
        digest.update(b"]")
    return digest.hexdigest()
