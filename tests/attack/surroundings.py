"""Faults around a command: read-only folders, clocks, stores that vanish, lists that lead elsewhere."""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from promptboost.encoders.embedder import StoreWarning
from tests.attack import archives
from tests.attack.clusters import FaultError
from tests.attack.mutations import Answer, World

HARMLESS = frozenset({"ok", "not allowed here"})
_NOBODY = 65534
_FIT = ("--encoder", "fake:32-0", "--shots", "3", "--views", "0", "--prompts", "sentences.json")


def check(holds: object, name: str, *about: object) -> None:
    """Raise unless something holds."""
    if not holds:
        raise FaultError(name, *about)


def _one_line(answer: Answer, code: int = 2) -> None:
    check(answer.code == code, f"exit {answer.code}", answer.err[-500:])
    check("Traceback" not in answer.err, "traceback", answer.err[-500:])


def _as_nobody(world: World, *commands: tuple[str, ...]) -> list[Answer]:
    """Run commands in a child without the rights of root, which may write everywhere."""
    if os.geteuid() != 0:
        return [world.call(*command) for command in commands]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setegid(_NOBODY)
            os.seteuid(_NOBODY)
            said = [world.call(*command) for command in commands]
            text = json.dumps([(answer.code, answer.out, answer.err) for answer in said])
        except BaseException as error:
            text = json.dumps([("failed", "", repr(error))] * len(commands))
        with os.fdopen(write, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return [Answer(*answer) for answer in json.loads(text)]


def read_only_folders(world: World) -> None:
    """Nothing can be written: commands that read answer; others fail with one line and change nothing."""
    for parent in (*reversed(world.root.parents), world.root):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    fit = ("fit", "images", "-o", "new", *_FIT)
    edit = ("edit", "gradient", "-o", "edited", "--add", "sea=waves")
    move, report = ("transfer", "gradient", "--encoder", "fake:16-1"), ("report", "gradient")
    for command in (fit, edit, move, report):  # a child may not import what root owns
        _one_line(world.call(*command), 0)
    for name in ("new", "edited"):
        shutil.rmtree(world.root / name)
    before = {path: path.read_bytes() for path in (world.root / "gradient").iterdir()}
    expected = world.call("predict", "gradient", "images", "--json").out
    folders = [world.root, world.root / "gradient", world.root / "cache"]
    for folder in folders:
        folder.chmod(0o555)
    try:
        predicted, shown, fitted, edited, moved, reported = _as_nobody(
            world,
            ("predict", "gradient", "images", "--json"),
            ("show", "gradient", "--json"),
            *(fit, edit, move, report),
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    for answer in (predicted, shown):
        _one_line(answer, 0)
    check(predicted.out == expected, "wrong", predicted.out[:300])
    for answer in (fitted, edited, moved, reported):
        _one_line(answer)
        check(
            "ermission denied" in answer.err or "cannot be used" in answer.err,
            "unclear",
            answer.err,
        )
    check(before == {path: path.read_bytes() for path in before}, "changed")


def clock_going_backwards(world: World) -> None:
    """The time of day falls by years within a fit: it ends, with the same text."""
    start = time.time()
    calls = iter(range(10**9))
    _one_line(world.call("fit", "images", "-o", "one", *_FIT), 0)
    with (
        patch("time.time", lambda: start - 10**7 * next(calls)),
        patch("time.time_ns", lambda: int(1e9 * (start - 10**7 * next(calls)))),
    ):
        answer = world.call("fit", "images", "-o", "two", *_FIT)
        _one_line(answer, 0)
        _one_line(world.call("predict", "two", "images", "--json"), 0)
        _one_line(world.call("transfer", "two", "--encoder", "fake:16-1", "--json"), 0)
    texts = [json.loads((world.root / run / "ensemble.json").read_text()) for run in ("one", "two")]
    check(texts[0] == texts[1], "mixed")


def store_deleted_midway(world: World) -> None:
    """The embedding store is deleted again and again while commands use it."""
    done = threading.Event()

    def delete() -> None:
        while not done.is_set():
            for path in sorted((world.root / "cache").rglob("*"), reverse=True):
                if path.is_file():
                    path.unlink(missing_ok=True)
            time.sleep(0.002)

    expected = json.loads(world.call("predict", "gradient", "images", "--json", "--no-cache").out)
    thread = threading.Thread(target=delete)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", StoreWarning)
            for number in range(5):
                answer = world.call("predict", "gradient", "images", "--json")
                _one_line(answer, 0)
                check(json.loads(answer.out) == expected, "wrong")
                _one_line(world.call("fit", "images", "-o", f"three-{number}", *_FIT), 0)
    finally:
        done.set()
        thread.join()
    _one_line(world.call("predict", "gradient", "images", "--json"), 0)


def lists_that_lead_elsewhere(world: World) -> None:
    """A manifest names devices, pipes, other files, loops of links: they are skipped, and shown nowhere."""
    odd = world.root / "odd"
    odd.mkdir()
    secret = world.root / "secret.txt"
    secret.write_text("the-secret-itself")
    (odd / "link.png").symlink_to(secret)
    (odd / "loop.png").symlink_to("loop.png")
    os.mkfifo(odd / "pipe.png")
    names = ["odd/link.png", "odd/loop.png", "odd/pipe.png", "../" * 30 + "etc/passwd", "odd", "."]
    names += [
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        "secret.txt",
        "odd/none.png",
        "~/x.png",
    ]
    sound = [
        f"{path.relative_to(world.root)},{path.parent.name}"
        for path in (world.root / "images").rglob("*.png")
    ]
    lines = ["path,label", *sound, *(f"{name},sea" for name in names)]
    (world.root / "list.csv").write_text("\n".join(lines))
    answer = world.call("fit", "list.csv", "-o", "from-list", *_FIT)
    _one_line(answer, 0)
    written = [path.read_text("utf-8", "replace") for path in (world.root / "from-list").iterdir()]
    for text in (answer.out, answer.err, *written):
        check("the-secret-itself" not in text and "root:x:" not in text, "leak")
    _one_line(world.call("fit", "list.csv", "-o", "strict", *_FIT, "--on-bad", "stop"))


def predicting_while_edited(world: World) -> None:
    """Threads predict with a classifier while another edits its text: each answer is of one text."""
    import promptboost
    from promptboost.model import PromptClassifier

    with patch.dict(os.environ, {"PROMPTBOOST_CACHE": str(world.root / "cache")}):
        classifier = promptboost.load(world.root / "gradient", cache=False)
        rows = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        texts = [classifier.ensemble]
        for number in range(5):
            texts.append(texts[-1].add("sea", f"wave number {number}"))
        before = classifier.predict_proba(rows)
        fresh = [
            PromptClassifier(text, "fake:32-0", cache=False).predict_proba(rows) for text in texts
        ]
        wrong: list[object] = []
        done = threading.Event()

        def predict() -> None:
            while not done.is_set():
                try:
                    if not (classifier.predict_proba(rows) == before).all():
                        wrong.append("another answer")
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=predict) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                for text, expected in zip(texts, fresh, strict=True):
                    made = PromptClassifier(text, "fake:32-0", cache=False)
                    made.save(world.root / "edited-by-thread")
                    again = promptboost.load(world.root / "edited-by-thread", cache=False)
                    if not np.allclose(again.predict_proba(rows), expected, atol=1e-6):
                        wrong.append("a text with the head of another")
        finally:
            done.set()
            for thread in threads:
                thread.join()
    check(not wrong, "wrong", wrong[:3])


def thousands_of_classes(world: World) -> None:
    """5,000 classes with one image each are fitted within the memory of a laptop."""
    import subprocess

    code = """
import resource, time
import numpy as np
import promptboost
rng = np.random.default_rng(0)
names = [f"kind{n}" for n in range(5000)]
rows = rng.standard_normal((5000, 128)).astype(np.float32)
table = dict(zip(names, rows + rng.standard_normal(rows.shape)))
def encode(texts):
    found = [table[next(w for w in t.strip(".").split() if w in table)] for t in texts]
    noise = np.random.default_rng(len(texts)).standard_normal((len(texts), 128))
    made = np.stack(found) + 0.5 * noise
    return made / np.linalg.norm(made, axis=1, keepdims=True)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
start = time.perf_counter()
fitted = promptboost.PromptBoostClassifier(encoder=encode, cache=False).fit(rows, names)
right = np.mean(fitted.predict(rows[:500]) == np.array(names[:500]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.perf_counter() - start, peak, right)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    check(done.returncode == 0, "failed", done.stderr[-1500:])
    seconds, megabytes, right = map(float, done.stdout.split())
    print(f"  5,000 classes × 1 image: {seconds:.0f} s, {megabytes:,.0f} MB, {right:.0%} right")
    check(megabytes < 3000, "memory", megabytes)


def archives_of_strangers(world: World) -> None:
    """Tars and Parquet files that unpack to far more than they are."""
    for name, (_, _, expected) in archives.BOMBS.items():
        with tempfile.TemporaryDirectory() as folder:
            taken, came = archives.read(Path(folder), name)
        check(expected in came, f"archive: {name}", came)
        check(taken < archives.MOST, f"memory: {name}", taken)


KINDS: tuple[Callable[[World], None], ...] = (
    *(read_only_folders, clock_going_backwards, store_deleted_midway, lists_that_lead_elsewhere),
    *(predicting_while_edited, archives_of_strangers, thousands_of_classes),
)


def run(count: int, seed: int) -> dict[str, int]:
    """Do each once; `count` and `seed` change nothing."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for kind in KINDS:
            try:
                kind(world)
                outcomes["ok"] += 1
            except FaultError as fault:
                outcomes[f"{kind.__name__}: {fault.args[0]}"] += 1
                print(kind.__name__, *fault.args, file=sys.stderr)
    return dict(outcomes)
