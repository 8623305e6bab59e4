"""Class names: match the names of a file with the classes; read names and synonyms from files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, MissingExtraError, PoolError
from promptboost.io import read_json, read_text
from promptboost.pool.templates import open_clip_words
from promptboost.pool.text import (
    LOOSE,
    STRICT,
    Key,
    Spelling,
    check_class_names,
    clean,
    is_wnid,
    name_key,
    plain_name,
    wordnet_number,
)

Synonyms = Mapping[str, Sequence[str]]
"""Other names of classes, by the name of the class."""


@dataclass(frozen=True)
class NameMatch:
    """A name of the file, its class, and the spelling rule that matched."""

    class_name: str
    entry: str
    how: str


@dataclass(frozen=True)
class Ambiguity:
    """Names that match in more than one way; none of them was matched."""

    classes: tuple[str, ...]
    entries: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class NameMatches:
    """The names of a file and their classes, each list in order.

    Ambiguous classes are not listed as missing, ambiguous names not as unused.
    """

    matches: tuple[NameMatch, ...] = ()  # several for a class only through synonyms
    missing: tuple[str, ...] = ()  # classes that match no name of the file
    unused: tuple[str, ...] = ()  # names of the file that match no class
    ambiguous: tuple[Ambiguity, ...] = ()

    def entries(self, class_name: str) -> list[str]:
        """Return the names of the file that match one class."""
        return self._entries.get(class_name, [])

    @cached_property
    def _entries(self) -> dict[str, list[str]]:
        entries: dict[str, list[str]] = {}
        for match in self.matches:
            entries.setdefault(match.class_name, []).append(match.entry)
        return entries

    def check_clear(self, where: str, way_out: str = "rename one") -> None:
        """Raise PoolError if a name fits in more than one way; `where` is the file."""
        for name in self.ambiguous:
            raise PoolError(
                f"{where}: {' or '.join(map(repr, name.entries))} could be "
                f"{' or '.join(map(repr, name.classes))} ({name.how}), which is "
                f"ambiguous; {way_out}"
            )


def match_names(
    class_names: Sequence[str], entries: Iterable[str], synonyms: Synonyms | None = None
) -> NameMatches:
    """Match the names of a file, `entries`, with classes.

    Spellings are tried from the strictest to the loosest: those of ``STRICT``; then `synonyms` and WordNet
    numbers; then those of ``LOOSE``; and last, where the classes are those of a benchmark, their known
    names in papers. Where more than one name or class matches at the strictest spelling that matches at
    all, none is chosen and the names are reported as ambiguous.
    """
    # Classes that differ in their WordNet numbers only share what the file has under their name.
    classes: dict[str, list[str]] = {}
    for name in class_names:
        classes.setdefault(plain_name(name) if wordnet_number(name) else name, []).append(name)
    matcher = _Matcher(list(classes), entries)
    for spelling in STRICT:
        matcher.match_spelling(spelling)
    matcher.match_groups(_groups(synonyms or {}), "synonym")
    if any(map(is_wnid, (*matcher.entries, *matcher.unmatched))):
        matcher.match_groups(_groups(imagenet_names()), "wnid")
    for spelling in LOOSE:
        matcher.match_spelling(spelling)
    matcher.match_groups(_groups(names_of_benchmark(class_names)), "known name")
    order = {name: k for k, name in enumerate(class_names)}
    matches = [
        replace(match, class_name=name)
        for match in matcher.matches
        for name in classes[match.class_name]
        if not is_wnid(match.entry) or wordnet_number(name) in (None, match.entry)
    ]
    return NameMatches(
        matches=tuple(sorted(matches, key=lambda match: order[match.class_name])),
        missing=tuple(name for same in matcher.unmatched for name in classes[same]),
        unused=tuple(matcher.entries),
        ambiguous=tuple(matcher.ambiguous),
    )


class _Matcher:
    """The classes and the names of a file that are not matched yet."""

    def __init__(self, classes: Sequence[str], entries: Iterable[str]) -> None:
        self.classes = classes
        self.unmatched, self.entries = dict.fromkeys(classes), dict.fromkeys(entries)
        self.matches: list[NameMatch] = []
        self.ambiguous: list[Ambiguity] = []

    def match_spelling(self, spelling: Spelling) -> None:
        how, key_of = spelling
        # All classes, not only unmatched ones: a name that also fits a matched class is ambiguous.
        classes = _by_key(self.classes, key_of)
        for key, entries in _by_key(self.entries, key_of).items():
            rivals = classes.get(key, [])
            unmatched = [name for name in rivals if name in self.unmatched]
            if unmatched:
                self._settle(unmatched, entries, how, len(rivals) == len(entries) == 1)

    def match_groups(self, groups: Mapping[str, dict[str, None]], how: str) -> None:
        by_key = _by_key(self.classes, name_key)
        class_of = {key: names[0] for key, names in by_key.items() if len(names) == 1}
        entries_of = _by_key(self.entries, name_key)
        claims: dict[str, dict[str, None]] = {}
        for head, keys in groups.items():
            # The key of the synonyms is the class; else the only class among them.
            candidates = [head] if head in class_of else keys
            owners = dict.fromkeys(class_of[key] for key in candidates if key in class_of)
            for entry in (entry for key in keys for entry in entries_of.get(key, ())):
                claims.setdefault(entry, {}).update(owners)
        for entry, owners in claims.items():
            if owners:
                self._settle(list(owners), [entry], how, len(owners) == 1)

    def _settle(
        self, classes: Sequence[str], entries: Sequence[str], how: str, unique: bool
    ) -> None:
        if unique:
            self.matches += [NameMatch(classes[0], entry, how) for entry in entries]
        else:
            self.ambiguous.append(Ambiguity(tuple(classes), tuple(entries), how))
        for entry in entries:
            del self.entries[entry]
        for name in classes:
            self.unmatched.pop(name, None)


def _groups(synonyms: Synonyms) -> dict[str, dict[str, None]]:
    # Dicts, not sets, keep the order the same in every run.
    groups: dict[str, dict[str, None]] = {}
    for name, others in synonyms.items():
        keys = dict.fromkeys(map(name_key, (name, *others)))
        groups.setdefault(name_key(name), {}).update(keys)
    return groups


def _by_key(names: Iterable[str], key_of: Key) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(key_of(name), []).append(name)
    return grouped


#: Names of classes in papers, for each benchmark that has several.
_KNOWN_NAMES = resources.files("promptboost.pool") / "data" / "known_names.json"


def names_of_benchmark(class_names: Iterable[str]) -> Synonyms:
    """Return known names of the classes of a benchmark; nothing for other classes."""
    keys = set(map(name_key, class_names))
    tables: dict[str, Synonyms] = json.loads(_KNOWN_NAMES.read_text(encoding="utf-8"))
    for table in tables.values():
        # A single name may occur in any data set, all of them together do not.
        if all(keys & set(map(name_key, (name, *others))) for name, others in table.items()):
            return table
    return {}


def imagenet_class_names() -> tuple[str, ...]:
    """Return CLIP's names of the 1000 classes, in the order of every ImageNet classifier."""
    return open_clip_words("IMAGENET_CLASSNAMES")


