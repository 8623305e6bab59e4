import json
import sys

import pytest

from promptboost.errors import command_name, install_command, place


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that was started by its path, in a folder that is not on the PATH."""
    file = tmp_path / "my project/.venv/bin/promptboost"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(file)])
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path / "my project")
    return file


def test_off_the_path_it_is_the_path(program, monkeypatch, tmp_path):
    assert command_name() == ".venv/bin/promptboost"
    monkeypatch.setattr(sys, "argv", [".venv/bin/promptboost"])
    assert command_name() == ".venv/bin/promptboost"
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.chdir(program.parent)
    assert command_name() == "./promptboost"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command_name() == f"'{program}'"


def test_on_the_path_it_is_the_name(program, monkeypatch):
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_name() == "promptboost"


def test_another_program_of_that_name_on_the_path_is_not_meant(program, monkeypatch, tmp_path):
    other = tmp_path / "bin/promptboost"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert command_name() == ".venv/bin/promptboost"


def test_as_a_module_and_from_python(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/promptboost/__main__.py"])
    assert command_name().endswith(" -m promptboost")
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    assert command_name() == "promptboost"


def test_places_within_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place(tmp_path / "a/b") == "a/b"
    assert place(tmp_path.parent / "x") == str(tmp_path.parent / "x")


@pytest.mark.parametrize(
    ("record", "command"),
    [
        ({}, "install 'promptboost[serve]'"),
        ({"url": "https://example.org/x.whl"}, "install 'promptboost[serve]'"),
        ({"url": "file:///src/my%20clone", "dir_info": {}}, "install '/src/my clone[serve]'"),
        (
            {"url": "file:///src/clone", "dir_info": {"editable": True}},
            "install -e '/src/clone[serve]'",
        ),
    ],
)
def test_extras_are_installed_from_where_promptboost_came_from(monkeypatch, record, command):
    from importlib import metadata

    class Installed:
        def read_text(self, name):
            return json.dumps(record) if record and name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert install_command("serve").endswith(command)
