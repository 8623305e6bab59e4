"""Output of commands: results on stdout, notes on stderr, errors as one line and an exit code."""

import functools
import json
import logging
import os
import shlex
import sys
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from promptboost.errors import PromptBoostError, command_name
from promptboost.errors import percent as percent
from promptboost.progress import Progress, ProgressBars, bars_aside, no_progress

if TYPE_CHECKING:
    from promptboost.model.prediction import Prediction

INTERNAL, UNUSABLE, INTERRUPTED = 1, 2, 130

Command = TypeVar("Command", bound=Callable[..., Any])

_LEAST_ROOM = 24  # columns needed to wrap a cell next to the others
_INDENT = 4  # of a cell on a separate line
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, direction marks, surrogates, line ends
# First characters of spreadsheet formulas; the wide ones work in Japanese.
_FORMULA = (*"=+-@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
JOINERS = "\u200c\u200d"  # part of some letters and emoji; kept in output for programs


@dataclass(frozen=True)
class Output:
    """Output settings of a command."""

    json: bool = False  # one JSON object on stdout instead of text
    quiet: bool = False  # no notes, no progress bars
    progress: Progress = no_progress

    def note(self, text: str) -> None:
        """Print a note to stderr."""
        if not self.quiet:
            echo(plain(text), err=True)

    def note_bad_images(self, bad_images: Iterable[Mapping[str, Any]]) -> None:
        """Print a note for each unreadable image."""
        for bad in bad_images:
            self.note(f"left out {bad['path']}: {bad['reason']}")

    def result(self, record: Any, text: str | Callable[[], str]) -> None:
        """Print the result, as JSON or as text."""
        if self.json:
            echo(json_line(record))
        else:
            echo(text if isinstance(text, str) else text())


def with_output(command: Command) -> Command:
    """Add the options ``--json``, ``--quiet`` and ``--debug``, and pass `out` to the command.

    The embedding options are passed as one mapping `opening` with the keys `cache`, `device`, `progress`
    and, if the command has that option, `allow_download`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--quiet", "-q", is_flag=True, help="No notes and no progress bars.")
    @click.option("--debug", is_flag=True, hidden=True, expose_value=False)
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        with ProgressBars(shown=not (quiet or as_json)) as progress, ExitStack() as loading:
            names = options.keys() & {"batch_size", "precision"}
            if any((running := {name: options.pop(name) for name in names}).values()):
                from promptboost.encoders.registry import encoder_defaults

                loading.enter_context(encoder_defaults(**running))
            if "no_cache" in options:
                opening = {"cache": not options.pop("no_cache"), "progress": progress}
                names = options.keys() & {"device", "allow_download"}
                options["opening"] = opening | {name: options.pop(name) for name in names}
            return command(*args, out=Output(as_json, quiet, progress), **options)

    return wrapped  # type: ignore[return-value]


class _ReaderGoneError(Exception):
    """Stdout was closed by its reader. Not an OSError, which click would handle itself."""


def echo(text: str, *, err: bool = False, keep: str = "") -> None:
    """Print lines without control characters, except those in `keep`."""
    shown = "\n".join(plain(line, keep) for line in text.split("\n"))
    try:
        with bars_aside(sys.stderr if err else sys.stdout):
            click.echo(shown, err=err)
    except (OSError, ValueError) as error:  # full, or closed
        if err:
            _drop(sys.stderr)
        elif isinstance(error, BrokenPipeError):
            raise _ReaderGoneError from None
        else:
            raise


def csv_line(cells: Sequence[str]) -> None:
    """Print one line of CSV without control characters and spreadsheet formulas."""
    import csv
    import io

    line = io.StringIO()
    writer = csv.writer(line, lineterminator="")
    writer.writerow(_no_formula(plain(cell, JOINERS)) for cell in cells)
    echo(line.getvalue(), keep=JOINERS)


def _no_formula(cell: str) -> str:
    """Put an apostrophe before a spreadsheet formula, but not before a number."""
    if not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def json_line(record: Any) -> str:
    """Return a record of JSON types, paths, dataclasses and structs as JSON.

    The result is ASCII with all control characters escaped, including DEL.
    """
    return json.dumps(record, allow_nan=False, default=_builtins).replace("\x7f", "\\u007f")


def _builtins(value: Any) -> Any:
    import msgspec

    return str(value) if isinstance(value, Path) else msgspec.to_builtins(value, enc_hook=str)


def plain(text: str, keep: str = "") -> str:
    """Replace control characters, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    hidden = "\N{REPLACEMENT CHARACTER}"
    return "".join(
        hidden if unicodedata.category(c) in _HIDDEN and c not in keep else c for c in text
    )


def typed(*words: str) -> str:
    """Return a promptboost command to paste, with quoted paths."""
    return f"{plain(command_name())} {shlex.join(plain(word) for word in words)}"


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Format titles with their texts; a terminal wraps long texts."""
    return table(["", ""], [[f"{title:<11}", text] for title, text in rows], left=(0, 1))[1:]


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Format a table with the columns in `left` left-aligned and the others right-aligned.

    On a terminal, a left-aligned last column is wrapped, or moved to separate lines if there is not enough
    room next to the other columns.
    """
    cells = [[plain(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    last = len(headers) - 1
    start = sum(widths[:-1]) + 2 * last  # of the last column
    columns = get_terminal_size().columns if on_terminal() and last in left else 0
    indent = start if columns - start >= _LEAST_ROOM else _INDENT
    room = columns - indent
    lines = []
    for row in cells:
        padded = [_padded(cell, widths[i], left=i in left) for i, cell in enumerate(row[:-1])]
        too_wide = room >= _LEAST_ROOM and start + _width(row[-1]) > columns
        wrapped = wrap(row[-1], room, break_long_words=False) if too_wide else row[-1:]
        if too_wide and indent != start:
            wrapped.insert(0, "")
        padded.append(_padded(wrapped[0], widths[-1], left=last in left))
        lines += ["  ".join(padded).rstrip(), *(" " * indent + line for line in wrapped[1:])]
    return "\n".join(lines)


def prediction_table(predictions: "Iterable[Prediction]", *, abstain: bool) -> str:
    """Format predictions; with `abstain`, a column marks those that are unsure or rejected."""
    rows = []
    for prediction in predictions:
        top = ", ".join(
            f"{choice.class_name} {percent(choice.probability)}" for choice in prediction.top
        )
        answer = top if prediction.error is None else f"! {prediction.error}"
        if isinstance(prediction.prediction_set, tuple):
            answer += f"  {{{', '.join(prediction.prediction_set)}}}"
        # A separate column, because a class may be called "unsure".
        rejected = prediction.rejected is True
        mark = (
            ["rejected" if rejected else "unsure" if prediction.unsure else ""] if abstain else []
        )
        rows.append([prediction.image, *mark, answer])
    headers = ["image", "", "best guess"] if abstain else ["image", "predicted"]
    return table(headers, rows, left=range(len(headers)))


def part_lines(share: Any, done: str, problems: Iterable[str]) -> list[str]:
    """Return the lines printed for one part of a comparison."""
    merge = "when all parts are done, run the same command with --merge instead of --shard to write tables"
    return [f"part {share} is done: {done}", *problems, merge]


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C in resumable work; the message is the command that resumes it.

    Not a KeyboardInterrupt, because click drops its message.
    """


def prepare_streams() -> None:
    """Make output robust to closed streams, unencodable characters and warnings of libraries."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Otherwise the next opened file would get the descriptor, and the output.
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Print a question mark if a character cannot be encoded.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    logging.lastResort = _LogLines(logging.WARNING)
    sys.excepthook = _show_traceback


def guarded(work: Callable[[], int], arguments: Sequence[str]) -> int:
    """Run a command; print an exception as one line and return the exit code."""
    as_json = "--json" in arguments
    debug = "--debug" in arguments or os.environ.get("PROMPTBOOST_DEBUG", "") not in ("", "0")
    try:
        code = work()
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except Interrupted as error:
        return _fail(f"interrupted; to resume, type: {error}", INTERRUPTED, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED, as_json)
    except (BrokenPipeError, _ReaderGoneError):
        _drop(sys.stdout)
        return 0
    except SystemExit as leaving:
        # click exits if another pipe breaks, such as that of a progress bar.
        if isinstance(leaving.__context__, BrokenPipeError):
            _drop(sys.stdout)
            return 0
        raise
    except Exception as error:
        if _was_interrupted(error):
            return _fail("interrupted", INTERRUPTED, as_json)
        if debug:
            raise
        message, code = _described(error)
        if isinstance(error, OSError):
            _drop(sys.stdout, unless_writable=True)
        return _fail(message, code, as_json)


def _was_interrupted(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error: compiled modules may raise another exception."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, KeyboardInterrupt):
        link = link.__cause__ or link.__context__
    return link is not None


def _drop(stream: TextIO, *, unless_writable: bool = False) -> None:
    """Discard buffered output: the reader has gone or the disk is full."""
    with suppress(OSError, ValueError):
        if unless_writable:
            try:
                stream.flush()
                return
            except OSError:
                pass
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _described(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        where = error.ctx.command_path
        return f"{error.format_message()} (see {where} --help)", UNUSABLE
    if isinstance(error, click.ClickException):
        return error.format_message(), UNUSABLE
    if isinstance(error, PromptBoostError):
        return str(error), UNUSABLE
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, UNUSABLE
    kind = type(error).__name__
    return f"{kind}: {error} (a bug in promptboost; --debug shows where)", INTERNAL


def _fail(message: str, code: int, as_json: bool) -> int:
    lines = [plain(line) for line in message.splitlines()]
    if as_json:
        echo(json_line({"error": "\n".join(lines), "exit_code": code}), err=True)
    else:
        echo("error: " + "\n".join(lines), err=True)
    return code


class _LogLines(logging.Handler):
    """Print log records without another handler as lines, next to progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print warnings of promptboost as notes; ignore those of libraries."""
    if category.__module__.startswith("promptboost"):
        echo(f"note: {plain(str(message))}", err=True)


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback like Python, without control characters."""
    from traceback import format_exception

    echo("".join(format_exception(kind, error, trace)).rstrip("\n"), err=True)
