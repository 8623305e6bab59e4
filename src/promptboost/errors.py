"""Everything promptboost raises on purpose.

All errors derive from :class:`PromptBoostError`. Those that also derive from :class:`ValueError`
are about what the caller gave; each message says what is wrong, where, and what to do next.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath


class PromptBoostError(Exception):
    """Base class of all errors promptboost raises on purpose."""


class InputError(PromptBoostError, ValueError):
    """Something the caller gave cannot be used."""


class EmbeddingError(InputError):
    """Rows of vectors are not finite, not of unit length, or of the wrong shape or type."""


class LabelError(InputError):
    """Labels do not fit the classes: one class only, a class without images, a repeated name."""


class WeightError(InputError):
    """Sample weights are negative, not finite, all zero, or of the wrong length."""


class PoolError(InputError):
    """The prompt pool is empty, or has no prompts for a class, or is badly formed."""


class SettingError(InputError):
    """An option has a value it cannot have."""


class FileFormatError(InputError):
    """A file is cut off, of a later version, or not of the kind it should be."""


class DataError(InputError):
    """Images or a manifest cannot be used."""


class EncoderError(PromptBoostError):
    """An encoder is unknown, cannot be loaded, or cannot do what is asked."""


class MissingExtraError(EncoderError, ImportError):
    """An optional part of promptboost is not installed; the message has the command to type."""


class StoreError(PromptBoostError):
    """The embedding store on disk cannot be read or written."""


class RunError(PromptBoostError):
    """A run folder cannot be used as asked: it exists, is missing a part, or was made otherwise."""


def command_name() -> str:
    """Return what to type for ``promptboost``: a program in a folder off the PATH needs its path.

    Called from Python, not from the command line, it is the plain name.
    """
    started = Path(sys.argv[0])
    if started.parts[-2:] == ("promptboost", "__main__.py"):
        return f"{_typed(Path(sys.executable))} -m promptboost"
    return _typed(started) if started.stem == "promptboost" else "promptboost"


def place(path: str | Path) -> str:
    """Write a path for people: from the current folder where it lies within.

    Examples
    --------
    >>> place(Path.cwd() / "photos" / "owls").replace(os.sep, "/")
    'photos/owls'
    >>> place("/elsewhere")
    '/elsewhere'
    """
    # Links are not followed: what a user typed is what they know.
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    inside = absolute.is_relative_to(here) and here != Path(here.anchor)
    return str(absolute.relative_to(here)) if inside else str(path)


def without_place(text: str, keep: int = 1) -> str:
    """Write a path for strangers: of an absolute one the last parts only, and others as they are.

    Before it may stand the name of a benchmark or an architecture, and after it that of a split file.

    Examples
    --------
    >>> without_place("/home/me/photos"), without_place("photos/owls"), without_place("emoji")
    ('photos', 'photos/owls', 'emoji')
    >>> without_place("dtd:/data/dtd@/home/me/split.json")
    'dtd:dtd@split.json'
    >>> without_place("/home/me/photos/owl/1.jpg", keep=2)
    'owl/1.jpg'
    """
    if "/" not in text and "\\" not in text:
        return text
    parts = re.split(r"(?<=@)|(?<=[\w-]{2}:)", text)
    return "".join(_ending(part, keep) for part in parts)


def _ending(text: str, keep: int) -> str:
    at = "@" if text.endswith("@") else ""
    path = text.removesuffix("@")
    for kind in (PurePosixPath, PureWindowsPath):
        if kind(path).is_absolute():
            return "/".join(kind(path).parts[1:][-keep:]) + at
    return f"{Path(path).name}{at}" if path.startswith("~") else text


def _typed(program: Path) -> str:
    on_path = shutil.which(program.stem)
    if on_path is not None and os.path.abspath(on_path) == os.path.abspath(program):
        return program.stem
    path = place(program)
    # A shell looks for a bare name on the PATH only.
    return shlex.quote(path if os.sep in path else os.path.join(os.curdir, path))


def few(names: Sequence[str], most: int = 5) -> str:
    """List the first few of many names.

    Examples
    --------
    >>> few(["owl", "bat", "elk"], most=2)
    'owl, bat and 1 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def count(number: int, one: str, more: str | None = None) -> str:
    """Write a number with its noun.

    Examples
    --------
    >>> count(1, "file"), count(1200, "file"), count(2, "class", "classes")
    ('1 file', '1,200 files', '2 classes')
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share as a percentage.

    Examples
    --------
    >>> percent(0.988), percent(0.988, 0), percent(None)
    ('98.8 %', '99 %', '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def human_bytes(number: int) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> human_bytes(812), human_bytes(20_000_000_000)
    ('812 B', '20.0 GB')
    """
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95:
            return f"{size:.1f} {unit}" if unit != "B" else f"{number} B"
        size /= 1000
    return f"{size:.1f} TB"


def a_type(value: object) -> str:
    """Return the name of a value's type with its article.

    Examples
    --------
    >>> a_type(3), a_type(3.0), a_type(None)
    ('an int', 'a float', 'None')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
