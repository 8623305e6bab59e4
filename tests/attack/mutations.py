"""Hostile files: the files of a run and of a comparison, altered at random, given to the real commands.

Whatever a file holds, a command does its work (exit code 0) or says what cannot be used (2), prints no
NaN, and answers by the text alone: a head that was altered changes no answer,
or has its residual left out.
"""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from promptboost.cli import main
from promptboost.run.fit import fit_run
from tests.attack.alterations import (
    altered_bytes,
    altered_head,
    altered_json,
    altered_json_lines,
    altered_toml,
)
from tests.run.run_tools import request, write_images, write_sentences

SECONDS = 60
#: How far apart the probabilities of a head may be that another machine made of the same text.
_ROUNDING = 1e-3
ENCODER, OTHER = "fake:32-0", "fake:16-1"


@dataclass(frozen=True)
class Case:
    """One altered file and one command that meets it."""

    folder: str  # of the files, below the world
    file: str
    change: str  # what was done to it
    data: bytes
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.folder}/{self.file} ({self.change}): {' '.join(self.command)}"


class World:
    """Images, runs of each kind and a comparison, made once; what an attack alters is put back."""

    def __init__(self, root: Path) -> None:
        self.root, self.kept = root, root / "kept"
        write_images(root / "images", count=5)
        write_sentences(root / "sentences.json")
        kinds = {
            "greedy": {"composer": "greedy", "rounds": 3},
            "gradient": {"rounds": 1},
        }
        for name, options in kinds.items():
            views = {"shots": 3, "views": 2, "views_per_round": 1}
            fit_run(**request(root, f"kept/{name}", **{**views, **options}))
        for command in (
            ("transfer", "kept/greedy", "--encoder", OTHER),
            self.compare("kept/comparison"),
        ):
            made = self.call(*command)
            if made.code:
                raise RuntimeError(f"{command}: {made.err}")
        cells = sorted((self.kept / "comparison" / "cells").iterdir())
        self.cells = [f"cells/{file.name}" for file in cells]
        for folder in self.kept.iterdir():
            self.restore(folder.name)
        self.answers = {
            name: {self.call(*_predict(name), *option).out for option in ((), ("--text-only",))}
            for name in kinds
        }

    def restore(self, name: str) -> None:
        """Put a folder back as it was."""
        shutil.rmtree(self.root / name, ignore_errors=True)
        shutil.copytree(self.kept / name, self.root / name)

    def compare(self, out: str) -> tuple[str, ...]:
        """Return the command that compares, or goes on with it."""
        methods = ("--methods", "zero-shot,pool-mean,promptboost?rounds=1")
        draws = ("--shots", "1", "--seeds", "1,2", "--views", "1", "--encoder", ENCODER)
        words = ("--prompts", "sentences.json", "--transfer", OTHER)
        return ("compare", "images", "-o", out, *methods, *draws, *words)

    def call(self, *arguments: str) -> "Answer":
        """Run a command in this process, in the world's folder."""
        out, err = io.StringIO(), io.StringIO()
        before = Path.cwd()
        os.chdir(self.root)
        code: Any = None
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                patch.dict(os.environ, {"PROMPTBOOST_CACHE": str(self.root / "cache")}),
                _no_longer_than(SECONDS),
            ):
                main(arguments)
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException as error:  # whatever it is, it is what the attack looks for
            if isinstance(error, KeyboardInterrupt):
                raise
            err.write("".join(traceback.format_exception(error)))
            code = "stuck" if isinstance(error, TimeoutError) else "traceback"
        finally:
            os.chdir(before)
        return Answer(code, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: Any
    out: str
    err: str


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- what is attacked, and by which commands ----------------------------------------------------


def _predict(run: str) -> tuple[str, ...]:
    return "predict", run, "images", "--top-k", "4", "--json"


def _commands(run: str) -> dict[str, tuple[str, ...]]:
    return {
        "show": ("show", run, "--all"),
        "rounds": ("show", run, "--json"),
        "predict": _predict(run),
        "table": ("predict", run, "images/sea", "--format", "table"),
        "elsewhere": ("predict", run, "images/sea", "--encoder", OTHER, "--format", "jsonl"),
        "uncached": ("predict", run, "images/sea", "--top-k", "4", "--json", "--no-cache"),
        "report": ("report", run),
        "transfer": ("transfer", run, "--encoder", OTHER, "--json"),
        "other images": ("transfer", run, "images", "--encoder", OTHER),
        "evaluate": ("evaluate", run, "images", "--json"),
        "diff": ("diff", run, "kept/gradient"),
    }


_FIGURES = ("show", "rounds", "report", "transfer", "other images", "evaluate")
_TEXT = (*_FIGURES, "predict", "table", "elsewhere", "diff")
_HEAD = ("predict", "predict", "uncached", "evaluate", "transfer")
Alter = Callable[[bytes, random.Random], tuple[str, bytes]]
#: The files of a run: how they are altered, and what reads them; the first weighs most.
_FILES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "ensemble.json": (altered_json, _TEXT),
    "metrics.json": (altered_json, _FIGURES),
    "run.toml": (altered_toml, ("report", "transfer", "other images", "evaluate")),
    "weights.json": (altered_json, ("show", "predict", "report", "transfer")),
    "thumbnails.json": (altered_json, ("report",)),
    "head-fake-32-0.safetensors": (altered_head, _HEAD),
}
_OFTEN = (30, 25, 15, 5, 3, 17)


