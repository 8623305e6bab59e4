"""What a source of sentences may be called."""

import re

__all__ = ["goes_by"]


def goes_by(source: str, word: str) -> bool:
    """Tell whether a word is enough to name a source, in any case.

    It may be the whole name, the part of it before or behind a colon, or the first word of the
    latter.

    Examples
    --------
    >>> [goes_by("proapo:CuPL_full", word) for word in ("proapo:CuPL_full", "cupl_full", "cupl")]
    [True, True, True]
    >>> goes_by("DCLIP.json", "dclip"), goes_by("DCLIP.json", "clip")
    (True, False)
    """
    family, _, own = source.partition(":")
    short = own or source
    names = (source, family, short, re.split(r"[_.]", short)[0])
    return word.casefold() in {name.casefold() for name in names}
