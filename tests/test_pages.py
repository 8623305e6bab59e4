"""Every command and every block of Python in the documents is run, or says why it cannot be here."""

import os
import shutil
import sys
import time
from importlib.util import find_spec

import pytest

from tests.pages import (
    PAGES,
    PARSED,
    RUN,
    SHOWN,
    TUTORIAL,
    Reader,
    blocks,
    check_options,
    commands,
    prepare,
)

_RUNNING = [page for page in PAGES if any(b.kind in RUN and b.reason is None for b in blocks(page))]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """What the first tutorial makes, and an embedding store: once, for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    store, folder, done = shared / "store", shared / "here", shared / "done"
    try:
        shared.mkdir()
    except FileExistsError:  # another process makes it
        for _ in range(3000):
            if done.exists():
                return folder, store
            time.sleep(0.1)
        raise
    store.mkdir()
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMPTBOOST_CACHE", str(store))
        prepare(folder)
    done.touch()
    return folder, store


@pytest.fixture
def reader(tmp_path, monkeypatch, capsys, prepared):
    folder, store = prepared
    here = tmp_path / "here"
    shutil.copytree(folder, here)
    monkeypatch.setenv("PROMPTBOOST_CACHE", str(store))
    monkeypatch.setenv("PROMPTBOOST_STATE", str(tmp_path / "state"))
    # A page that calls `promptboost` from Python finds the one of this environment, activated or not.
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    reader = Reader(here, capsys)
    yield reader
    reader.leave()


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_options_that_pages_show(page):
    for block in blocks(page):
        assert block.kind in RUN | PARSED | SHOWN or block.kind.startswith("{"), (
            f"{page}: say in which language this is: {block.kind!r}\n{block.code}"
        )
        if block.kind in {"sh", "console"}:
            for line in commands(block):
                check_options(line)
        if block.kind == "python":
            compile(block.code, page, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_reader_types_is_seen_whole(page):
    """So many characters stand in a line of the site on a small laptop, without scrolling."""
    for block in blocks(page):
        if block.kind in RUN | {"console"}:
            lines = block.code.splitlines()
            if block.kind == "console":  # what was printed then is as wide as it was
                lines = [line for line in lines if line.startswith("$ ")]
            assert [line for line in lines if len(line) > 88] == []


@pytest.mark.parametrize("page", _RUNNING)
def test_what_a_page_shows_works(page, reader):
    if page in {TUTORIAL, "README.md"}:
        shutil.rmtree("run")  # they make their own
    missing = []
    for block in blocks(page):
        if block.kind in RUN and block.reason is None:
            if block.needs is not None and find_spec(block.needs) is None:
                missing.append(block.needs)
            else:
                reader.follow(block)
    if missing:
        pytest.skip(f"not installed, so blocks were left out: {', '.join(missing)}")
