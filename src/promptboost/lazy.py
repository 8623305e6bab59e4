"""Packages that import their public names on first use."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, from its modules and the names that each defines.

    No name may be that of a module: once imported, the module would hide it.

    Examples
    --------
    >>> on_first_use("promptboost", {"errors": ["PoolError"]})("PoolError").__name__
    'PoolError'
    """
    home = {name: module for module, names in modules.items() for name in names}

    def attribute(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return attribute
