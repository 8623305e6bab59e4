"""Progress bars: one for one job, on a terminal and in a notebook, and nowhere else."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, TextIO
from weakref import ref

from promptboost.io import cache_folder, read_json, write_json

# What takes less is over before it is read; and of so many jobs it is known how long they took.
_WORTH_KNOWING, _KNOWN = 1.0, 200
_LARGEST = 1_000_000  # bytes of the file of these; a larger one is none of ours
# A job that takes longer than last time is not done.
_NOT_DONE = 0.99


def progress_bar(
    total: float | None,
    what: str,
    unit: str,
    *,
    shown: bool,
    form: str | None = None,
    even: bool = False,
    by_clock: bool = False,
) -> Any:
    """Return a bar with rate and time left, which goes when the job is done.

    Parameters
    ----------
    total : float or None
        How many there are, if that is known.
    what, unit : str
        The job, and what is counted.
    shown : bool
        Whether it is wanted. Where there is neither a terminal nor a notebook it is hidden all the same.
    form : str, optional
        How it is written, if not as usual; see tqdm's ``bar_format``.
    even : bool, default=False
        Tell the time left by the mean rate so far, not by that of late.
    by_clock : bool, default=False
        What is counted are the seconds themselves.

    Examples
    --------
    >>> with progress_bar(2, "painting", "walls", shown=False) as bar:
    ...     _ = bar.update(2)
    """
    # A job may be called after a folder or a file, and a terminal would obey what is in its name.
    what = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in what)
    notebook = in_notebook()
    # With widgets it is one of a notebook's own; without, text that is written over.
    if notebook and shown and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    hidden = True if not shown else False if notebook else None  # None: shown on a terminal only
    bar = tqdm(
        total=total,
        desc=what,
        unit=f" {unit}",
        disable=hidden,
        leave=False,
        bar_format=form,
        smoothing=0.0 if even else 0.3,
    )
    if not bar.disable:
        Thread(target=_tick, args=(ref(bar), by_clock), daemon=True).start()
    return bar


def _tick(shown: "ref[Any]", by_clock: bool) -> None:
    """Draw a bar once a second while it is there: time passes during a long step, too."""
    while (bar := shown()) is not None and not bar.disable:
        with bar.get_lock():  # or it might be drawn once more after it was taken away
            if not bar.disable:
                if by_clock:
                    bar.n = min(bar.format_dict["elapsed"], _NOT_DONE * bar.total)
                bar.refresh(nolock=True)
        del bar
        sleep(1.0)


def counted(total: int, what: str, unit: str) -> Iterator[int]:
    """Yield the numbers of so many steps, with a bar that is shown if somebody can see it.

    Examples
    --------
    >>> list(counted(3, "descending", "steps"))
    [0, 1, 2]
    """
    with progress_bar(total, what, unit, shown=True) as bar:
        for number in range(total):
            yield number
            bar.update()


@contextmanager
def waiting(what: str, *, shown: bool) -> Iterator[None]:
    """Show the time left of what has no parts that could be counted, by how long it took last.

    That is kept in a file beside the embedding store. The first time, only the time that passed is shown.

    Examples
    --------
    >>> with waiting("thinking", shown=False):
    ...     pass
    """
    file, start = cache_folder() / "waits.json", monotonic()
    last = _known_waits(file).get(what) if shown else None
    form = "{desc} … {elapsed}" if last is None else "{l_bar}{bar}| {elapsed}<{remaining}"
    by_clock = last is not None
    with progress_bar(last, what, "", shown=shown, form=form, by_clock=by_clock) as bar:
        was_shown = not bar.disable
        yield
        if by_clock:
            # A notebook's bar that goes short of its end stays, and is red: as if this had failed.
            with bar.get_lock():
                bar.n = bar.total
                bar.close()
    if was_shown and (seconds := monotonic() - start) >= _WORTH_KNOWING:
        known = _known_waits(file)
        known.pop(what, None)  # the newest last
        kept = dict([*known.items(), (what, round(seconds, 1))][-_KNOWN:])
        with suppress(OSError, ValueError):  # nobody's work depends on it; the second: a device
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, kept)


def _known_waits(file: Path) -> dict[str, float]:
    """Return how many seconds jobs took, the newest last; what is no such file holds none."""
    try:
        found = read_json(file) if file.stat().st_size <= _LARGEST else None
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: float(seconds)
        for name, seconds in found.items()
        if isinstance(seconds, int | float) and 0 < seconds < 1e6
    }


@contextmanager
def learning(total: int, what: str, *, shown: bool) -> Iterator[Any]:
    """Show the bar of a fit, which goes over so many views.

    Examples
    --------
    >>> with learning(100, "composing", shown=False) as bar:
    ...     _ = bar.update(100)
    """
    # Sweeps that are not needed count at once: that must not look like speed.
    with (
        progress_bar(total, what, "views", shown=shown, even=True) as bar,
        telling_of_compilation(bar),
    ):
        yield bar


@contextmanager
def telling_of_compilation(bar: Any) -> Iterator[None]:
    """Let a bar say so while functions are compiled: that takes a while, once on a machine."""
    if bar.disable:
        yield
        return
    from numba.core import event

    class Listener(event.Listener):
        before, depth = str(bar.desc), 0  # one function may have others compiled

        def on_start(self, event: Any) -> None:
            self.depth += 1
            bar.set_description_str("compiling, once on this machine")

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if not self.depth:
                bar.set_description_str(self.before)

    with event.install_listener("numba:compile", Listener()):
        yield


def bars_aside(stream: TextIO) -> AbstractContextManager[None]:
    """Take all bars away while lines are written to a terminal: else these begin behind one."""
    if (drawn := sys.modules.get("tqdm")) is None or not stream.isatty():
        return nullcontext()
    return drawn.tqdm.external_write_mode()  # type: ignore[no-any-return]


def end_bars() -> None:
    """Take away bars that are left: who is interrupted when one has just come cannot do so."""
    if (drawn := sys.modules.get("tqdm")) is not None:
        for bar in list(getattr(drawn.tqdm, "_instances", ())):
            with suppress(Exception):  # it may be half made, or its stream closed
                bar.close()


def in_notebook() -> bool:
    """Tell whether this is a notebook.

    Examples
    --------
    >>> in_notebook()
    False
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def is_interactive() -> bool:
    """Tell whether somebody watches a session of Python: in a notebook, or at a prompt."""
    return in_notebook() or hasattr(sys, "ps1")
