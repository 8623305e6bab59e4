"""How commands speak: results on stdout, notes on stderr, one line and an exit code where they fail."""

import functools
import json
import logging
import os
import shlex
import sys
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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

_CURVE = 50  # letters of a curve
_LEAST_ROOM = 24  # columns in which a sentence can be read
_INDENT = 4  # of a cell in a line of its own
_BARS = "▁▂▃▄▅▆▇█"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, direction marks, surrogates, line ends
# What a formula of a spreadsheet begins with; the wide ones are read so in Japanese.
_FORMULA = (*"=+-@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
JOINERS = "\u200c\u200d"  # shape letters and emoji; kept where programs read the names


@dataclass(frozen=True)
class Output:
    """Where a command's words go."""

    json: bool = False  # one JSON object on stdout instead of text
    quiet: bool = False  # no notes, no progress bars
    progress: Progress = no_progress

    def note(self, text: str) -> None:
        """Write a remark to stderr."""
        if not self.quiet:
            echo(plain(text), err=True)

    def result(self, record: Any, text: str | Callable[[], str]) -> None:
        """Print the result, as JSON or as text."""
        if self.json:
            echo(json_line(record))
        else:
            echo(text if isinstance(text, str) else text())


def speaks(command: Command) -> Command:
    """Add the options ``--json``, ``--quiet`` and ``--debug``, and pass `out` to the command.

    The options about embeddings are passed as one mapping `opening`: the keyword arguments `cache`,
    `device`, `progress` and, where there is that option, `allow_download`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--quiet", "-q", is_flag=True, help="No notes and no progress bars.")
    @click.option("--debug", is_flag=True, hidden=True, expose_value=False)
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        _ask_for_encoders(options.get("encoder") or options.get("encoders") or ())
        with ProgressBars(shown=not (quiet or as_json)) as progress:
            if "no_cache" in options:
                opening = {"cache": not options.pop("no_cache"), "progress": progress}
                names = options.keys() & {"device", "allow_download"}
                options["opening"] = opening | {name: options.pop(name) for name in names}
            return command(*args, out=Output(as_json, quiet, progress), **options)

    return wrapped  # type: ignore[return-value]


def _ask_for_encoders(named: str | Sequence[str]) -> None:
    """Begin to ask a hub for encoders that are typed, before a command loads what it needs."""
    names = [named] if isinstance(named, str) else named
    if any("/" in name for name in names):
        from promptboost.encoders.openclip.weights import ask_ahead

        ask_ahead(names)


class _ReaderGoneError(Exception):
    """Nobody reads the output any more; not an OSError, with which click would leave by itself."""


def echo(text: str, *, err: bool = False, keep: str = "") -> None:
    """Write lines: the one place where words leave, without what a terminal would obey."""
    shown = "\n".join(plain(line, keep) for line in text.split("\n"))
    try:
        with bars_aside(sys.stderr if err else sys.stdout):
            click.echo(shown, err=err)
    except BrokenPipeError:
        if not err:
            raise _ReaderGoneError from None
    except (OSError, ValueError):  # full, or closed
        if not err:
            raise


def csv_line(cells: Sequence[str]) -> None:
    """Write one line of a CSV file, without what a terminal or a spreadsheet would obey."""
    import csv
    import io

    line = io.StringIO()
    writer = csv.writer(line, lineterminator="")
    writer.writerow(_no_formula(plain(cell, JOINERS)) for cell in cells)
    echo(line.getvalue(), keep=JOINERS)


def _no_formula(cell: str) -> str:
    """Put an apostrophe before what a spreadsheet would work out; a number is what it is."""
    if not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def on_terminal() -> bool:
    """Tell whether somebody sees the output as it comes."""
    return sys.stdout.isatty()


def json_line(found: Any) -> str:
    """Write a result as JSON in ASCII, controls escaped; that of deletion too, which JSON allows."""
    return json.dumps(found, allow_nan=False).replace("\x7f", "\\u007f")


def plain(text: str, keep: str = "") -> str:
    """Take out what a terminal would obey instead of show."""
    if text.isascii() and text.isprintable():
        return text
    hidden = "\N{REPLACEMENT CHARACTER}"
    return "".join(
        hidden if unicodedata.category(c) in _HIDDEN and c not in keep else c for c in text
    )


def typed(*words: str) -> str:
    """Write a command of promptboost so that it can be pasted: a path may hold spaces."""
    return f"{plain(command_name())} {shlex.join(plain(word) for word in words)}"


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Lay out titles and what is said of each; on a terminal, long words go on below each other."""
    return table(["", ""], [[f"{title:<11}", said] for title, said in rows], left=(0, 1))[1:]


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Lay out rows: the columns in `left` to the left, the others to the right.

    On a terminal, words of a last column to the left go on below each other where it would be too wide,
    or in lines of their own where little room is left beside the other columns.
    """
    clean = [[plain(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(map(_width, column)) for column in zip(*clean, strict=True)]
    last = len(headers) - 1
    before = sum(widths[:-1]) + 2 * last
    columns = get_terminal_size().columns if on_terminal() and last in left else 0
    indent = before if columns - before >= _LEAST_ROOM else _INDENT
    room = columns - indent
    lines = []
    for row in clean:
        cells = [_padded(cell, widths[i], left=i in left) for i, cell in enumerate(row[:-1])]
        wide = room >= _LEAST_ROOM and before + _width(row[-1]) > columns
        parts = wrap(row[-1], room, break_long_words=False) if wide else row[-1:]
        if wide and indent != before:
            parts.insert(0, "")
        cells.append(_padded(parts[0], widths[-1], left=last in left))
        lines += ["  ".join(cells).rstrip(), *(" " * indent + part for part in parts[1:])]
    return "\n".join(lines)


def prediction_table(predictions: "Iterable[Prediction]", *, abstain: bool) -> str:
    """Lay out predictions; with `abstain`, a column marks the unsure ones."""
    rows = []
    for prediction in predictions:
        top = ", ".join(
            f"{choice.class_name} {percent(choice.probability)}" for choice in prediction.top
        )
        answer = top if prediction.error is None else f"! {prediction.error}"
        # A column of its own, so that a class may be called "unsure".
        mark = ["unsure" if prediction.unsure else ""] if abstain else []
        rows.append([prediction.image, *mark, answer])
    headers = ["image", "", "best guess"] if abstain else ["image", "answer"]
    return table(headers, rows, left=range(len(headers)))


def evaluation_summary(figures: Mapping[str, Any]) -> str:
    """Lay out what :func:`~promptboost.run.evaluate.evaluate_run` returns."""
    methods: Sequence[Mapping[str, Any]] = figures["methods"]
    accuracies = [
        [m["label"], percent(m["accuracy"]), percent(m["class_accuracy"])] for m in methods
    ]
    parts = [table(["", "accuracy", "mean of classes"], accuracies)]
    learned = figures["learned_from"]
    for method in methods:
        if method["unseen_accuracy"] is not None:
            images = "image that was" if learned == 1 else "images that were"
            unseen = percent(method["unseen_accuracy"])
            parts[0] += (
                f"\n{method['label']} {unseen} without the {learned} held-out {images} learned from"
            )
    if sure := figures.get("sure"):
        unsure = figures["images"] - sure["answered"]
        parts.append(
            f"boosted at {sure['min_probability']:g}: {percent(sure['accuracy'])} right on "
            f"{percent(sure['coverage'])} of images (answered {sure['answered']}, unsure {unsure})"
        )
    per_class = [
        [
            row["class"],
            str(row["count"]),
            *(percent(row["accuracy"][method["name"]]) for method in methods),
        ]
        for row in figures["per_class"]
    ]
    parts.append(table(["class", "images", *(method["label"] for method in methods)], per_class))
    heading = f"{figures['images']} images, "
    if held_out := figures.get("held_out"):
        final = held_out["part"] == "final"
        looks = held_out["final_looks" if final else "looks"]
        heading += "held out and kept back, " if final else "held out, one part of them, "
        heading += f"looked at {looks} {'time' if looks == 1 else 'times'}, "
    return "\n\n".join([f"{heading}encoder {plain(figures['encoder'])}", *parts])


def transfer_summary(run: Path, moved: Mapping[str, Any]) -> str:
    """Lay out what :func:`~promptboost.run.transfer.transfer_run` returns."""
    heading = f"encoder {plain(moved['encoder'])}"
    if moved["images"]:
        heading += f", {moved['images']} images, {moved['images_are']}"
    if moved["note"]:
        heading += f"\n{plain(moved['note'])}"
    accuracy, text = moved["accuracy"], "boosted text of this run"
    labels = {
        "zero-shot": "zero-shot, one template",
        "zero-shot-80": "mean of the templates",
        "pool-mean": "mean of the whole pool",
        "text": text,
        "promptboost": "the same with a residual" if "text" in accuracy else text,
    }
    rows = [[label, percent(accuracy[name])] for name, label in labels.items() if name in accuracy]
    command = typed("predict", str(run), "IMAGES", "--encoder", moved["encoder"])
    return f"{heading}\n\n{table(['', 'accuracy'], rows)}\n\npredict  {command}"


def sparkline(values: Sequence[float]) -> str:
    """Draw a curve in one line of text."""
    step = max(1.0, len(values) / _CURVE)
    shown = [values[min(len(values) - 1, int(i * step))] for i in range(min(_CURVE, len(values)))]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C in work that can go on; the message is the command that does so.

    Not a KeyboardInterrupt, of which click would keep the message to itself.
    """


def prepare_streams() -> None:
    """Let no character, no closed stream and no warning of a library get in the way of the output."""
    for name, way in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Else the next file that is opened would get the number, and whatever is printed.
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(os.devnull, way, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    logging.lastResort = _LogLines(logging.WARNING)
    sys.excepthook = _show_traceback


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
    except (BrokenPipeError, _ReaderGoneError):
        _drop(sys.stdout)
        return 0
    except SystemExit as leaving:
        # With it click answers a pipe that broke somewhere else, such as that of a progress bar.
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
            _drop(sys.stdout, unless_sound=True)
        return _fail(message, code, as_json)


def _was_interrupted(error: BaseException) -> bool:
    """Tell whether Ctrl-C is behind an error: compiled modules that it stops raise one of their own."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__ or error
    return False


def _drop(stream: TextIO, *, unless_sound: bool = False) -> None:
    """Send what is still buffered nowhere: the reader has seen enough, or the disk is full."""
    with suppress(OSError, ValueError):
        if unless_sound:
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
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}", UNUSABLE
    kind = type(error).__name__
    return f"{kind}: {error} (a fault in promptboost; --debug shows where)", INTERNAL


def _fail(message: str, code: int, as_json: bool) -> int:
    lines = [plain(line) for line in message.splitlines()]
    if as_json:
        echo(json_line({"error": "\n".join(lines), "exit_code": code}), err=True)
    else:
        echo("error: " + "\n".join(lines), err=True)
    return code


class _LogLines(logging.Handler):
    """Print log records that no other handler takes as lines, next to progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or several."""
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
    """Show warnings that promptboost means for its user, as a line; libraries' own are left out."""
    if category.__module__.startswith("promptboost"):
        echo(f"note: {plain(str(message))}", err=True)


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show where an error comes from, as Python does, but with the names of strangers escaped."""
    from traceback import format_exception

    echo("".join(format_exception(kind, error, trace)).rstrip("\n"), err=True)
