"""Bars are shown where somebody can see them."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import promptboost
from promptboost.progress import (
    counted,
    in_notebook,
    is_interactive,
    progress_bar,
    telling_of_compilation,
    waiting,
)


class ZMQInteractiveShell:
    """What IPython's kernel for notebooks calls its shell."""


@pytest.fixture
def notebook(monkeypatch):
    shell = ZMQInteractiveShell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("promptboost.progress.find_spec", lambda name: None)  # no widgets


def drawn(monkeypatch, *, terminal, shown=True):
    """What a job of three steps writes."""
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(3, "painting", "walls", shown=shown) as bar:
        for _ in range(3):
            bar.update()
        bar.refresh()
    return stream.getvalue()


def test_a_terminal_shows_rate_and_time_left(monkeypatch):
    text = drawn(monkeypatch, terminal=True)
    assert "painting: 100%" in text
    assert "walls/s" in text
    assert "<" in text  # the time that passed < the time left
    assert drawn(monkeypatch, terminal=True, shown=False) == ""


def test_a_file_stays_clean(monkeypatch):
    assert drawn(monkeypatch, terminal=False) == ""
    assert not is_interactive()


def test_a_notebook_shows_it_without_being_asked(monkeypatch, notebook):
    assert in_notebook()
    assert is_interactive()
    assert "painting: 100%" in drawn(monkeypatch, terminal=False)


