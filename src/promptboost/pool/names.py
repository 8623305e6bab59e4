"""Which names of a file are which class: one rule, for Python and the command line alike.

Also the names themselves: class names and synonyms read from files, the numbers of ImageNet's
classes, and what papers are known to call the classes of some benchmarks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptboost.errors import FileFormatError, MissingExtraError, PoolError
from promptboost.io import read_json, read_text
from promptboost.pool.templates import open_clip_words
from promptboost.pool.text import LOOSE, STRICT, Key, Spelling, clean, control_character, name_key

Synonyms = Mapping[str, Sequence[str]]
"""Other names of classes, by the name of the class."""


@dataclass(frozen=True)
class Match:
    """A name of the file that is a class, and how they met."""

    class_name: str
    entry: str
    how: str


@dataclass(frozen=True)
class Ambiguity:
    """Names that would fit in more than one way; none of them was taken."""

    classes: tuple[str, ...]
    entries: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Resolution:
    """Which names of a file are which class, each list in order.

    What fits in more than one way is ``ambiguous``; these classes are not missing, these names not unused.
    """

    matches: tuple[Match, ...]  # a class has several only where synonyms say so
    missing: tuple[str, ...]  # classes no name of the file fits
    unused: tuple[str, ...]  # names of the file that fit no class
    ambiguous: tuple[Ambiguity, ...]

    def entries(self, class_name: str) -> list[str]:
        """Return the names of the file that are one class."""
        return [match.entry for match in self.matches if match.class_name == class_name]

    def check_clear(self, where: str, way_out: str = "rename one") -> None:
        """Raise PoolError if a name fits in more than one way; `where` says in which file."""
        for item in self.ambiguous:
            raise PoolError(
                f"{where}: {' or '.join(map(repr, item.entries))} could be "
                f"{' or '.join(map(repr, item.classes))} ({item.how}), and neither is taken on a "
                f"guess; {way_out}"
            )


def resolve(
    class_names: Sequence[str], entries: Iterable[str], synonyms: Synonyms | None = None
) -> Resolution:
    """Find out which names of a file are which class.

    Spellings are tried from the strictest to the loosest: the same, another case, underscores and
    hyphens; then `synonyms` and WordNet numbers; then SLASH for "/", CamelCase, the year of a car
    at the other end, a word in brackets at the other end, spaces and marks left out, a plural; and
    last, where the classes are those of a benchmark, names they are known to go by. Where more than
    one name or class fits at the strictest spelling that fits at all, nothing is taken and the
    matter is reported.

    Parameters
    ----------
    class_names : sequence of str
    entries : iterable of str
        The names a file uses.
    synonyms : mapping of str to sequence of str, optional
        Other names of a class, all of which belong to it unless they are another class's own.

    Examples
    --------
    >>> met = resolve(["2012 Audi R8", "hot dog"], ["Audi R8 2012", "HotDog", "sushi"])
    >>> [(match.entry, match.how) for match in met.matches], met.unused
    ([('Audi R8 2012', 'year first'), ('HotDog', 'camel case')], ('sushi',))
    >>> resolve(["hot dog"], ["Hot_Dog", "HOT-DOG"]).ambiguous[0].entries
    ('Hot_Dog', 'HOT-DOG')
    """
    table = _Table(class_names, entries)
    for spelling in STRICT:
        table.match_spelling(spelling)
    table.match_groups(_groups(synonyms or {}), "synonym")
    if any(map(is_wnid, (*table.free, *table.waiting))):
        table.match_groups(_groups(imagenet_names()), "wnid")
    for spelling in LOOSE:
        table.match_spelling(spelling)
    table.match_groups(_groups(names_of_benchmark(class_names)), "known name")
    return table.resolution()


class _Table:
    """Who is still without a partner."""

    def __init__(self, classes: Sequence[str], entries: Iterable[str]) -> None:
        self.classes = classes
        self.waiting, self.free = dict.fromkeys(classes), dict.fromkeys(entries)
        self.matches: list[Match] = []
        self.ambiguous: list[Ambiguity] = []

    def match_spelling(self, spelling: Spelling) -> None:
        how, key_of = spelling
        # All classes and not only those that wait: a name that would also fit a class which has
        # its own is no safe find for the other.
        classes = _by_key(self.classes, key_of)
        entries = _by_key(self.free, key_of)
        for key, fitting in entries.items():
            rivals = classes.get(key, [])
            waiting = [name for name in rivals if name in self.waiting]
            if not waiting:
                continue
            if len(rivals) == 1 and len(fitting) == 1:
                self._take(waiting[0], fitting, how)
            else:
                self._set_aside(waiting, fitting, how)

    def match_groups(self, groups: Mapping[str, dict[str, None]], how: str) -> None:
        by_key = _by_key(self.classes, name_key)
        class_of = {key: names[0] for key, names in by_key.items() if len(names) == 1}
        free = _by_key(self.free, name_key)
        claims: dict[str, list[str]] = {}
        for head, keys in groups.items():
            # The name the others are given for is the class; else the only class among them.
            owners = (
                [class_of[head]]
                if head in class_of
                else [class_of[key] for key in keys if key in class_of]
            )
            for entry in (entry for key in keys for entry in free.get(key, ())):
                claims.setdefault(entry, []).extend(owners)
        for entry, owners in claims.items():
            distinct = list(dict.fromkeys(owners))
            if len(distinct) == 1:
                self._take(distinct[0], [entry], how)
            elif distinct:
                self._set_aside(distinct, [entry], how)

    def _take(self, class_name: str, entries: Sequence[str], how: str) -> None:
        for entry in entries:
            self.matches.append(Match(class_name, entry, how))
            del self.free[entry]
        self.waiting.pop(class_name, None)

    def _set_aside(self, classes: Sequence[str], entries: Sequence[str], how: str) -> None:
        self.ambiguous.append(Ambiguity(tuple(classes), tuple(entries), how))
        for entry in entries:
            del self.free[entry]
        for name in classes:
            self.waiting.pop(name, None)

    def resolution(self) -> Resolution:
        place = {name: k for k, name in enumerate(self.classes)}
        return Resolution(
            matches=tuple(sorted(self.matches, key=lambda match: place[match.class_name])),
            missing=tuple(name for name in self.classes if name in self.waiting),
            unused=tuple(self.free),
            ambiguous=tuple(self.ambiguous),
        )


def _groups(synonyms: Synonyms) -> dict[str, dict[str, None]]:
    # Dicts and not sets: the order of what is joined must not change from run to run.
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


_CALTECH: Synonyms = {
    "face": ["off-center face", "centered face"],
    "car side": ["side of a car"],
    "cougar body": ["body of a cougar cat"],
    "cougar face": ["face of a cougar cat"],
    "crocodile head": ["head of a crocodile"],
    "flamingo head": ["head of a flamingo"],
    "snoopy": ["snoopy (cartoon beagle)"],
    "yin yang": ["yin and yang symbol"],
}
_EUROSAT: Synonyms = {
    "annual crop land": ["annual crop", "AnnualCrop"],
    "herbaceous vegetation land": [
        *("herbaceous vegetation", "HerbaceousVegetation", "brushland or shrubland")
    ],
    "highway or road": ["highway"],
    "industrial buildings": ["industrial", "industrial buildings or commercial buildings"],
    "pasture land": ["pasture"],
    "permanent crop land": ["permanent crop", "PermanentCrop"],
    "residential buildings": ["residential", "residential buildings or homes or apartments"],
    "sea or lake": ["SeaLake", "lake or sea"],
}
_FLOWERS: Synonyms = {"pink-yellow dahlia": ["pink and yellow dahlia"], "ball moss": ["air plant"]}
_IMAGENET: Synonyms = {"eft": ["newt"], "maillot": ["tights"]}


def names_of_benchmark(class_names: Iterable[str]) -> Synonyms:
    """Return the other names of a benchmark's classes; nothing for classes of one's own."""
    keys = set(map(name_key, class_names))
    for table in (_CALTECH, _EUROSAT, _FLOWERS, _IMAGENET):
        # One class of a name may be anybody's; all of them together are not.
        if all(keys & set(map(name_key, (name, *others))) for name, others in table.items()):
            return table
    return {}


_WNID = re.compile(r"n\d{8}")


def is_wnid(name: str) -> bool:
    """Tell whether a name is a WordNet number, such as n01514668."""
    return _WNID.fullmatch(name) is not None


def imagenet_class_names() -> tuple[str, ...]:
    """Return CLIP's names of the 1000 classes, in the order of every ImageNet classifier."""
    return open_clip_words("IMAGENET_CLASSNAMES")


