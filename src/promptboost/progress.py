"""Progress: one callback ``(stage, done, total)``, and bars on a terminal or in a notebook."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from threading import Lock
from typing import Any, Self, TextIO

#: Called as ``progress(stage, done, total)`` with absolute counts; `total` is None while it is unknown.
#: The last call for a stage has ``done == total``.
Progress = Callable[[str, int, int | None], None]

#: Called with a number of further steps, 1 by default.
Advance = Callable[..., None]

_COUNTED = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
_UNCOUNTED = "{desc} …"
_OPEN_ENDED = "{desc}: {n_fmt} [{elapsed}]"

# Not an attribute, so that instances can be copied and pickled.
_lock = Lock()


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Ignore progress."""


@contextmanager
def stage(progress: Progress, name: str, total: int | None = None) -> Iterator[Advance]:
    """Report a stage from start to end, even if it fails; yield a function that adds to the count."""
    done = 0

    def advance(count: int = 1) -> None:
        nonlocal done
        done += count
        if done != total:
            progress(name, done, total)

    progress(name, 0, total)
    try:
        yield advance
    finally:
        last = done if total is None else total
        progress(name, last, last)


class ProgressBars:
    """Progress callback that draws one bar per stage, on terminals and in notebooks only.

    A bar disappears when its stage is complete; leaving the context removes those that remain.

    Parameters
    ----------
    shown : bool, default=True
        Whether to draw at all.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown
        self._bars: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Update the bar of a stage."""
        if not self._shown or not (in_notebook() or _stderr_is_terminal()):
            return
        complete = total is not None and done >= total
        with _lock:
            if (bar := self._bars.get(stage)) is None:
                if complete:
                    return
                bar = self._bars[stage] = _hidden_bar(stage, total)
            form = _COUNTED if total is not None else _OPEN_ENDED if done else _UNCOUNTED
            changed = (bar.total, bar.bar_format) != (total, form)
            bar.total, bar.bar_format = total, form
            bar.update(done - bar.n)
            if complete:
                bar.close()
                del self._bars[stage]
            elif changed:
                bar.refresh()

    def __enter__(self) -> Self:
        """Return the callback."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove all bars."""
        with _lock:
            while self._bars:
                with suppress(OSError, ValueError):  # the stream may be closed
                    self._bars.popitem()[1].close()


def _hidden_bar(stage: str, total: int | None) -> Any:
    """Return a bar that is drawn when it is refreshed."""
    notebook = in_notebook()
    # Without widgets, a notebook shows text that is overwritten.
    if notebook and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    return tqdm(
        total=total,
        # A stage can contain the name of a file, and terminals obey control characters.
        desc="".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in stage),
        leave=False,
        miniters=1,
        # Draw nothing yet: an interrupt must not come between drawing and registering the bar.
        delay=1e-9,
    )


def bars_aside(stream: TextIO) -> AbstractContextManager[None]:
    """Clear all bars while lines are written to a terminal."""
    if (module := sys.modules.get("tqdm")) is None or not stream.isatty():
        return nullcontext()
    return module.tqdm.external_write_mode()  # type: ignore[no-any-return]


def _stderr_is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def in_notebook() -> bool:
    """Return whether this is a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def is_interactive() -> bool:
    """Return whether Python runs in a notebook or at its prompt."""
    return in_notebook() or hasattr(sys, "ps1")
