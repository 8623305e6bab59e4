"""The code that a method's results come from, as a digest: when it changes, they are measured again."""

import ast
import hashlib
import inspect
from functools import cache
from pathlib import Path

from promptboost import __version__
from promptboost.methods import Group, Method

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def code_of(method: type[Method]) -> str:
    """Return the version and a digest of the code that a method's results come from."""
    package = Path(__file__).parents[2]
    # What all methods share is the version's.
    shared = {"abc", "builtins", "promptboost.methods.base", "promptboost.config"}
    kinds = [kind for kind in method.__mro__ if kind.__module__ not in shared]
    files = {Path(inspect.getsourcefile(kind) or "") for kind in kinds}
    if method.group is Group.BOOSTING:
        files |= {
            path for room in ("boosting", "training") for path in package.glob(f"{room}/**/*.py")
        }
    whole = hashlib.blake2b(digest_size=4)
    for path in sorted(files):
        whole.update(bare_code(path.read_text(encoding="utf-8")).encode())
    return f"{__version__}+{whole.hexdigest()}"


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