@cache
def imagenet_names() -> dict[str, list[str]]:
    """Return the numbers of each ImageNet class by CLIP's name for it.

    The numbers come from timm and the names, in the same order, from open_clip; without both
    there is no table, and a synonyms file has to say what the numbers mean. Two pairs of classes
    have the same name in CLIP's list: such a name has two numbers.
    """
    timm = find_spec("timm")
    if timm is None or timm.origin is None:
        return {}
    try:
        numbers = Path(timm.origin).with_name("data") / "_info" / "imagenet_synsets.txt"
        wnids = numbers.read_text("utf-8").split()
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
    r"""Read class names from a file of names; None if it is no such file but perhaps images.

    That is a text file with a name a line; a JSON list of names, or ``{"0": "name", …}``; a JSON file
    of sentences by class, whose names are taken; or a ProAPO folder.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "classes.txt")
    ...     _ = path.write_text("owl\nbat\n")
    ...     read_class_names(path)
    ('owl', 'bat')
    """
    path = Path(source)
    if path.is_dir() and (path / _LABELS).is_file():
        path = path / _LABELS
    if not path.is_file():  # a benchmark's name may end in .json too: dtd:DIR@split.json
        return None
    if path.suffix.lower() == ".txt":
        return _checked([line for line in read_text(path).splitlines() if line.strip()], path)
    if path.suffix.lower() == ".json":
        return _checked(_names(read_json(path), path), path)
    return None


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


def _checked(names: list[Any], path: Path) -> tuple[str, ...]:
    try:
        cleaned = [clean(name, where=f"class name {n}") for n, name in enumerate(names, start=1)]
    except PoolError as error:
        raise FileFormatError(f"{path}: {error}") from error
    if not cleaned:
        raise FileFormatError(f"{path} holds no class names")
    try:
        return check_class_names(cleaned)
    except PoolError as error:
        raise PoolError(f"{path}: {error}") from error


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


def read_synonyms(path: str | Path) -> dict[str, list[str]]:
    """Read ``{"name": ["other name", …], …}`` or ``{"other name": "name", …}`` from a JSON file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "synonyms.json")
    ...     _ = path.write_text('{"n01514668": "rooster", "n01514859": "hen"}')
    ...     read_synonyms(path)
    {'rooster': ['n01514668'], 'hen': ['n01514859']}
    """
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