def test_whoever_sits_at_the_prompt_sees_it(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert is_interactive()
    assert not in_notebook()


def test_all_bars_are_ours():
    """One that tqdm draws itself is not seen in a notebook without widgets, or differs from the others."""
    source = Path(promptboost.__file__).parent
    drawn_elsewhere = [
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(r"^\s*(from|import) tqdm", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert drawn_elsewhere == ["progress.py"]


def test_steps_are_counted_with_a_bar(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(counted(3, "descending", "steps")) == [0, 1, 2]
    assert "descending:" in stream.getvalue()
    assert "steps/s" in stream.getvalue()


def wait_for(text, terminal):
    """Give a bar ten seconds to draw something."""
    for _ in range(200):
        if text in terminal.getvalue():
            return
        time.sleep(0.05)


def as_terminal(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_terminal_obeys_nothing_in_the_name_of_a_job(monkeypatch):
    terminal = as_terminal(monkeypatch)
    with waiting("writing \x1b]0;mine\x07\nrün\udcff", shown=True):
        pass
    assert "writing �]0;mine��rün� … 00:00" in terminal.getvalue()
    assert not {"\x1b", "\x07", "\n", "\udcff"} & set(terminal.getvalue())


def test_what_cannot_be_counted_shows_that_time_passes(monkeypatch):
    terminal = as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        wait_for("thinking … 00:01", terminal)
    assert "thinking … 00:01" in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r")  # nothing is left of it


def test_time_passes_during_a_long_step(monkeypatch):
    terminal = as_terminal(monkeypatch)
    with progress_bar(3, "painting", "walls", shown=True) as bar:
        wait_for("[00:01<", terminal)
    assert "painting:   0%" in terminal.getvalue()
    assert "[00:01<" in terminal.getvalue()
    assert bar.disable


def test_a_bar_says_what_takes_so_long_the_first_time(monkeypatch):
    terminal = as_terminal(monkeypatch)
    numba = pytest.importorskip("numba")

    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return inner(x) + 1

    with (
        progress_bar(2, "composing", "steps", shown=True) as bar,
        telling_of_compilation(bar),
    ):
        before = terminal.getvalue()
        assert outer(1) == 3
        assert "compiling, once on this machine" in terminal.getvalue().removeprefix(before)
        assert bar.desc == "composing"
        compiled = terminal.getvalue()
        assert outer(2) == 4
        assert "compiling" not in terminal.getvalue().removeprefix(compiled)


def test_a_wait_tells_the_time_left_by_how_long_it_took_last(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "new"))
    terminal = as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        time.sleep(1.2)
    assert "<" not in terminal.getvalue()  # nothing was known yet
    known = json.loads((tmp_path / "new" / "waits.json").read_text())
    assert known == {"thinking": pytest.approx(1.2, abs=0.5)}
    (tmp_path / "new" / "waits.json").write_text('{"thinking": 100, "walking": 7}')
    terminal = as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        wait_for("00:02<", terminal)
    assert "thinking:   2%|" in terminal.getvalue()
    assert "00:02<01:3" in terminal.getvalue()
    known = json.loads((tmp_path / "new" / "waits.json").read_text())
    assert list(known) == ["walking", "thinking"]  # the newest last
    assert known["thinking"] < 20


def test_a_wait_that_takes_longer_than_last_time_is_not_done(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    (tmp_path / "waits.json").write_text('{"thinking": 0.1}')
    terminal = as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        time.sleep(1.3)
    assert "99%" in terminal.getvalue()
    assert "100%" not in terminal.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b" " * 1_000_001, b'{"thinking": "long"}', b'{"thinking": -1}', b"\xff", b"{}"],
)
def test_a_file_of_waits_that_is_none_is_no_harm(monkeypatch, tmp_path, content):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    (tmp_path / "waits.json").write_bytes(content)
    terminal = as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        pass
    assert "thinking … 00:00" in terminal.getvalue()
    assert (tmp_path / "waits.json").read_bytes() == content  # too short to be worth knowing


def test_what_nobody_sees_or_what_failed_is_not_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    monkeypatch.setattr("promptboost.progress._WORTH_KNOWING", 0.0)
    with waiting("thinking", shown=False):
        pass
    as_terminal(monkeypatch)
    with pytest.raises(ValueError, match="no idea"), waiting("thinking", shown=True):
        raise ValueError("no idea")
    assert not (tmp_path / "waits.json").exists()


def test_a_cache_that_cannot_be_written_is_no_harm(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path / "file" / "inside"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("promptboost.progress._WORTH_KNOWING", 0.0)
    as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        pass


@pytest.mark.skipif(os.name == "nt", reason="no such devices")
@pytest.mark.parametrize("place", ["pipe", "device"])
def test_what_is_no_file_in_the_place_of_the_waits_is_no_harm(monkeypatch, tmp_path, place):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    monkeypatch.setattr("promptboost.progress._WORTH_KNOWING", 0.0)
    if place == "pipe":
        os.mkfifo(tmp_path / "waits.json")
    else:
        (tmp_path / "waits.json").symlink_to(os.devnull)
    as_terminal(monkeypatch)
    with waiting("thinking", shown=True):
        pass
    assert not (tmp_path / "waits.json").is_file()


def test_a_cache_of_a_user_who_is_not_there_is_no_harm(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMPTBOOST_CACHE", "~no-such-user/cache")
    with waiting("thinking", shown=False):
        pass


def test_a_wait_that_ends_well_is_done(monkeypatch, tmp_path):
    """The bar of a notebook goes only then; short of its end it is red, and stays."""
    from tqdm.std import tqdm

    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    (tmp_path / "waits.json").write_text('{"thinking": 100}')
    as_terminal(monkeypatch)
    ends, close = [], tqdm.close

    def noted(bar):
        if not bar.disable:
            ends.append(bar.n == bar.total)
        close(bar)

    monkeypatch.setattr(tqdm, "close", noted)
    with waiting("thinking", shown=True):
        pass
    with pytest.raises(ValueError, match="no idea"), waiting("thinking", shown=True):
        raise ValueError("no idea")
    assert ends == [True, False]


def test_only_the_newest_waits_are_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(tmp_path))
    monkeypatch.setattr("promptboost.progress._WORTH_KNOWING", 0.0)
    monkeypatch.setattr("promptboost.progress._KNOWN", 2)
    as_terminal(monkeypatch)
    (tmp_path / "waits.json").write_text('{"a": 1, "b": 2}')
    with waiting("c", shown=True):
        time.sleep(0.1)
    assert list(json.loads((tmp_path / "waits.json").read_text())) == ["b", "c"]


def test_a_name_is_shown_and_not_obeyed(monkeypatch):
    terminal = as_terminal(monkeypatch)
    with waiting("loading \x1b]0;gone\x07 \n x", shown=True):
        pass
    assert "\x1b]0" not in terminal.getvalue()
    assert "\x07" not in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    assert "loading \N{REPLACEMENT CHARACTER}]0;gone" in terminal.getvalue()
