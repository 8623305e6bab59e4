"""Plugins of other packages: entry points, and objects by their import path."""

import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from promptboost.errors import SettingError


class PluginWarning(UserWarning):
    """An installed plugin cannot be used."""


@cache
def load_plugins(group: str) -> dict[str, object]:
    """Load what installed packages declare under an entry point group, by name.

    A plugin that cannot be loaded is named in a warning, once, and left out.
    """
    plugins: dict[str, object] = {}
    for point in entry_points(group=group):
        try:
            plugins[point.name] = point.load()
        # A plugin may fail in any way, also by leaving: the others must still work.
        except (Exception, SystemExit) as error:
            package = point.dist.name if point.dist else "unknown"
            warnings.warn(
                f"The plugin {point.name} = {point.value} of the package {package} cannot be "
                f"loaded and is left out ({type(error).__name__}: {error}). Update that package "
                "or uninstall it.",
                PluginWarning,
                stacklevel=2,
            )
    return plugins


def import_object(name: str) -> Any:
    """Import what ``package.module:Name`` names."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise SettingError(f"{name!r} does not name an object: write package.module:Name")
    try:
        target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise SettingError(
            f"cannot import {module_name!r} of {name!r}: no module named {error.name!r}. Install "
            "its package, or put its folder on PYTHONPATH"
        ) from error
    for attribute in path.split("."):
        try:
            target = getattr(target, attribute)
        except AttributeError:
            raise SettingError(f"the module {module_name} has no {path}") from None
    return target
