"""Files written atomically, folders with one writer, and sets of files that are swapped at once."""

import os
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from io import BytesIO

import pytest

from promptboost import io
from promptboost.errors import DataError, FileFormatError, InputError, PoolError, RunError
from promptboost.io import (
    FIRST,
    NEXT,
    file_stamp,
    read_bytes,
    read_json,
    read_text,
    replacing,
    settle,
    stage,
    staged,
    steady,
    swap,
    write_bytes,
    write_json,
    write_text,
    writing,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks and signals")
READY = ".promptboost-ready"


def test_writes_and_overwrites(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "erste\r\n")
    write_text(str(path), "zweite é\n")
    assert path.read_bytes() == "zweite é\n".encode()
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_interrupted_write_keeps_the_old_file_and_leaves_nothing(tmp_path, error):
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")

    def write_half():
        with replacing(path) as part:
            part.write_bytes(b"half of the n")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_interrupted_first_write_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError), replacing(tmp_path / "a.bin"):
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_unencodable_text_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_readers_see_the_old_file_until_the_end(tmp_path):
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    with replacing(path) as part:
        assert part.parent == path.parent
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    write_bytes(tmp_path / "new", b"1")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "sub" / "real")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "sub" / "real").read_bytes() == b"new"


def test_refuses_what_cannot_be_written(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        write_bytes(tmp_path / "missing" / "a", b"")
    with pytest.raises(IsADirectoryError):
        write_bytes(tmp_path, b"")
    with pytest.raises(InputError, match="not a regular file"):
        write_bytes(os.devnull, b"")
    assert os.listdir(tmp_path) == []


def test_what_is_written_is_read(tmp_path):
    write_text(tmp_path / "a.txt", "été\r\n\u2028")
    assert read_text(tmp_path / "a.txt") == "été\r\n\u2028"
    write_json(tmp_path / "a.json", {"été": ["a", 1]})
    assert read_json(tmp_path / "a.json") == {"été": ["a", 1]}


def test_what_cannot_be_read_is_named_in_the_error_asked_for(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(PoolError, match=r"a\.txt cannot be read: No such file"):
        read_text(path)
    path.write_bytes(b"caf\xe9")
    with pytest.raises(FileFormatError, match=r"a\.txt is not UTF-8 \(byte 3\)"):
        read_text(path)
    with pytest.raises(DataError, match="is not UTF-8"):
        read_text(path, error=DataError)


def test_the_stamp_changes_with_the_file(tmp_path):
    path = tmp_path / "a.txt"
    assert file_stamp(path) is None
    write_text(path, "one")
    first = file_stamp(path)
    assert file_stamp(path) == first
    write_text(path, "two")
    assert file_stamp(path) != first


def test_a_link_that_is_not_followed_is_replaced(tmp_path):
    (tmp_path / "precious").write_bytes(b"mine")
    for target in (tmp_path / "precious", tmp_path / "nowhere"):
        (tmp_path / "link").symlink_to(target)
        write_bytes(tmp_path / "link", b"new", follow=False)
        assert not (tmp_path / "link").is_symlink()
        assert (tmp_path / "link").read_bytes() == b"new"
        (tmp_path / "link").unlink()
    assert (tmp_path / "precious").read_bytes() == b"mine"


def special(path, kind):
    """Put something at a path that would hang its reader, or never end."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            here = os.getcwd()
            os.chdir(path.parent)  # the path of a socket has to be short
            server.bind(path.name)
            os.chdir(here)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_only_regular_files_are_read(tmp_path, kind):
    special(tmp_path / "a", kind)
    with pytest.raises(InputError, match="a: not a regular file"):
        read_bytes(tmp_path / "a")
    with pytest.raises(PoolError, match="a cannot be read: not a regular file"):
        read_text(tmp_path / "a")
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(tmp_path):
    (tmp_path / ".promptboost-00.tmp").write_bytes(b"")
    (tmp_path / ".promptboost-01.tmp").write_bytes(b"half")
    with replacing(tmp_path / "a") as part:
        part.write_bytes(b"whole")
        assert os.listdir(tmp_path) == [part.name]
        write_bytes(tmp_path / "b", b"")
        assert part.exists()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


# --- folders ------------------------------------------------------------------------------------


def names(folder):
    return sorted(os.listdir(folder))


HOLD = """
import sys
from pathlib import Path
from promptboost.io import writing

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
            patch.setattr(io.os, name, counted(getattr(os, name)))
        patch.setattr(io, "remove", counted(io.remove))
        try:
            swap(folder)
        except StoppedError:
            return True
    return False


@pytest.mark.parametrize("at", range(1, 8))
def test_a_swap_that_was_stopped_anywhere_is_all_or_nothing(tmp_path, monkeypatch, at):
    old_and_new(tmp_path)
    was_stopped = stopped_swap(tmp_path, monkeypatch, at)
    assert was_stopped == (at < 7)
    settle(tmp_path)
    if at == 1:  # the first change lets the new set count
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
    with pytest.raises(RunError, match=r"weights\.json is a folder with the name of a file"):
        swap(tmp_path)
    assert (tmp_path / "metrics.json").read_text() == "old"


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    (tmp_path / NEXT).mkdir()
    (tmp_path / NEXT / "metrics.json").write_text("begun before it said what it is")
    (tmp_path / ".promptboost-4567.tmp").write_text("half")
    with writing(tmp_path, "fit"):
        pass
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
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


@pytest.mark.parametrize(
    "deep", ['{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"x":' * 100_000]
)
def test_deeply_nested_files_are_refused(tmp_path, deep):
    from promptboost.data.webdataset import read_archives
    from promptboost.run.versions import EDITS_FILE, Lineage
    from promptboost.workbench.state import DRAFT_FILE, read_draft

    for name, read in ((EDITS_FILE, Lineage.read), (DRAFT_FILE, read_draft)):
        (tmp_path / name).write_text(deep)
        with pytest.raises(FileFormatError, match=name):
            read(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in (("a.png", b""), ("a.json", deep.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))
    with pytest.raises(DataError, match="has no label"):
        read_archives([tmp_path / "a.tar"], tmp_path)
