"""Commands as real processes, forked from one that has imported everything, and killed on demand.

`Forks` starts a parent process, which forks a child for each command: that takes milliseconds, where a
new interpreter takes a second or two. A child can be told to kill itself with SIGKILL just before its
n-th change of a file, which makes every moment between two changes a moment that can be chosen.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
#: How long anything here may take; longer is stuck.
LIMIT = 300.0
_CHANGES = frozenset(
    ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "fcntl.flock")
)


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its code (-9 if killed, None if it was stuck) and what it said."""

    code: int | None
    out: str
    err: str


class Forks:
    """The parent of all processes of an attack; `folder` is where their output is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        paths = [str(ROOT), *filter(None, sys.path)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.attack.forks import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PROMPTBOOST_CACHE": str(folder / "cache"),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, cwd: Path, *command: str, kill_at: int | None = None) -> int:
        """Fork a child that runs a command; return its process id."""
        self._number += 1
        output = str(self._folder / f"{self._number % 50}")
        return int(self._ask(cwd=str(cwd), command=command, kill_at=kill_at, output=output))

    def wait(self, child: int, limit: float = LIMIT) -> Ended:
        """Wait for a child; one that takes longer is killed, and has no exit code."""
        return Ended(*self._ask(wait=child, limit=limit))

    def run(self, cwd: Path, *command: str, kill_at: int | None = None) -> Ended:
        """Run a command to its end, or to the moment it is killed."""
        return self.wait(self.start(cwd, *command, kill_at=kill_at))

    def changes(self, cwd: Path, *command: str) -> int:
        """Run a command to its end, and return how many changes of files it made."""
        ended = self.run(cwd, *command, kill_at=0)
        assert ended.code == 0, ended
        return int(ended.err.rsplit("changes: ", 1)[1])

    def _ask(self, **request: object):
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def _warm_up() -> None:
    """Run commands once, so that a child has nothing to import, to compile or to load."""
    import openai.resources.chat.completions
    from tqdm import tqdm

    from promptboost.cli import main

    _ = openai.resources.chat.completions
    tqdm.monitor_interval = (
        0  # a thread that holds a lock when a child is forked: it would wait for ever
    )
    here = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        os.chdir(write_task(Path(folder) / "task"))
        for command in (fit_command(0), ["report", "run"], TRANSFER, COMPARE, POOL, PREDICT, REFIT):
            with contextlib.suppress(SystemExit):
                main(command)
        os.chdir(here)


def serve() -> None:
    """Fork a child for each line of standard input, or wait for one."""
    _warm_up()
    outputs: dict[int, str] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: object = _wait(request["wait"], outputs.pop(request["wait"]), request["limit"])
        else:
            sys.stdout.flush()
            answer = os.fork()
            if not answer:
                _child(request)
            outputs[int(answer)] = request["output"]
        print(json.dumps(answer), flush=True)


def _wait(child: int, output: str, limit: float) -> tuple[int | None, str, str]:
    deadline, pause = time.monotonic() + limit, 0.001
    code: int | None = None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(pause)
        pause = min(0.01, pause * 1.2)
    texts = [Path(f"{output}.{name}").read_text(errors="replace") for name in ("out", "err")]
    return code, texts[0], texts[1]


def _child(request: dict) -> None:
    """Run a command with its output in files, and end the process."""
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            handle = os.open(f"{request['output']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request["cwd"])
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        if request["kill_at"] is not None:
            _die_at(request["kill_at"], request["cwd"])
        command, *arguments = request["command"]
        if command in CALLS:
            code = CALLS[command](*arguments) or 0
        else:
            from promptboost.cli import main

            main([command, *arguments])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        if request["kill_at"] == 0:
            print(f"changes: {_count[0]}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(code)


_count = [0]


def _die_at(number: int, root: str) -> None:
    """Kill this process just before its n-th change of a file below a folder; never if n is 0."""

    def watch(event: str, given: tuple) -> None:
        if event == "open":
            path, flags = given[0], given[2]
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not changes or not isinstance(path, str | bytes | os.PathLike):
                return
        elif event not in _CHANGES:
            return
        elif event != "fcntl.flock":
            path = given[0]
        else:
            path = root
        path = os.path.abspath(os.fsdecode(path) if not isinstance(path, int) else root)
        if not path.startswith(root):
            return
        _count[0] += 1
        if _count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


# --- what has no command ---------------------------------------------------------------------------


def _edit(run: str, encoder: str) -> None:
    """Add a sentence to the first class of a run, and save it with its vectors."""
    from promptboost.io import writing
    from promptboost.model.classifier import PromptClassifier, load
    from promptboost.model.head import write_head

    before = load(run, cache=False).ensemble
    edited = before.add(before.class_names[0], "something new")
    head = PromptClassifier(edited, encoder, cache=False).head
    with writing(Path(run), "save"):  # PromptClassifier.save takes a folder of its own only
        write_head(Path(run), head)
        edited.save(Path(run, "ensemble.json"))


def _read_on(run: str, encoder: str, seconds: str) -> None:
    """Read a run again and again in every way; print each different answer once."""
    from promptboost.model.classifier import load
    from promptboost.report.page import read_run

    seen: set[tuple[str | None, ...]] = set()
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        run_read = read_run(run)
        classifier = load(run, encoder, cache=False)
        seen.add(
            (
                run_read.ensemble.fingerprint,
                run_read.results.ensemble_fingerprint,
                str(run_read.settings["fit"]["seed"]),
                str(run_read.results.task.seed),
            )
        )
        assert classifier.head.ensemble_fingerprint == classifier.ensemble.fingerprint
    print(json.dumps(sorted(seen)))


CALLS = {"(edit)": _edit, "(read on)": _read_on}


# --- a small task ----------------------------------------------------------------------------------

COLOURS = {"ember": (210, 40, 60), "leaf": (60, 190, 50), "sea": (40, 70, 200)}
SENTENCES = {
    "ember": ["something red", "warm red light"],
    "leaf": ["something green", "fresh green"],
    "sea": ["something blue", "deep blue water"],
}


def write_task(folder: Path) -> Path:
    """Write images of three classes, and sentences about them."""
    rng = np.random.default_rng(0)
    for name, color in COLOURS.items():
        (folder / "images" / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.normal(np.array(color) + rng.normal(0, 45, 3), 90, (8, 8, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(folder / "images" / name / f"{number}.png")
    (folder / "sentences.json").write_text(json.dumps(SENTENCES))
    return folder


def fit_command(seed: int, *more: str) -> list[str]:
    """Return the command of a quick fit with several rounds."""
    options = ["--encoder", "fake:16-0", "--shots", "2", "--views", "0", "--rounds", "3"]
    options += ["--views-per-round", "0", "--prompts", "sentences.json", "--no-cache", "--quiet"]
    return ["fit", "images", "-o", "run", *options, "--seed", str(seed), *more]


COMPARE = ["compare", "images", "-o", "out", "--methods", "zero-shot,logistic", "--shots", "1,2"]
COMPARE += ["--seeds", "1", "--encoder", "fake:16-0", "--views", "0", "--no-cache", "--quiet"]
COMPARE += ["--prompts", "sentences.json"]
SEVERAL = [*COMPARE, "--transfer", "fake:24-1,fake:24-2"]
SEVERAL[SEVERAL.index("zero-shot,logistic")] = "zero-shot,promptboost?rounds=2"
TRANSFER = ["transfer", "run", "--encoder", "fake:24-1", "--no-cache", "--quiet"]
POOL = ["pool", "build", "sentences.json", "--classes", "images", "-o", "pool.jsonl", "--quiet"]
BOTH = [*fit_command(0, "--encoder", "fake:24-1"), "--resume"]
REFIT = ["refit", "run", "--no-cache", "--quiet"]
EMBED = ["embed", "images", "--encoder", "fake:16-0", "--storage", "out", "--per-shard", "4"]
PREDICT = ["predict", "run", "images", "--no-cache", "--quiet"]


def left_behind(folder: Path) -> list[str]:
    """Name everything below a folder that a finished command must not leave."""
    return sorted(str(path) for path in folder.rglob(".promptboost*"))


def chances(count: int, seed: int) -> list[random.Random]:
    """Return a source of chance for each of some tries."""
    return [random.Random(f"{seed}/{number}") for number in range(count)]