@cache
def imagenet_names() -> dict[str, list[str]]:
    """Return the numbers of each ImageNet class by CLIP's name for it; two names have two numbers.

    The numbers come from timm, the names, in the same order, from open_clip; without both it is empty.
    """
    timm = find_spec("timm")
    folder = Path((timm and timm.origin) or "").parent
    try:
        wnids = (folder / "data" / "_info" / "imagenet_synsets.txt").read_text("utf-8").split()
        class_names = imagenet_class_names()
    except (OSError, MissingExtraError):
        return {}
    if len(wnids) != len(class_names) or not all(map(is_wnid, wnids)):
        return {}
    numbers_of: dict[str, list[str]] = {}
    for wnid, name in zip(wnids, class_names, strict=True):
        numbers_of.setdefault(name, []).append(wnid)
    return numbers_of


_LABELS = "label_to_category_name.json"


def read_class_names(source: str | Path) -> tuple[str, ...] | None:
    """Read class names from a file; None if it has another type and may be a source of images.

    Formats are a text file with one name per line; a JSON list of names, or ``{"0": "name", …}``; a JSON
    file of sentences by class; or a ProAPO folder.
    """
    path = Path(source)
    if path.is_dir() and (path / _LABELS).is_file():
        path = path / _LABELS
    if not path.is_file():  # a benchmark's name may end in .json too: dtd:DIR@split.json
        return None
    if path.suffix.lower() == ".txt":
        names: list[Any] = [line for line in read_text(path).splitlines() if line.strip()]
    elif path.suffix.lower() == ".json":
        names = _names(read_json(path), path)
    else:
        return None
    if not names:
        raise FileFormatError(f"{path} holds no class names")
    try:
        return check_class_names(
            [clean(name, where=f"class name {n}") for n, name in enumerate(names, start=1)]
        )
    except PoolError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _names(loaded: Any, path: Path) -> list[Any]:
    if isinstance(loaded, list):
        return loaded
    if isinstance(loaded, dict) and all(isinstance(value, str) for value in loaded.values()):
        if not all(key.isdecimal() for key in loaded):
            raise FileFormatError(f'{path} should be {{"0": "name", "1": "name", …}}')
        return [loaded[key] for key in sorted(loaded, key=int)]
    if isinstance(loaded, dict) and all(isinstance(value, list) for value in loaded.values()):
        return list(loaded)
    raise FileFormatError(f'{path} should be ["name", …] or {{"0": "name", …}}')


def read_synonyms(path: str | Path) -> dict[str, list[str]]:
    """Read ``{"name": ["other name", …], …}`` or ``{"other name": "name", …}`` from a JSON file."""
    loaded = read_json(path)
    wanted = '{"name": ["other name", …]} or {"other name": "name"}'
    if not isinstance(loaded, dict):
        raise FileFormatError(f"{path} should be {wanted}")
    synonyms: dict[str, list[str]] = {}
    for name, others in loaded.items():
        if isinstance(others, str):
            synonyms.setdefault(others, []).append(name)
        elif isinstance(others, list) and all(isinstance(other, str) for other in others):
            synonyms.setdefault(name, []).extend(others)
        else:
            raise FileFormatError(f"{path}: {name!r} should be as in {wanted}")
    return synonyms
