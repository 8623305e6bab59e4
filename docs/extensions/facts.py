"""Facts that the code knows, written into pages: commands, settings, numbered checks, the schema.

A page asks for them with a line such as ``<!-- facts: commands -->``, so that no page repeats by hand
what a later version would make untrue.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import click

# As GitHub shows a figure in two manners; the site knows which one its reader chose.
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)"(?P<more>[^>]*)>\s*</picture>'
)
MARK = re.compile(r"^<!-- facts: (\w+) -->$", re.MULTILINE)


def commands() -> Iterator[str]:
    """Write every command with its arguments and options, in the order of ``promptboost --help``."""
    from promptboost.cli import promptboost

    with click.Context(promptboost, info_name="promptboost") as ctx:
        for name in promptboost.list_commands(ctx):
            command = promptboost.get_command(ctx, name)
            assert command is not None
            yield from _command(command, name, ctx, depth=2)


def _command(command: click.Command, name: str, parent: click.Context, depth: int) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as ctx:
        yield f"{'#' * depth} {ctx.command_path.removeprefix('promptboost ')}\n"
        yield _prose(command.help or command.get_short_help_str())
        usage = command.collect_usage_pieces(ctx)
        yield f"```text\n{ctx.command_path} {' '.join(usage)}\n```\n"
        rows = [row for part in command.get_params(ctx) if (row := _parameter(part, ctx))]
        if rows:
            yield ":::{dropdown} Options\n"
            yield "| option | what |\n|---|---|"
            yield from rows
            yield ":::\n"
        yield _prose(command.epilog or "")
        if isinstance(command, click.Group):
            for child in command.list_commands(ctx):
                found = command.get_command(ctx, child)
                assert found is not None
                yield from _command(found, child, ctx, depth + 1)


def _parameter(parameter: click.Parameter, ctx: click.Context) -> str | None:
    record = parameter.get_help_record(ctx)
    if record is None or "--help" in parameter.opts:
        return None
    names, what = record
    return f"| `{_cell(names)}` | {_cell(_escaped(what))} |"


def _prose(text: str) -> str:
    """Write click's help as Markdown: what it keeps as it stands is a block of code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b"):
            parts.append(f"```text\n{inspect.cleandoc(paragraph[1:])}\n```")
        elif paragraph.strip():
            parts.append(_escaped(" ".join(paragraph.split())))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Write plain text as Markdown, options as code: two hyphens would become a dash."""
    parts = re.split(r"((?<![\w-])--[a-z][a-z-]*|`[^`]+`)", text)
    parts[::2] = (re.sub(r"([<>*_\[\]{}$`])", r"\\\1", part) for part in parts[::2])
    parts[1::2] = (f"`{part.strip('`')}`" for part in parts[1::2])
    return "".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def settings() -> Iterator[str]:
    """Write every setting of a fit with its default."""
    from promptboost.config import FitConfig, settings_of

    yield "| name | default | what |\n|---|---|---|"
    for name, setting in settings_of(FitConfig).items():
        default = "–" if setting.default is None else f"`{setting.default}`"
        yield f"| `{name}` | {default} | {_cell(_escaped(setting.help))} |"


def checks() -> Iterator[str]:
    """Write the numbered checks of a run."""
    from promptboost.report.checks import RULES

    for rule in RULES:
        yield f"### {rule.code}: {rule.title}\n"
        yield f"*{rule.severity}.* {_escaped(rule.meaning)}\n"


def pool_checks() -> Iterator[str]:
    """Write the numbered findings of ``promptboost pool check``."""
    from promptboost.pool.lint import RULES

    yield "| number | kind | what | what it means |\n|---|---|---|---|"
    for rule in RULES:
        meaning = _cell(_escaped(rule.meaning))
        yield f"| {rule.code} | {rule.severity} | {_escaped(rule.title)} | {meaning} |"


def methods() -> Iterator[str]:
    """Write the names that ``compare --methods`` takes."""
    from promptboost.methods.registry import METHODS

    yield "| name | what it is |\n|---|---|"
    for record in METHODS:
        yield f"| `{record.name}` | {_cell(_escaped(record.label))} |"


def schema() -> Iterator[str]:
    """Write the fields of ``ensemble.json``, and the schema itself."""
    folder = resources.files("promptboost.model") / "schemas"
    text = (folder / "ensemble-v2.json").read_text(encoding="utf-8")
    whole: dict[str, Any] = json.loads(text)
    yield "| field | needed | what |\n|---|---|---|"
    yield from _fields(whole, whole, "")
    yield "\n:::{dropdown} The JSON Schema of version 2\n"
    yield f"```json\n{text}```\n:::\n"


def _fields(node: dict[str, Any], whole: dict[str, Any], before: str) -> Iterator[str]:
    for name, part in node.get("properties", {}).items():
        field = _resolved(part, whole)
        needed = "yes" if name in node.get("required", ()) else ""
        what = part.get("description") or field.get("description") or _kind(field)
        yield f"| `{before}{name}` | {needed} | {_cell(_escaped(what))} |"
        if field.get("type") == "array":
            yield from _fields(_resolved(field["items"], whole), whole, f"{before}{name}[].")


def _resolved(part: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    reference = part.get("$ref")
    return whole["$defs"][reference.removeprefix("#/$defs/")] if reference else part


def _kind(field: dict[str, Any]) -> str:
    if "const" in field:
        return f"always {field['const']}"
    kind = field.get("type", "")
    return " or ".join(kind) if isinstance(kind, list) else kind


FACTS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "settings": settings,
    "checks": checks,
    "pool_checks": pool_checks,
    "methods": methods,
    "schema": schema,
}


def fill(text: str) -> str:
    """Return a page with what it asks for in place of the marks, in the manner of the site."""
    text = MARK.sub(lambda found: "\n".join(FACTS[found[1]]()), text)
    return PICTURE.sub(_figures, text)


def _figures(found: re.Match[str]) -> str:
    alt = re.search(r'alt="([^"]*)"', found["more"])
    shown = " ".join(alt[1].split()) if alt else ""
    images = "\n".join(
        f"```{{image}} {found[manner]}\n:class: only-{manner}\n:alt: {shown}\n```\n"
        for manner in ("light", "dark")
    )
    # A class of the theme: what scrolls on a phone can be scrolled with the keyboard.
    return f":::{{div}} figure-by-theme pst-scrollable-table-container\n{images}:::\n"


def setup(app: Any) -> dict[str, bool]:
    """Have Sphinx fill each page as it reads it."""

    def filled(_: Any, __: str, source: list[str]) -> None:
        source[0] = fill(source[0])

    app.connect("source-read", filled)
    return {"parallel_read_safe": True}
