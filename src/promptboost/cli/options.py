"""Settings of a fit as options of a command: names, types and help come from the configuration."""

from collections.abc import Callable, Iterable
from typing import Any

import click

from promptboost.config import PRESETS, FitConfig, Setting, settings_of

__all__ = ["config_options"]


class _NumberOrAll(click.ParamType[Any]):
    name = "N|all"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "all" or isinstance(value, int):
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor 'all'", param, ctx)


def config_options(
    names: Iterable[str] | None = None, *, presets: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that adds options for settings; what is not typed is None."""
    settings = settings_of(FitConfig)
    chosen = [settings[name] for name in (settings if names is None else names)]

    def add(command: Any) -> Any:
        for setting in reversed(chosen):  # the last decorator to be applied is the first option
            command = _option(setting, presets=presets)(command)
        return command

    return add


def _option(setting: Setting, *, presets: bool) -> Callable[[Any], Any]:
    name = setting.name.replace("_", "-")
    kind: Any = setting.kind
    if setting.none == "all":
        kind = _NumberOrAll()
    elif setting.choices:
        kind = click.Choice(setting.choices)
    elif setting.file:
        kind = click.Path()
    if setting.kind is bool:
        return click.option(f"--{name}/--no-{name}", default=None, help=_help(setting, presets))
    return click.option(f"--{name}", type=kind, help=_help(setting, presets))


def _help(setting: Setting, presets: bool) -> str:
    composer = f"Only for the {setting.only_for} composer. " if setting.only_for else ""
    default = f"Default: {setting.default_text}"
    paper = PRESETS["paper"].get(setting.name, setting.default)
    if presets and paper != setting.default:
        default += f"; {paper} with --preset paper"
    return f"{setting.help} {composer}{default}."
