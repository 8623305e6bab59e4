"""English grammar of class names: articles by sound, plurals, mass nouns, given noun phrases.

A few rules and lists instead of a dictionary: a name that they misjudge can be given as a noun phrase,
such as ``"a pug dog"``.
"""

import re
from importlib import resources

# The noun that counts is the last one before any of these words: "chest of drawers", "man with glasses".
_LINK = re.compile(
    r" (?:of|with|in|on|at|for|from|to|near|without|under|behind|by) ", re.IGNORECASE
)
_DETERMINER = re.compile(
    r"(?:an?|the|some|any|this|that|these|those|my|your|his|her|its|our|their|several|many|few|two|"
    r"three|four|five|six|seven|eight|nine|ten) ",
    re.IGNORECASE,
)
# Persons with a title, mountains, and names in quotation marks.
_PROPER = re.compile(r"(?:Mr|Mrs|Ms|Dr|Sir|Mount|Mt)\b\.? [A-Z]|[\"“'‘«]")
_UNIQUE = frozenset(["earth", "ocean", "sea", "sky", "sun"])
_LISTS = (resources.files("promptboost.pool") / "data" / "nouns.txt").read_text("utf-8")
# Nouns without a plural, plurals without an s, and singulars that look like a plural.
_MASS, _PLURALS, _SINGULARS = (
    frozenset(words.split()) for words in re.split(r"\[\w+\]", _LISTS)[1:]
)

_VOWEL_LETTER = re.compile(r"[aeiou]", re.IGNORECASE)
# "a unicorn", "a ukulele", "a euro", "a one-way sign".
_SOUNDS_LIKE_YOU_OR_ONE = re.compile(
    r"eu|ewe|once|one\b|ubi|uk|uni(?!m|n|dent)|ur[ai]|us[aeu]|ut[ei]", re.IGNORECASE
)
_SILENT_H = re.compile(r"heir|herbs?\b|honest|honou?r|hour", re.IGNORECASE)
# "8-ball", "an 11th", "an 1890 coin", "18,000".
_EIGHT = re.compile(r"8|1[18](?!\d)|1[18]\d\d(?!\d)|1[18][\d,]\d{3}")
# Read letter by letter: "F-16", "x-ray", "MRI"; with a consonant and a vowel first it is a word: "NASA".
_LETTERS = re.compile(
    r"[A-Z](?![A-Za-z])|[a-z](?=[-\d])|U[A-Z]{1,2}\b|SUV|LED"
    r"|[B-DF-HJ-NP-TV-Z]{2}[A-Z]?\b|[B-DF-HJ-NP-TV-Z]{4,5}\b"
)
_LETTERS_WITH_VOWEL_SOUND = frozenset("AEFHILMNORSX")


def begins_with_vowel_sound(phrase: str) -> bool:
    """Return whether the article before a phrase is "an".

    Examples
    --------
    >>> [begins_with_vowel_sound(name) for name in ("hour", "unicorn", "F-16", "8-ball", "BMW")]
    [True, False, True, True, False]
    """
    if _LETTERS.match(phrase):
        return phrase[0].upper() in _LETTERS_WITH_VOWEL_SOUND
    if _VOWEL_LETTER.match(phrase):
        return _SOUNDS_LIKE_YOU_OR_ONE.match(phrase) is None
    return (_SILENT_H.match(phrase) or _EIGHT.match(phrase)) is not None


def has_determiner(phrase: str) -> bool:
    """Return whether a noun phrase begins with an article or another determiner.

    Examples
    --------
    >>> has_determiner("a pug dog"), has_determiner("pug"), has_determiner("the")
    (True, False, False)
    """
    return _DETERMINER.match(phrase) is not None


def without_determiner(phrase: str) -> str:
    """Return a noun phrase without its article or other determiner."""
    return phrase.partition(" ")[2] if has_determiner(phrase) else phrase


def is_plural(noun: str) -> bool:
    """Return whether a noun is in the plural."""
    noun = noun.lower()
    if noun in _PLURALS or noun in _SINGULARS:
        return noun in _PLURALS
    if noun.endswith("men"):
        return True
    return (
        len(noun) > 3 and noun.endswith("s") and not noun.endswith(("ss", "us", "is", "ics", "'s"))
    )


def article(name: str) -> str:
    """Return the article of a class name with a space behind it; empty for those that take none."""
    if has_determiner(name) or _PROPER.match(name):
        return ""
    if name.lower() in _UNIQUE:
        return "the "
    noun = re.sub(r"\W*\([^()]*\)$", "", _LINK.split(name)[0]).rpartition(" ")[2]
    if noun.lower() in _MASS or is_plural(noun):
        return ""
    return "an " if begins_with_vowel_sound(name) else "a "