def case(world: World, seed: int, number: int) -> Case:
    """Draw one attack; the same seed and number are the same attack."""
    draw = random.Random(f"{seed}-{number}")
    if draw.random() < 0.1:
        file, alter = draw.choice(
            (
                ("cells.jsonl", altered_json_lines),
                (draw.choice(world.cells), altered_json),
                ("compare.json", altered_json),
            )
        )
        folder, command = "comparison", world.compare("comparison")
    else:
        folder = draw.choice(("greedy", "gradient"))
        (file,) = draw.choices(list(_FILES), _OFTEN)
        alter, names = _FILES[file]
        command = _commands(folder)[draw.choice(names)]
    if draw.random() < 0.2:
        alter = altered_bytes
    change, data = alter((world.kept / folder / file).read_bytes(), draw)
    return Case(folder, file, change, data, command)


def outcome(world: World, attack: Case) -> tuple[str, Answer]:
    """Make one attack and name what came of it; "exit 0" and "exit 2" are as it should be."""
    (world.root / attack.folder / attack.file).write_bytes(attack.data)
    try:
        answer = world.call(*attack.command)
        return _judged(world, attack, answer), answer
    finally:
        world.restore(attack.folder)


def _judged(world: World, attack: Case, answer: Answer) -> str:
    if (world.root / "ATTACKED").exists():
        return "a command of the file was run"
    if answer.code not in (0, 2):
        return f"exit {answer.code}" if answer.code == 1 else str(answer.code)
    if "Traceback" in answer.err:
        return "traceback"
    if answer.code == 2:
        return "exit 2"
    shown = [answer.out]
    if "--json" in attack.command:
        if not _is_strict(answer.out):
            return "no JSON"
    else:
        shown += [p.read_text("utf-8") for p in (world.root / attack.folder).glob("*.[hm][td]*")]
    if any(re.search(r"(?<![\w.:/-])(nan|NaN|inf)(?![\w-])", text) for text in shown):
        return "NaN in the output"
    metrics = world.root / attack.folder / "metrics.json"
    if attack.command[0] == "transfer" and not _is_strict(metrics.read_text("utf-8")):
        return "NaN in metrics.json"
    if attack.file.startswith("head-") and attack.command == _predict(attack.folder):
        same = any(_same_answers(answer.out, kept) for kept in world.answers[attack.folder])
        return "exit 0" if same else "a forged head was believed"
    return "exit 0"


def _same_answers(answered: str, before: str) -> bool:
    """Tell whether answers differ in what rounding can change at most."""
    both = [json.loads(text)["predictions"] for text in (answered, before)]
    for one, other in zip(*both, strict=True):
        scores = [
            {top["class"]: top["probability"] for top in image["top"]} for image in (one, other)
        ]
        if one["predicted"] != other["predicted"] or scores[0].keys() != scores[1].keys():
            return False
        if any(abs(scores[0][name] - scores[1][name]) > _ROUNDING for name in scores[0]):
            return False
    return True


def _is_strict(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def run(count: int, seed: int) -> dict[str, int]:
    """Make attacks; return how many came to what, and describe on stderr those that did harm."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for number in range(count):
            attack = case(world, seed, number)
            came_to, answer = outcome(world, attack)
            counts[came_to] += 1
            if came_to not in HARMLESS:
                last = (answer.err.strip() or answer.out.strip()).splitlines()[-1:]
                print(f"{number}: {came_to}: {attack}: {last}"[:600], file=sys.stderr)
    return dict(counts)


HARMLESS = frozenset({"exit 0", "exit 2"})
