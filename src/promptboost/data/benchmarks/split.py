"""Split files: which pictures are in which split, and what they show."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from promptboost.data.names import split_name
from promptboost.errors import DataError

__all__ = ["Item", "SplitItems", "check_apart", "digest", "read_split", "text_of"]


class Item(NamedTuple):
    """One picture of a split: its path below the picture folder, the number and name of its class."""

    path: str
    label: int
    name: str


SplitItems: TypeAlias = dict[str, list[Item]]

_SHAPE = '{"train": [["path", 0, "class"], …], "val": …, "test": …}'


def read_split(path: Path) -> SplitItems:
    """Read a split file, in the order in which it lists pictures.

    Two shapes are read: lists of ``[path, number, class]``, as the protocol has them, and objects
    ``{path: class}``, in which lists of drawn shots are often released. In the second, classes are
    numbered in order of appearance.

    Parameters
    ----------
    path : Path
        A JSON file.

    Raises
    ------
    DataError
        If the file cannot be read, is of another shape, lists a picture in two splits, or calls one
        class by two names.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "shots.json"
    ...     _ = file.write_text('{"train": {"a/1.jpg": "cat", "a/2.jpg": "dog"}}')
    ...     read_split(file)
    {'train': [Item(path='a/1.jpg', label=0, name='cat'), Item(path='a/2.jpg', label=1, name='dog')]}
    """
    try:
        content = json.loads(text_of(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} is not a split file; it should be {_SHAPE}")
    numbers: dict[str, int] = {}
    items: SplitItems = {}
    for key, listed in content.items():
        split = split_name(key)
        if split is None or split in items:
            raise DataError(f"{path}: {key!r} is not one of train, val and test, once each")
        items[split] = _items(listed, numbers, f"{path}, {key}")
    _check_names(items, path)
    check_apart(items, str(path))
    return items


def check_apart(items: Mapping[str, Sequence[Item]], where: str) -> None:
    """Refuse a picture that is listed twice: to learn from what is measured on would be a leak."""
    seen: dict[str, str] = {}
    for split, listed in items.items():
        for item in listed:
            if item.path in seen:
                first = seen[item.path]
                twice = f"twice in {split}" if first == split else f"in {first} and in {split}"
                raise DataError(f"{where}: {item.path} is {twice}; a picture belongs in one place")
            seen[item.path] = split


def digest(items: Mapping[str, Sequence[Item]]) -> str:
    """Say in one word which pictures are in which split, as far as it changes a figure.

    The order counts where shots are drawn, not in ``test``. Names of classes do not count: copies
    of a list spell them in their own way.

    Examples
    --------
    >>> one, two = Item("1.jpg", 0, "cat"), Item("2.jpg", 1, "dog")
    >>> digest({"test": [one, two]}) == digest({"test": [two, one]})
    True
    >>> digest({"train": [one, two]}) == digest({"train": [two, one]})
    False
    """
    hasher = hashlib.blake2b(digest_size=8)
    for split in ("train", "val", "test"):
        paths = [item.path for item in items.get(split, ())]
        hasher.update(
            "\n".join([split, *(sorted(paths) if split == "test" else paths), ""]).encode()
        )
    return hasher.hexdigest()


def text_of(path: Path) -> str:
    """Read a text file that must be there."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _items(listed: Any, numbers: dict[str, int], where: str) -> list[Item]:
    if isinstance(listed, dict):
        rows: list[Any] = [
            [path, numbers.setdefault(name, len(numbers)) if isinstance(name, str) else None, name]
            for path, name in listed.items()
        ]
    elif isinstance(listed, list):
        rows = listed
    else:
        raise DataError(f"{where}: not a list of pictures; it should be {_SHAPE}")
    return [_item(row, f"{where}, picture {number}") for number, row in enumerate(rows, start=1)]


def _item(row: Any, where: str) -> Item:
    match row:
        case [str(path), int(label), str(name)] if not isinstance(label, bool):
            pass
        case _:
            raise DataError(f'{where}: {row!r} is not ["path", number, "class"]')
    path = path.replace("\\", "/")
    # Absolute paths hold on one machine only, and ".." could lead out of the picture folder.
    if not name.strip() or not path or path.startswith("/") or ".." in path.split("/"):
        raise DataError(f"{where}: {row!r} needs a path below the picture folder and a class name")
    return Item(path, label, name)


def _check_names(items: SplitItems, path: Path) -> None:
    names: dict[int, str] = {}
    for item in (item for listed in items.values() for item in listed):
        if names.setdefault(item.label, item.name) != item.name:
            raise DataError(
                f"{path}: class {item.label} is called {names[item.label]!r} and {item.name!r}"
            )
