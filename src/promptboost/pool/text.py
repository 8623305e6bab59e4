"""Rules for texts and class names: valid characters, equality, and names in sentences."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from promptboost.errors import PoolError

# Characters that reverse text: they can make a report or terminal show other words.
_DIRECTION_MARKS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def clean(text: object, *, where: str) -> str:
    """Return a text that is safe in terminals and HTML; raise PoolError if there is none.

    Runs of white space, line breaks and tabs included, become one space. All other control
    characters, marks that reverse the direction of writing, and halves of surrogate pairs raise an
    error: they are a sign of a damaged or hostile file.
    """
    if not isinstance(text, str):
        raise PoolError(f"{where} must be a string, not {type(text).__name__}: {_short(text)}")
    folded = " ".join(text.split())
    if not folded:
        raise PoolError(f"{where} is empty; remove it or write a sentence")
    # Python's surrogates for bytes in a file name that are not UTF-8.
    if any("\udc80" <= character <= "\udcff" for character in folded):
        shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
        raise PoolError(f"{where} has bytes that are not UTF-8; rename it: {_short(shown)}")
    if control := control_character(folded):
        raise PoolError(f"{where} contains the control character {control}: {_short(text)}")
    return folded


def control_character(text: str) -> str | None:
    """Return the code point of the first invalid character, or None."""
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        if unicodedata.category(character) in _REFUSED_CATEGORIES or character in _DIRECTION_MARKS:
            return f"U+{ord(character):04X}"
    return None


def text_key(text: str) -> str:
    """Return a key that ignores case and white space."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def name_key(name: str) -> str:
    """Return a key of a class name that ignores case, white space, underscores and hyphens."""
    return text_key(re.sub(r"[_\-]", " ", name))


_WNID = re.compile(r"n\d{8}")


def is_wnid(name: str) -> bool:
    """Tell whether a name is a WordNet number, such as n01514668."""
    return _WNID.fullmatch(name) is not None


def is_listed(sentences: object) -> TypeGuard[Iterable[object]]:
    """Return whether a value is an ordered collection of sentences."""
    if isinstance(sentences, str | bytes | Mapping | set | frozenset):
        return False
    return isinstance(sentences, Iterable)


def distinct(sentences: Iterable[str]) -> list[str]:
    """Leave out sentences that differ from an earlier one in case and white space only."""
    first: dict[str, str] = {}
    for sentence in sentences:
        first.setdefault(text_key(sentence), sentence)
    return list(first.values())


def _short(value: object, limit: int = 60) -> str:
    shown = ascii(value)
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def check_class_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as they are; raise PoolError if one cannot be used, or two are the same."""
    if isinstance(class_names, str):
        raise PoolError(f"class_names must be a list of names, not one string: [{class_names!r}]")
    seen: dict[str, str] = {}
    for number, name in enumerate(class_names, start=1):
        if not str(name).strip():
            raise PoolError(f"class name {number} is blank; give every class a name")
        clean(name, where=f"class name {number}")
        # A name is kept as it is, so here not even the line breaks that clean() folds may pass.
        if control := control_character(name):
            raise PoolError(f"class name {number} contains the character {control}: {name!r}")
        # Such names fill every template with the same words: no prompt could tell them apart.
        if (key := name_key(name)) in seen:
            raise PoolError(
                f"two classes have the same name, {seen[key]!r} and {name!r} (case, underscores "
                "and hyphens do not count): rename one"
            )
        seen[key] = name
    if not seen:
        raise PoolError("there are no classes: class_names is empty")
    return tuple(str(name) for name in seen.values())


# "ApplyLipstick", and the capitals of "BMWCar" stay together.
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Both begin where nothing before could have: else a long name would be searched anew from each letter.
_YEAR_LAST = re.compile(r"\A(?P<rest>.+) (?P<year>(?:19|20)\d\d)")
_BRACKETS_LAST = re.compile(r"(?<![^()])(?P<rest>[^()]+) \((?P<inside>[^()]+)\)")
_BETWEEN_LETTERS = re.compile(r"[\s_/.'’\-]")


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
    """Return a key of a name that ignores spaces, marks and the plural."""
    joined = _joined(name)
    if joined.endswith("ies") and len(joined) > 4:
        return f"{joined[:-3]}y"
    if re.search(r"(?:s|x|z|ch|sh)es$", joined):
        return joined[:-2]
    return joined[:-1] if re.search(r"[^su]s$", joined) else joined


Key = Callable[[str], str]
Spelling = tuple[str, Key]

STRICT: tuple[Spelling, ...] = (("exact", str), ("case", text_key), ("underscores", name_key))
"""Rules under which two spellings are one name. Tried before synonyms."""

LOOSE: tuple[Spelling, ...] = (
    ("slash", _slash),
    ("camel case", _camel_case),
    ("year first", _year),
    ("brackets first", _brackets),
    ("joined", _joined),
    ("plural", singular),
)
"""Looser rules, tried after synonyms, which the user has given."""

_WORD = re.compile(r"[^\W_]+")


class NameFinder:
    """Finds the names of classes in sentences, word by word without regard to case.

    The longest name wins: "a tiger cat" names the class "tiger cat" and not "cat".
    """

    def __init__(self, class_names: Sequence[str], *, plurals: bool = False) -> None:
        self._plurals = plurals and len({*map(_singular_words, class_names)}) == len(class_names)
        self._names = {words: name for name in class_names if (words := self._words(name))}
        lengths: dict[str, set[int]] = {}
        for words in self._names:
            lengths.setdefault(words[0], set()).add(len(words))
        self._lengths = {word: sorted(sizes, reverse=True) for word, sizes in lengths.items()}

    def named(self, text: str) -> Iterator[str]:
        """Yield the names in a text from left to right, without overlaps."""
        words = self._words(text)
        i = 0
        while i < len(words):
            sizes = self._lengths.get(words[i], ())
            size = next((n for n in sizes if words[i : i + n] in self._names), 0)
            if size:
                yield self._names[words[i : i + size]]
            i += max(size, 1)

    def _words(self, text: str) -> tuple[str, ...]:
        return _singular_words(text) if self._plurals else _words(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def _singular_words(text: str) -> tuple[str, ...]:
    return tuple(map(singular, _words(text)))
