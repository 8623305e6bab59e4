import os
import socket
import stat

import pytest

from promptboost.errors import DataError, FileFormatError, InputError, PoolError
from promptboost.files import (
    append_bytes,
    file_stamp,
    read_bytes,
    read_json,
    read_text,
    replacing,
    write_bytes,
    write_json,
    write_text,
)


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


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
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


@pytest.mark.skipif(os.name != "posix", reason="symbolic links are those of POSIX")
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


@pytest.mark.skipif(os.name != "posix", reason="symbolic links are those of POSIX")
def test_a_link_that_is_not_followed_is_replaced(tmp_path):
    (tmp_path / "precious").write_bytes(b"mine")
    for target in (tmp_path / "precious", tmp_path / "nowhere"):
        (tmp_path / "link").symlink_to(target)
        write_bytes(tmp_path / "link", b"new", follow=False)
        assert not (tmp_path / "link").is_symlink()
        assert (tmp_path / "link").read_bytes() == b"new"
        (tmp_path / "link").unlink()
    assert (tmp_path / "precious").read_bytes() == b"mine"
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        append_bytes(tmp_path / "link", b"more")
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


@pytest.mark.skipif(os.name != "posix", reason="pipes and sockets are those of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_only_regular_files_are_read(tmp_path, kind):
    special(tmp_path / "a", kind)
    with pytest.raises(InputError, match="a: not a regular file"):
        read_bytes(tmp_path / "a")
    with pytest.raises(PoolError, match="a cannot be read: not a regular file"):
        read_text(tmp_path / "a")
    if kind == "pipe":
        with pytest.raises(InputError, match="a: not a regular file"):
            append_bytes(tmp_path / "a", b"")
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
