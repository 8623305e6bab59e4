"""The command as its user can type it."""

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["command_name", "place"]


def command_name() -> str:
    """Give what to type for ``promptboost``: a program in a folder off the PATH needs its path.

    Called from Python, not from the command line, it is the plain name.
    """
    started = Path(sys.argv[0])
    if started.parts[-3:] == ("promptboost", "cli", "__main__.py"):
        return f"{_typed(Path(sys.executable))} -m promptboost.cli"
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


def _typed(program: Path) -> str:
    found = shutil.which(program.stem)
    if found is not None and os.path.abspath(found) == os.path.abspath(program):
        return program.stem
    path = place(program)
    # A shell looks for a bare name on the PATH only.
    return shlex.quote(path if os.sep in path else os.path.join(os.curdir, path))
