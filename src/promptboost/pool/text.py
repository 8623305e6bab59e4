"""Rules for texts and class names: valid characters, equality, and names in sentences."""

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from promptboost.errors import LookAlikeWarning, PoolError

#: Most characters of a sentence, template or name; encoders read the first few hundred.
MAX_CHARACTERS = 2000

# Characters that reverse text: they can make a report or terminal show other words.
_DIRECTION_MARKS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Unicode's Default_Ignorable_Code_Point without direction marks and the variants of emoji, which have no
# effect on European letters. Joiners belong between letters of some scripts, and have none next to ASCII.
_ZERO_WIDTH = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|(?<=[A-Za-z\u00c0-\u04ff])[\ufe00-\ufe0f]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
# Letters of other scripts that look like Latin ones.
_LATIN = str.maketrans("авекмнорстухіјѕԁԛԝһӏցոսօαεικνορτυχω", "abekmhopctyxijsdqwhlgnuoaeikvoptuxw")


def clean(text: object, *, where: str) -> str:
    """Return a text that is safe in terminals and HTML; raise PoolError if there is none.

    Runs of white space become one space, and characters without width are removed. Control characters,
    marks that reverse the direction of writing, halves of surrogate pairs and more than
    :data:`MAX_CHARACTERS` raise an error.
    """
    if not isinstance(text, str):
        raise PoolError(f"{where} must be a string, not {type(text).__name__}: {_short(text)}")
    folded = without_zero_width(" ".join(text.split()))
    if not text.strip():
        raise PoolError(f"{where} is empty; remove it or write a sentence")
    # Python's surrogates for bytes in a file name that are not UTF-8.
    if any("\udc80" <= character <= "\udcff" for character in folded):
        shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
        raise PoolError(f"{where} has bytes that are not UTF-8; rename it: {_short(shown)}")
    if control := control_character(folded):
        raise PoolError(f"{where} contains the control character {control}: {_short(text)}")
    if not is_visible(folded):
        raise PoolError(f"{where} has only invisible characters: {_short(text)}")
    if len(folded) > MAX_CHARACTERS:
        raise PoolError(
            f"{where} has {len(folded):,} characters; shorten or split it, to {MAX_CHARACTERS:,} at most: "
            f"{_short(text)}"
        )
    return folded


def control_character(text: str) -> str | None:
    """Return the code point of the first invalid character, or None."""
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        if unicodedata.category(character) in _REFUSED_CATEGORIES or character in _DIRECTION_MARKS:
            return f"U+{ord(character):04X}"
    return None


def without_zero_width(text: str) -> str:
    """Remove characters without width, and white space that is then doubled."""
    if text.isascii() or not _ZERO_WIDTH.search(text):
        return text
    return without_zero_width(" ".join(_ZERO_WIDTH.sub("", text).split()))


def is_visible(text: str) -> bool:
    """Return whether a text has a visible character: not only spaces, marks and fillers."""
    visible = without_zero_width(text).replace("\u2800", "")
    return any(unicodedata.category(character)[0] not in "CMZ" for character in visible)


def text_key(text: str) -> str:
    """Return a key that ignores case, white space and characters without width."""
    return " ".join(unicodedata.normalize("NFC", without_zero_width(text)).casefold().split())


def latin_key(text: str) -> str:
    """Return a key that texts of look-alike letters share."""
    return unicodedata.normalize("NFKC", text_key(text)).translate(_LATIN)


def look_alike_word(text: str) -> str | None:
    """Return the first word with letters that only look Latin, in a text of Latin letters otherwise."""
    if text.isascii() or not (key := latin_key(text)).isascii() or not re.search("[a-zA-Z]", text):
        return None
    words = zip(text_key(text).split(), key.split(), strict=False)
    return next((word for word, latin in words if word != latin), None)


def name_key(name: str) -> str:
    """Return a key of a class name that ignores case, white space, underscores and hyphens."""
    return text_key(re.sub(r"[_\-]", " ", name))


#: A WordNet number.
WNID = re.compile(r"n\d{8}")
_NUMBERED = re.compile(r" \((n\d{8})\)\Z")


def is_wnid(name: str) -> bool:
    """Return whether a name is a WordNet number, such as n01514668."""
    return WNID.fullmatch(name) is not None


def plain_name(name: str) -> str:
    """Return a class name as texts use it: with spaces, and without the WordNet number behind it.

    ImageNet has two classes "missile". Their names end in the number, their texts do not.

    Examples
    --------
    >>> plain_name("apple_pie"), plain_name("missile (n04008634)")
    ('apple pie', 'missile')
    """
    return _NUMBERED.sub("", name).replace("_", " ")


def wordnet_number(name: str) -> str | None:
    """Return the WordNet number that distinguishes a class from another of the same name, if it has one."""
    match = _NUMBERED.search(name)
    return match[1] if match else None


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


def _short(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def check_class_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as they are; raise PoolError if one cannot be used, or two are the same."""
    if isinstance(class_names, str):
        raise PoolError(f"class_names must be a list of names, not one string: [{class_names!r}]")
    seen: dict[str, str] = {}
    for number, name in enumerate(class_names, start=1):
        if not (is_visible(str(name)) or control_character(str(name))):
            raise PoolError(f"class name {number} is blank; give every class a name")
        clean(name, where=f"class name {number}")
        # A name is kept as it is, so here not even the line breaks that clean() folds may pass.
        if control := control_character(name):
            raise PoolError(f"class name {number} contains the character {control}: {name!r}")
        # Such names fill every template with the same words.
        if (key := name_key(name)) in seen:
            raise PoolError(
                f"two classes have the same name, {seen[key]!r} and {name!r} (case, underscores "
                "and hyphens do not count): rename one"
            )
        seen[key] = name
    if not seen:
        raise PoolError("there are no classes: class_names is empty")
    _warn_of_look_alikes(seen)
    return tuple(str(name) for name in seen.values())


def _warn_of_look_alikes(names: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for key, name in names.items():
        other = first.setdefault(latin_key(key), name)
        if other != name:
            warnings.warn(
                f"the classes {other!r} and {name!r} differ only in letters that look alike: "
                f"{other!a} and {name!a}",
                LookAlikeWarning,
                stacklevel=3,
            )


# "ApplyLipstick", and the capitals of "BMWCar" stay together.
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Both begin where nothing before could have: else a long name would be searched anew from each letter.
_YEAR_LAST = re.compile(r"\A(?P<rest>.+) (?P<year>(?:19|20)\d\d)")
_BRACKETS_LAST = re.compile(r"(?<![^()])(?P<rest>[^()]+) \((?P<inside>[^()]+)\)")
_BETWEEN_LETTERS = re.compile(r"[\s_/.'’\-]")


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
    ("slash", lambda name: name_key(name.replace("SLASH", "/"))),
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
