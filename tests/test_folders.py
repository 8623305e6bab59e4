"""Folders with one writer at a time, and sets of files that are swapped at once."""

import os
import subprocess
import sys
import threading
import time

import pytest

from promptboost import folders
from promptboost.errors import RunError
from promptboost.files import write_text
from promptboost.folders import FIRST, NEXT, settle, stage, staged, steady, swap, writing

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks and signals")
READY = ".promptboost-ready"


def names(folder):
    return sorted(os.listdir(folder))


HOLD = """
import sys
from pathlib import Path
from promptboost.folders import writing

with writing(Path(sys.argv[1]), "fit"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder until its input is closed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | paths
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process


def test_the_second_writer_is_told_who_the_first_is(holder, tmp_path):
    told = (
        rf"another fit \(process {holder.pid} on .*\) is writing to .*run; wait for it or stop it"
    )
    with pytest.raises(RunError, match=told), writing(tmp_path / "run", "fit", patience=0):
        raise AssertionError("two writers")
    said = []
    threading.Timer(0.2, holder.stdin.close).start()
    with writing(tmp_path / "run", "report", say=said.append):
        assert names(tmp_path / "run") == [".promptboost.lock"]
    assert [line.split(" (")[0] for line in said] == ["waiting for another fit"]


def test_a_killed_writer_holds_nothing(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert names(tmp_path / "run") == [".promptboost.lock"]
    with writing(tmp_path / "run", "fit", patience=0):
        write_text(tmp_path / "run" / "a", "")
    assert names(tmp_path / "run") == ["a"]


def test_a_writer_may_call_another_but_a_thread_is_another_writer(tmp_path):
    problems = []

    def other():
        try:
            with writing(tmp_path, "other", patience=0):
                pass
        except RunError as error:
            problems.append(str(error))

    with writing(tmp_path, "outer"), writing(tmp_path / "." / "", "inner", patience=0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(problems) == 1
    other()
    assert len(problems) == 1


def test_a_folder_that_nothing_was_written_to_is_gone_again(tmp_path):
    with writing(tmp_path / "deep" / "run", "fit"):
        assert (tmp_path / "deep" / "run").is_dir()
    assert names(tmp_path) == []
    with pytest.raises(KeyError), writing(tmp_path / "run", "fit"):
        raise KeyError
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "dangling", "hard link"])
def test_what_is_in_the_place_of_the_lock_is_neither_followed_nor_waited_for(tmp_path, kind):
    (tmp_path / "precious").write_text("mine")
    lock = tmp_path / "run" / ".promptboost.lock"
    lock.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "hard link":
        lock.hardlink_to(tmp_path / "precious")
    else:
        lock.symlink_to(tmp_path / ("precious" if kind == "link" else "nowhere"))
    with writing(lock.parent, "fit", patience=0):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
    assert names(tmp_path) == ["precious", "run"]
    assert names(tmp_path / "run") == []


HEAD = "head-x.safetensors"
OLD = {FIRST: "old", "metrics.json": "old", HEAD: "old"}
NEW = {FIRST: "new", "metrics.json": "new", "weights.json": "new"}


def content(folder):
    return {name: (folder / name).read_text() for name in names(folder)}


def old_and_new(folder):
    for name, text in OLD.items():
        write_text(folder / name, text)
    write_text(folder / "notes.txt", "mine")
    fresh = stage(folder)
    for name, text in NEW.items():
        write_text(fresh / name, text)


def test_a_swap_replaces_the_set_and_keeps_what_is_not_of_it(tmp_path):
    old_and_new(tmp_path)
    assert staged(tmp_path) == tmp_path / NEXT
    swap(tmp_path)
    assert content(tmp_path) == NEW | {"notes.txt": "mine"}
    assert staged(tmp_path) is None


class StoppedError(Exception):
    pass


def stopped_swap(folder, monkeypatch, at):
    """Swap, but stop just before the n-th change of the folder; tell whether it was stopped."""
    count = 0

    def counted(change):
        def wrapped(*given):
            nonlocal count
            count += 1
            if count == at:
                raise StoppedError
            return change(*given)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(folders.os, name, counted(getattr(os, name)))
        patch.setattr(folders, "_remove", counted(folders._remove))
        try:
            swap(folder)
        except StoppedError:
            return True
    return False


@pytest.mark.parametrize("at", range(1, 9))
def test_a_swap_that_was_stopped_anywhere_is_all_or_nothing(tmp_path, monkeypatch, at):
    old_and_new(tmp_path)
    was_stopped = stopped_swap(tmp_path, monkeypatch, at)
    assert was_stopped == (at < 8)
    settle(tmp_path)
    if at <= 2:  # the first change writes what must go, the second lets the new set count
        assert content_without_next(tmp_path) == OLD | {"notes.txt": "mine"}
        assert staged(tmp_path) is not None
        swap(tmp_path)
    assert content(tmp_path) == NEW | {"notes.txt": "mine"}


def content_without_next(folder):
    return {name: (folder / name).read_text() for name in names(folder) if name != NEXT}


def test_a_reader_reads_again_what_was_swapped_meanwhile(tmp_path):
    old_and_new(tmp_path)
    reads = []

    def read():
        first = (tmp_path / "metrics.json").read_text()
        if not reads:
            swap(tmp_path)
        reads.append((first, (tmp_path / FIRST).read_text()))
        return reads[-1]

    assert steady(tmp_path, read) == ("new", "new")
    assert reads == [("old", "new"), ("new", "new")]


def test_an_error_of_the_reader_is_raised_unless_files_were_swapped(tmp_path):
    def read():
        raise ValueError("not a number")

    with pytest.raises(ValueError, match="not a number"):
        steady(tmp_path, read)
    old_and_new(tmp_path)

    def read_head():
        if staged(tmp_path):
            swap(tmp_path)
        if (tmp_path / FIRST).read_text() == "new" and not tries:
            tries.append(1)
            return (tmp_path / HEAD).read_text()
        return "none"

    tries = []
    assert steady(tmp_path, read_head) == "none"


def test_a_set_that_counts_moves_nothing_from_or_to_elsewhere(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir(), outside.mkdir()
    (outside / "precious").write_text("mine")
    (run / READY).symlink_to(outside)
    settle(run)
    assert names(run) == []
    (run / READY).mkdir()
    (run / READY / ".gone").write_bytes(b"../outside/precious\0..\0\0.\0notes.txt\0mine\0head-../x")
    (run / READY / "report.html").symlink_to(outside / "precious")
    (run / READY / "notes.txt").write_text("not mine")
    (run / "notes.txt").write_text("mine")
    (run / "mine").mkdir()
    settle(run)
    assert names(run) == ["mine", "notes.txt"]
    assert (run / "notes.txt").read_text() == "mine"
    assert (outside / "precious").read_text() == "mine"


def test_a_folder_in_the_place_of_a_file_is_found_before_the_swap(tmp_path):
    old_and_new(tmp_path)
    (tmp_path / "weights.json").mkdir()
    with pytest.raises(RunError, match=r"weights\.json is a folder in the place of a file"):
        swap(tmp_path)
    assert (tmp_path / "metrics.json").read_text() == "old"


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    (tmp_path / NEXT).mkdir()
    (tmp_path / NEXT / "metrics.json").write_text("begun before it said what it is")
    (tmp_path / ".promptboost-0123.tmp").mkdir()
    (tmp_path / ".promptboost-4567.tmp").write_text("half")
    with writing(tmp_path, "fit"):
        pass
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(tmp_path):
    write_text(tmp_path / FIRST, "x")
    tmp_path.chmod(0o500)
    try:
        assert steady(tmp_path, (tmp_path / FIRST).read_text) == "x"
    finally:
        tmp_path.chmod(0o700)


def test_waiting_has_an_end(holder, tmp_path):
    start = time.monotonic()
    with pytest.raises(RunError), writing(tmp_path / "run", "report", patience=0.3):
        pass
    assert 0.3 <= time.monotonic() - start < 20
