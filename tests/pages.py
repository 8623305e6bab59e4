"""Blocks of code in the documents, and running them as a reader would, page by page.

``sh`` and ``python`` are run in order, in one folder a page; what is said to be ``not run`` has its
options parsed. ``console`` is a transcript of a run on other images: its commands are parsed as well.
"""

import json
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from promptboost.cli import promptboost
from tests.cli.cli_tools import call

ROOT = Path(__file__).parents[1]
TUTORIAL = "docs/tutorials/first-fit.md"
#: Everything a reader is shown, by its place in the repository.
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "_build" not in path.parts
)
RUN, PARSED = {"sh", "python"}, {"console"}
#: Not commands: output, files and other languages.
SHOWN = {"text", "json", "toml", "yaml", "ini", "nginx", "js", "csv", "html", "diff"}
_FENCE = re.compile(
    r"(?:^<!-- (?:not run: (?P<reason>.+?)|needs: (?P<needs>\w+)) -->\n+)?"
    r"^(?P<ticks>```+)(?P<kind>[^\n]*)\n(?P<code>.*?)^(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
# Programs that a block may call beside promptboost.
_PROGRAMS = {"cat", "cp", "curl", "export", "ls", "mkdir", "mv", "python", "rm"}


@dataclass(frozen=True)
class Block:
    kind: str
    code: str
    reason: str | None = None  # why it is not run here
    needs: str | None = None  # a library that promptboost does without


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(m["kind"].strip(), m["code"], m["reason"], m["needs"]) for m in _FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[str]:
    """Return what a reader types, command by command: one may go on in the next line."""
    typed = ""
    for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
        if block.kind == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        if not typed and (not line.strip() or line.lstrip().startswith("#")):
            continue
        typed += line
        try:
            shlex.split(typed, comments=True)
        except ValueError:  # a quotation that is not closed yet
            typed += "\n"
            continue
        yield typed
        typed = ""
    assert not typed, f"a quotation is not closed: {typed}"


def check_options(line: str) -> None:
    """Raise if a command of promptboost has an option that is not there."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words or Path(words[0]).name != "promptboost":
        return
    words = words[1 : next((n for n, word in enumerate(words) if word in ("|", ">", "&")), None)]
    command, ctx = promptboost, click.Context(promptboost, info_name="promptboost")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(ctx, words)
        assert command is not None
        ctx = click.Context(command, info_name=name, parent=ctx)
    command.make_parser(ctx).parse_args(list(words))


@dataclass
class Reader:
    """Someone who types what a page shows, in a folder of their own."""

    folder: Path
    capsys: pytest.CaptureFixture
    names: dict[str, object] = field(default_factory=dict)
    servers: list[subprocess.Popen] = field(default_factory=list)
    port: int = 8000

    def follow(self, block: Block) -> None:
        """Run a block."""
        if block.kind == "python":
            code = block.code.replace(":8000", f":{self.port}")
            exec(compile(code, "<block of a page>", "exec"), self.names)
            return
        for line in commands(block):
            self.type(line)

    def type(self, line: str) -> None:
        """Run one command."""
        words = shlex.split(line.replace(":8000", f":{self.port}"), comments=True)
        if words[:2] == ["promptboost", "serve"]:
            self.serve(words[2:])
        elif words[0] == "promptboost":
            self.call(words[1:])
        else:
            assert words[0] in _PROGRAMS, (
                f"what is {words[0]!r}? Mark the block as not run, or add it"
            )
            shown = (
                shlex.join(words) if words[0] != "curl" else line.replace(":8000", f":{self.port}")
            )
            done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def call(self, words: list[str]) -> None:
        """Run a command of promptboost in this process, as a shell would start it."""
        kept = None
        if ">" in words:
            at = words.index(">")
            words, kept = words[:at], Path(words[at + 1])
        words = [
            file
            for word in words
            for file in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        answer = call(self.capsys, *words)
        assert answer.code == 0, f"promptboost {shlex.join(words)}\n{answer.out}{answer.err}"
        if kept is not None:
            kept.write_text(answer.out, encoding="utf-8")

    def serve(self, words: list[str]) -> None:
        """Start a server on a free port, and wait until it is ready."""
        serve = [sys.executable, "-m", "promptboost", "serve", *words, "--port", "0", "--json"]
        server = subprocess.Popen(
            serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.servers.append(server)
        line = server.stdout.readline()
        assert line, "the server did not start"
        self.port = int(json.loads(line)["address"].rpartition(":")[2])
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=1)
                return
            except OSError:
                assert server.poll() is None, "the server stopped"
                time.sleep(0.1)
        raise AssertionError("the server is not ready after 30 seconds")

    def leave(self) -> None:
        """Stop what was started."""
        for server in self.servers:
            server.terminate()
            server.wait(10)
            server.stdout.close()


def prepare(folder: Path) -> None:
    """Do what the first tutorial does: images, sentences, and a run to begin with."""
    making, _, fitting = (
        block
        for block in blocks(TUTORIAL)[:5]
        if block.kind in {"python", "json", "sh"} and not block.reason
    )
    for words in (
        ["-c", making.code],
        ["-m", *shlex.split(fitting.code)],
    ):
        done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
