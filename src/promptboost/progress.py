"""Progress bars: one for one job, on a terminal and in a notebook, and nowhere else."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any


def progress_bar(
    total: int | None,
    what: str,
    unit: str,
    *,
    shown: bool,
    leave: bool = False,
    form: str | None = None,
) -> Any:
    """Return a bar with rate and time left.

    Parameters
    ----------
    total : int or None
        How many there are, if that is known.
    what, unit : str
        The job, and what is counted.
    shown : bool
        Whether it is wanted. Where there is neither a terminal nor a notebook it is hidden all the same.
    leave : bool, default=False
        Keep it when the job is done.
    form : str, optional
        How it is written, if not as usual; see tqdm's ``bar_format``.

    Examples
    --------
    >>> with progress_bar(2, "painting", "walls", shown=False) as bar:
    ...     _ = bar.update(2)
    """
    notebook = in_notebook()
    # With widgets it is one of a notebook's own; without, text that is written over.
    if notebook and shown and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    hidden = True if not shown else False if notebook else None  # None: shown on a terminal only
    return tqdm(
        total=total, desc=what, unit=f" {unit}", disable=hidden, leave=leave, bar_format=form
    )


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


def waiting(what: str, *, shown: bool) -> Any:
    """Return a line that stands while something is done whose parts cannot be counted.

    Examples
    --------
    >>> with waiting("thinking", shown=False):
    ...     pass
    """
    return progress_bar(None, what, "", shown=shown, form="{desc} …")


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
