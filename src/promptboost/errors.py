"""Exceptions of promptboost, and formatting of messages.

All exceptions derive from :class:`PromptBoostError`, those about invalid input also from
:class:`ValueError`.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath


class PromptBoostError(Exception):
    """Base class of all exceptions of promptboost."""

    def __str__(self) -> str:
        # Messages quote names from files, which may be a megabyte long.
        return re.sub(r"(\S{200})\S{800,}", r"\1…", super().__str__())


class InputError(PromptBoostError, ValueError):
    """An input is invalid."""


class EmbeddingError(InputError):
    """Embeddings are not finite, all zero, not of unit length, or of the wrong shape or type."""


class EmbeddingLengthWarning(UserWarning):
    """Warns that embeddings whose lengths are far from one are scaled to length one."""


class ClassPriorsWarning(UserWarning):
    """Warns that the class frequencies that predictions are adjusted to are unreliable."""


class LookAlikeWarning(UserWarning):
    """Warns of class names and sentences with letters that look like others, such as a Cyrillic "с"."""


class LabelError(InputError):
    """Labels are missing or do not fit the classes: one class only, one without images, a repeated name."""


class WeightError(InputError):
    """Sample weights are negative, not finite, all zero, or of the wrong length."""


class PoolError(InputError):
    """The prompt pool is empty, has no prompts for a class, or is malformed."""


class SettingError(InputError):
    """A setting has an invalid value."""


class FileFormatError(InputError):
    """A file is truncated, of a later version, or in another format."""


class DataError(InputError):
    """Images or a manifest are invalid."""


class EncoderError(PromptBoostError):
    """An encoder is unknown, cannot be loaded, or lacks a capability."""


class MissingExtraError(EncoderError, ImportError):
    """An optional dependency is not installed; the message contains the command to install it."""


class StoreError(PromptBoostError):
    """The embedding store on disk cannot be read or written."""


class RunError(PromptBoostError):
    """A run folder already exists, is incomplete, or has other settings."""


def command_name() -> str:
    """Return the command for ``promptboost``, with its path if it is not on the PATH.

    In Python programs, return the plain name.
    """
    started = Path(sys.argv[0])
    if started.parts[-2:] == ("promptboost", "__main__.py"):
        return f"{_typed(Path(sys.executable))} -m promptboost"
    return _typed(started) if started.stem == "promptboost" else "promptboost"


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the source folder if promptboost came from one."""
    import json
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    source, editable = "promptboost", False
    with suppress(metadata.PackageNotFoundError):
        record = json.loads(metadata.distribution(source).read_text("direct_url.json") or "{}")
        url = urlsplit(record.get("url", ""))
        if url.scheme == "file":
            source = place(url2pathname(url.path))
            editable = record.get("dir_info", {}).get("editable", False)
    python = Path(sys.executable)
    pip = Path(shutil.which("pip") or "")
    program = "pip" if pip.parent == python.parent else f"{_typed(python)} -m pip"
    return f"{program} install {'-e ' * editable}{shlex.quote(f'{source}[{extra}]')}"


def place(path: str | Path) -> str:
    """Return a path for messages, relative to the current folder if it is inside.

    Examples
    --------
    >>> place(Path.cwd() / "photos" / "owls").replace(os.sep, "/")
    'photos/owls'
    >>> place("/elsewhere")
    '/elsewhere'
    """
    # Do not resolve links, so that users recognize the path.
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    inside = absolute.is_relative_to(here) and here != Path(here.anchor)
    return str(absolute.relative_to(here)) if inside else str(path)


def without_place(text: str, keep: int = 1) -> str:
    """Return only the last `keep` parts of an absolute path, for publishing.

    The path may have a prefix with a benchmark or an architecture, and a suffix with a split file.

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
    paths = re.split(r"(?<=@)|(?<=[\w-]{2}:)", text)
    return "".join(_last_parts(path, keep) for path in paths)


def _last_parts(text: str, keep: int) -> str:
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
    # Shells search bare names only on the PATH.
    return shlex.quote(path if os.sep in path else os.path.join(os.curdir, path))


def few(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and the number of the others.

    Examples
    --------
    >>> few(["owl", "bat", "elk"], most=2)
    'owl, bat and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "file"), count(1200, "file"), count(2, "class", "classes")
    ('1 file', '1,200 files', '2 classes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage.

    Examples
    --------
    >>> percent(0.988), percent(0.988, 0), percent(None)
    ('98.8%', '99%', '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f}%"


def human_bytes(number: int) -> str:
    """Return a number of bytes with a unit.

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


def without_content(value: object) -> str:
    """Return a value for a message: short, and without the bytes of an image.

    Examples
    --------
    >>> without_content(1.5), without_content(b"PNG"), without_content({"bytes": b"PNG"})
    ('1.5', 'bytes', 'a dict')
    """
    if isinstance(value, bytes | bytearray):
        return "bytes"
    return repr(value)[:80] if isinstance(value, str | int | float) else a_type(value)


def a_type(value: object) -> str:
    """Return the type of a value with its article.

    Examples
    --------
    >>> a_type(3), a_type(3.0), a_type(None)
    ('an int', 'a float', 'None')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
