"""Shells complete commands, options, encoders and files: asked in the shells that are here."""

import os
import shutil
import subprocess
import sys

import pytest

# What each shell has to be told, and how it is asked what could follow.
BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
_promptboost_completion promptboost
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
zmodload zsh/zpty
compdef() {{ :; }}
source {script}
compadd() {{ print -l -- ${{(P)@[-1]}}; }}
_describe() {{ print -l -- ${{(P)3}}; }}
_path_files() {{ print FILES; }}
words=({words}) CURRENT={last}+1
_promptboost_completion
"""
FISH = """
source {script}
complete --do-complete '{line}'
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The command on a PATH, with the sources that are tested."""
    folder = tmp_path_factory.mktemp("bin")
    file = folder / "promptboost"
    file.write_text(
        f"#!{sys.executable}\nfrom promptboost.cli import main\nmain()\n", encoding="utf-8"
    )
    file.chmod(0o755)
    return folder


def source_of(shell, program):
    """Return the completion script that click prints."""
    settings = {
        "_PROMPTBOOST_COMPLETE": f"{shell}_source",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": f"{program}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [program / "promptboost"], capture_output=True, text=True, env={**os.environ, **settings}
    )
    return done.stdout


def completed(shell, words, program, tmp_path):
    """Ask a shell what could follow; return the words it offers."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / f"script.{shell}"
    script.write_text(source_of(shell, program), encoding="utf-8")
    form = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    typed = " ".join(repr(word) for word in words)
    code = form.format(script=script, words=typed, last=len(words) - 1, line=" ".join(words))
    paths = {"PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    sources = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [shell, "-c", code], capture_output=True, text=True, env={**os.environ, **paths, **sources}
    )
    return {line.split(":")[0].split("\t")[0] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_encoders(shell, program, tmp_path):
    ask = lambda *words: completed(shell, ["promptboost", *words], program, tmp_path)  # noqa: E731
    assert {"predict", "pool", "paper", "pull", "push"} == ask("p")
    assert {"--shots", "--seed", "--spread", "--sweeps"} <= ask("fit", "x", "--s")
    assert {"ViT-B-32/openai"} == ask("fit", "x", "--encoder", "ViT-B-32")


def test_every_script_names_the_command(program):
    for shell in ("bash", "zsh", "fish"):
        assert "_PROMPTBOOST_COMPLETE" in source_of(shell, program)
