"""The code of a method as a digest: its results are measured again when it changes."""

import ast
import hashlib
import inspect
from functools import cache
from pathlib import Path

from promptboost import __version__
from promptboost.methods import Method
from promptboost.methods.base import Transfer

_PACKAGE = Path(__file__).parents[1]
#: Rooms whose code belongs to a method that imports it; what all methods share is the version's.
_ROOMS = ("methods", "boosting", "training")
# The residual of boosting.
_BESIDE = ("promptboost.boosting.residual", "promptboost.boosting.penalized_loss")
_SHARED = {
    *("abc", "builtins", "promptboost.config", "promptboost.methods"),
    *(
        "promptboost.methods.base",
        "promptboost.methods.registry",
        "promptboost.methods.archive",
    ),
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def code_of(method: type[Method]) -> str:
    """Return the version and a digest of the code that a method's results come from.

    That is the files of its class and all that they import of the rooms in which methods learn.
    """
    kinds = [kind for kind in method.__mro__ if kind.__module__ not in _SHARED]
    files = [Path(file) for kind in kinds if (file := _source_file(kind)) is not None]
    if method.carries_over is Transfer.EMULATED:
        files.append(_PACKAGE / "methods" / "eft.py")
    code: dict[Path, str] = {}
    while files:
        path = files.pop()
        if path not in code:
            code[path], imported = _file_code(path)
            files += imported
    whole = hashlib.blake2b(digest_size=4)
    for path in sorted(code):
        whole.update(code[path].encode())
    return f"{__version__}+{whole.hexdigest()}"


def _source_file(kind: type) -> str | None:
    """Return the file that a class is written in; None for one that was typed into a session."""
    try:
        return inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None


@cache
def _file_code(path: Path) -> tuple[str, list[Path]]:
    """Return the code of a file, and the files that it imports of the rooms in which methods learn."""
    text = path.read_text(encoding="utf-8")
    imported = []
    for node in ast.walk(ast.parse(text)):
        name = node.module if isinstance(node, ast.ImportFrom) else None
        if name is not None and name not in _SHARED:
            house, *parts = name.split(".")
            ours = house == _PACKAGE.name and bool(parts)
            if ours and (parts[0] in _ROOMS or name in _BESIDE):
                place = _PACKAGE.joinpath(*parts)
                imported.append(
                    place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
                )
    return bare_code(text), imported


def bare_code(text: str) -> str:
    r"""Return code without what decides no result: docstrings, lines of comment and blank lines.

    Examples
    --------
    >>> bare_code("def one():\n    'Return one.'\n\n    # Not two.\n    return 1")
    'def one():\n    return 1'
    """
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            words = node.body[0]
            left_out.update(range(words.lineno, (words.end_lineno or words.lineno) + 1))
    return "\n".join(
        line
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in left_out and line.strip() and not line.lstrip().startswith("#")
    )
