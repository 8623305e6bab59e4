"""How commands fail: one line, an exit code, and no traceback unless asked for."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

import click

from promptboost.cli.output import plain
from promptboost.errors import PromptBoostError

__all__ = ["Interrupted", "guarded", "prepare_streams"]

INTERNAL, UNUSABLE, INTERRUPTED = 1, 2, 130


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C in work that can go on; the message is the command that does so.

    Not a KeyboardInterrupt, of which click would keep the message to itself.
    """


def prepare_streams() -> None:
    """Let no character and no warning of a library get in the way of the output."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning


def guarded(work: Callable[[], int], arguments: Sequence[str]) -> int:
    """Do the work of a command; turn what goes wrong into a line and an exit code."""
    as_json = "--json" in arguments
    debug = "--debug" in arguments or os.environ.get("PROMPTBOOST_DEBUG", "") not in ("", "0")
    try:
        code = work()
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except Interrupted as error:
        return _fail(f"interrupted; to go on, type: {error}", INTERRUPTED, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED, as_json)
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        return _fail(*_described(error), as_json)


def _described(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        where = error.ctx.command_path
        return f"{error.format_message()} (see {where} --help)", UNUSABLE
    if isinstance(error, click.ClickException):
        return error.format_message(), UNUSABLE
    if isinstance(error, PromptBoostError):
        return str(error), UNUSABLE
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}", UNUSABLE
    kind = type(error).__name__
    return f"{kind}: {error} (a fault in promptboost; --debug shows where)", INTERNAL


def _fail(message: str, code: int, as_json: bool) -> int:
    lines = [plain(line) for line in message.splitlines()]
    with suppress(OSError):
        if as_json:
            click.echo(json.dumps({"error": "\n".join(lines), "exit_code": code}), err=True)
        else:
            click.echo("error: " + "\n".join(lines), err=True)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show warnings that promptboost means for its user, as a line; libraries' own are left out."""
    if category.__module__.startswith("promptboost"):
        click.echo(f"note: {plain(str(message))}", err=True)
