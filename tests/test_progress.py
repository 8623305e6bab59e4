"""Progress: what is reported, and the bars that a terminal or a notebook shows."""

import copy
import io
import pickle
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import promptboost
from promptboost.progress import (
    ProgressBars,
    bars_aside,
    in_notebook,
    is_interactive,
    no_progress,
    stage,
)


class ZMQInteractiveShell:
    """The class name of IPython's shell in notebooks."""


@pytest.fixture
def notebook(monkeypatch):
    shell = ZMQInteractiveShell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("promptboost.progress.find_spec", lambda name: None)  # no widgets


def stderr(monkeypatch, *, terminal=True):
    """Replace it within a test: pytest sets it between fixtures and tests."""
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def paint(shown=True):
    with ProgressBars(shown) as progress, stage(progress, "painting", 3) as advance:
        for _ in range(3):
            time.sleep(0.11)  # more than tqdm waits before it draws again
            advance()


def test_a_stage_reports_its_start_its_steps_and_its_end():
    calls = []
    with stage(lambda *call: calls.append(call), "painting", 3) as advance:
        advance()
        advance(2)
    assert calls == [("painting", 0, 3), ("painting", 1, 3), ("painting", 3, 3)]


def test_a_stage_without_a_total_ends_with_what_was_counted():
    calls = []
    with stage(lambda *call: calls.append(call), "reading") as advance:
        advance(2)
    assert calls == [("reading", 0, None), ("reading", 2, None), ("reading", 2, 2)]


def test_a_stage_that_fails_ends():
    calls = []
    with pytest.raises(OSError, match="full"), stage(lambda *call: calls.append(call), "x", 9):
        raise OSError("full")
    assert calls == [("x", 0, 9), ("x", 9, 9)]


def test_a_terminal_shows_elapsed_and_remaining_time(monkeypatch):
    terminal = stderr(monkeypatch)
    paint()
    text = terminal.getvalue()
    assert re.search(r"painting:  33%\|.*\| 1/3 \[00:00<00:00\]", text)
    assert "\n" not in text
    assert text.endswith(" \r")  # nothing is left


def test_what_is_not_counted_shows_its_name(monkeypatch):
    terminal = stderr(monkeypatch)
    with ProgressBars() as progress, stage(progress, "thinking"):
        pass
    assert "thinking …" in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r")


def test_a_count_without_a_total_shows_elapsed_time(monkeypatch):
    terminal = stderr(monkeypatch)
    with ProgressBars() as progress:
        progress("reading", 7, None)
    assert "reading: 7 [00:00]" in terminal.getvalue()


def test_nothing_is_drawn_if_not_wanted_or_not_on_a_terminal(monkeypatch):
    terminal = stderr(monkeypatch)
    paint(shown=False)
    assert terminal.getvalue() == ""
    file = stderr(monkeypatch, terminal=False)
    paint()
    assert file.getvalue() == ""
    assert not is_interactive()
    monkeypatch.setattr(sys, "stderr", None)  # as in a program without a console
    paint()


def test_a_notebook_shows_bars(monkeypatch, notebook):
    assert in_notebook()
    assert is_interactive()
    stream = stderr(monkeypatch, terminal=False)
    paint()
    assert "painting:  33%" in stream.getvalue()


def test_the_prompt_of_python_is_interactive(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert is_interactive()
    assert not in_notebook()


def test_tqdm_is_imported_here_alone():
    """A bar drawn elsewhere would be missing in a notebook without widgets, or differ."""
    source = Path(promptboost.__file__).parent
    importing = [
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(r"^\s*(from|import) tqdm", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert importing == ["progress.py"]


def test_each_stage_has_one_bar(bars):
    with ProgressBars() as progress, stage(progress, "cells", 2) as advance:
        for _ in range(2):
            progress("loading", 0, None)
            progress("loading", 1, 1)
            advance()
    assert [bar.stage for bar in bars] == ["cells", "loading", "loading"]
    assert [bar.others for bar in bars] == [[], ["cells"], ["cells"]]
    assert [(bar.done, bar.total) for bar in bars] == [(2, 2), (1, 1), (1, 1)]


def test_bars_close_on_an_exception(monkeypatch):
    def fail(progress):
        progress("mixing", 1, 5)
        progress("painting", 2, 3)
        raise ValueError("dry")

    terminal = stderr(monkeypatch)
    with pytest.raises(ValueError, match="dry"), ProgressBars() as progress:
        fail(progress)
    assert "painting:" in terminal.getvalue()
    assert re.search(r"\r +\r$", terminal.getvalue())
    # Without the context, a stage that fails removes its bar.
    terminal = stderr(monkeypatch)
    with pytest.raises(ValueError, match="dry"), stage(ProgressBars(), "drying", 4):
        raise ValueError("dry")
    assert "drying:" in terminal.getvalue()
    assert re.search(r"\r +\r$", terminal.getvalue())


def test_an_interrupt_while_a_bar_is_drawn_closes_it(monkeypatch):
    from tqdm import tqdm

    terminal = stderr(monkeypatch)
    write, interrupts = terminal.write, [KeyboardInterrupt()]

    def interrupted(text):
        write(text)
        if "painting" in text and interrupts:
            raise interrupts.pop()

    terminal.write = interrupted
    with pytest.raises(KeyboardInterrupt), ProgressBars() as progress:
        progress("painting", 0, 3)
    assert "painting" in terminal.getvalue()
    assert not tqdm._instances


def test_a_stage_that_is_complete_draws_nothing(bars):
    with ProgressBars() as progress:
        progress("painting", 0, 0)
        progress("mixing", 3, 3)
    assert bars == []


def test_a_terminal_obeys_nothing_in_the_name_of_a_stage(monkeypatch):
    terminal = stderr(monkeypatch)
    with ProgressBars() as progress, stage(progress, "writing \x1b]0;mine\x07\nrün\udcff"):
        pass
    assert "writing �]0;mine��rün� …" in terminal.getvalue()
    assert not {"\x1b", "\x07", "\n", "\udcff"} & set(terminal.getvalue())


def test_lines_are_written_where_no_bar_is(monkeypatch):
    terminal = stderr(monkeypatch)
    with ProgressBars() as progress:
        progress("painting", 1, 3)
        drawn = terminal.getvalue()
        with bars_aside(terminal):
            terminal.write("the red is gone\n")
    blank, _, after = terminal.getvalue().removeprefix(drawn).partition("the red is gone\n")
    assert blank.strip() == ""
    assert blank.endswith("\r")
    assert "painting:" in after


def test_the_callbacks_can_be_copied_and_pickled():
    assert pickle.loads(pickle.dumps(no_progress)) is no_progress
    for progress in (copy.deepcopy(ProgressBars()), pickle.loads(pickle.dumps(ProgressBars()))):
        assert isinstance(progress, ProgressBars)
