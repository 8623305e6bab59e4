"""What a prompt may contain, and when two prompts or names are the same."""

import re
import unicodedata

from promptboost.errors import PoolError

__all__ = ["clean", "control_character", "name_key", "text_key"]

# Characters that turn text around: they can make a report or terminal show what is not there.
_DIRECTION_MARKS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def clean(text: object, *, where: str) -> str:
    r"""Return a text fit for terminals and HTML, or say why it is not.

    Runs of white space, line breaks and tabs among them, become one space. All other control
    characters, marks that reverse the direction of writing, and halves of surrogate pairs are
    refused and not removed: they are a sign of a damaged or hostile file.

    Parameters
    ----------
    text : object
        What should be a string with something in it.
    where : str
        What it is, for the message.

    Examples
    --------
    >>> clean("  a small\n owl ", where="sentence 1")
    'a small owl'
    >>> clean("\x1b[31mred", where="sentence 1")
    Traceback (most recent call last):
        ...
    promptboost.errors.PoolError: sentence 1 contains the control character U+001B: '\x1b[31mred'
    """
    if not isinstance(text, str):
        raise PoolError(f"{where} must be a string, not {type(text).__name__}: {_short(text)}")
    folded = " ".join(text.split())
    if not folded:
        raise PoolError(f"{where} is empty; remove it or write a sentence")
    if control := control_character(folded):
        raise PoolError(f"{where} contains the control character {control}: {_short(text)}")
    return folded


def control_character(text: str) -> str | None:
    r"""Return the code point of the first character that no prompt may contain, if there is one.

    Examples
    --------
    >>> control_character("an owl"), control_character("an\nowl")
    (None, 'U+000A')
    """
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        if unicodedata.category(character) in _REFUSED_CATEGORIES or character in _DIRECTION_MARKS:
            return f"U+{ord(character):04X}"
    return None


def text_key(text: str) -> str:
    """Return what two texts share when they differ only in case and white space.

    Examples
    --------
    >>> text_key("A small  Owl") == text_key("a small owl")
    True
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def name_key(name: str) -> str:
    """Return what two class names share when they differ in case, underscores or hyphens only.

    Examples
    --------
    >>> name_key("Hot_Dog") == name_key("hot-dog") == name_key("hot dog")
    True
    """
    return text_key(re.sub(r"[_\-]", " ", name))


def _short(value: object, limit: int = 60) -> str:
    shown = ascii(value)
    return shown if len(shown) <= limit else f"{shown[:limit]}…"
