"""Names of classes and splits."""

import unicodedata
from collections.abc import Sequence

from promptboost.errors import DataError

__all__ = ["check_class_names", "display_name", "split_name"]

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def display_name(label: str) -> str:
    """Turn the name of a folder into words for a prompt.

    Examples
    --------
    >>> display_name("American_Bulldog")
    'American Bulldog'
    """
    return " ".join(label.replace("_", " ").split())


def split_name(text: str) -> str | None:
    """Give a split its usual name, or None if it is not the name of one.

    Examples
    --------
    >>> split_name("Training"), split_name("valid"), split_name("zebra")
    ('train', 'val', None)
    """
    return _SPLITS.get(text.strip().lower())


def check_class_names(names: Sequence[str]) -> None:
    """Refuse class names that nobody could tell apart in a prompt.

    Raises
    ------
    DataError
        If a name is blank, or two differ only in case, spacing or the encoding of their accents.

    Examples
    --------
    >>> check_class_names(["cat", "dog"])
    """
    seen: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", display_name(name)).casefold()
        if not key:
            raise DataError(f"the class name {name!r} is blank; give every class a name")
        if key in seen:
            raise DataError(
                f"the classes {seen[key]!r} and {name!r} read the same in a prompt; "
                "rename one, or move their pictures together"
            )
        seen[key] = name
