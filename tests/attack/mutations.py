"""Hostile files: the files of a run and of a comparison, altered at random, given to the real commands.

Whatever a file holds, a command does its work (exit code 0) or says what cannot be used (2), prints no
NaN, and answers by the text alone: a head that was altered changes no answer.
"""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import struct
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
from promptboost.runs.fit import fit_run
from tests.runs.run_tools import request, write_images, write_sentences

SECONDS = 60
ENCODER, OTHER = "fake:32-0", "fake:16-1"

# Written for a value, and replaced in the text: what no program that writes JSON would write.
_DIGITS, _DEEP = '"@digits@"', '"@deep@"'
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e-320, 1e-99, 1e99, 1e308, -1.7e308, 2**31),
    *(2**53, 2**63, 2**80, -(2**63), -(2**80), 10**400, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "x" * 5000, "9" * 5000, "fake:" + "9" * 5000 + "-0", "fake:8-" + "9" * 5000),
    *(
        "\x1b[31m",
        "\ud800",
        "\u202e",
        "a\nb",
        "\0",
        "all",
        "samme",
        "samme.r",
        "test",
        "1",
        "ember",
    ),
    *("fake:16-1", "conse:none", "os:system?command=touch ATTACKED", "../../x", "{}", "sea"),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"x": {}},
        [1, "x"],
        {"ember": 1},
        [{}],
        "@digits@",
        "@deep@",
    ),
)
_TOML = (
    *("", "nan", "inf", "-inf", "1e400", "1e308", "1e-320", "-1", "0", "1", "2.5", "true", '"all"'),
    *(
        "9" * 5000,
        str(2**63),
        str(2**80),
        "0x" + "f" * 99,
        '"x"',
        '""',
        '" "',
        "[]",
        "{}",
        "[1, 'x']",
    ),
    *('"\\u0000"', '"\\u001b[31m"', "1979-05-27T07:32:00Z", "07:32:00", '"fake:16-1"', '"greedy"'),
    *(
        "[" * 3000,
        "{a = " * 200,
        '"""',
        "'",
        '"' + "9" * 5000 + '"',
        '"os:system?command=touch ATTACKED"',
    ),
    *("{x = {y = 1}}", '"samme"', '"test"', "['/']", '"none"', '"../.."'),
)


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
            "votes": {"composer": "greedy", "rounds": 3, "algorithm": "samme"},
            "gradient": {"rounds": 1},
        }
        for name, options in kinds.items():
            views = {"shots": 3, "views": 2, "views_per_round": 1}
            fit_run(request(root, f"kept/{name}", **{**views, **options}))
        for command in (
            ("transfer", "kept/greedy", "--encoder", OTHER),
            self.compare("kept/comparison"),
        ):
            made = self.call(*command)
            if made.code:
                raise RuntimeError(f"{command}: {made.err}")
        for folder in self.kept.iterdir():
            self.restore(folder.name)
        self.answers = {name: self.call(*_predict(name)).out for name in kinds}

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


# --- alterations --------------------------------------------------------------------------------


def _bytes(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Alter some bytes, wherever they are."""
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 2, 8, 100))
    bits = bytearray(data)
    match draw.randrange(7):
        case 0:
            return f"cut off at {at}", data[:at]
        case 1 if data:
            for _ in range(size):
                bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
            return f"{size} bits flipped", bytes(bits)
        case 2:
            return f"{size} bytes lost at {at}", data[:at] + data[at + size :]
        case 3:
            return f"{size} bytes twice at {at}", data[: at + size] + data[at:]
        case 4:
            return f"{size} bytes more at {at}", data[:at] + draw.randbytes(size) + data[at:]
        case 5:
            return "the file twice", data + data
        case _:
            return "other bytes", draw.choice((b"", b"\xff\xfe", b"null", b"[]", b"{}", b"\0" * 99))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List where something is in a tree."""
    if path:
        yield path
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, part in entries:
        yield from _places(part, (*path, key))


def _tree(value: Any, draw: random.Random) -> tuple[str, str]:
    """Alter one place, or a few, in a tree; return it as JSON of a kind."""
    said = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not (places := list(_places(value))):
            break
        # There are few places at the top and many deep down: each depth is as likely.
        depth = draw.choice(sorted({len(place) for place in places}))
        path = draw.choice([place for place in places if len(place) == depth])
        *above, key = path
        holder = value
        for step in above:
            holder = holder[step]
        said.append(f"{'.'.join(map(str, path)):.80} {_altered(holder, key, draw)}")
    text = json.dumps(value, indent=draw.choice((None, 1)), ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.05 and '": ' in text:  # a key twice
        name = draw.choice(re.findall(r'"(?:[^"\\]|\\.)*": ', text))
        text = text.replace(name, f"{name}0, {name}", 1)
        said.append(f"{name} twice")
    text = text.replace(_DIGITS, "9" * 5000)
    depth = draw.choice((70, 500, 5000, 100_000))
    text = text.replace(_DEEP, "[" * depth + "]" * depth)
    return ", ".join(said), text


def _altered(holder: Any, key: Any, draw: random.Random) -> str:
    match draw.randrange(8):
        case 0:
            del holder[key]
            return "deleted"
        case 1 if isinstance(holder, dict):
            holder[draw.choice(("", "x", "class", "x" * 3000, "\ud800"))] = holder.pop(key)
            return "renamed"
        case 1 if isinstance(holder, list):
            holder.extend([holder[key]] * draw.choice((1, 50)))
            return "repeated"
        case 2:
            holder[key] = draw.choice(([holder[key]], {"x": holder[key]}, str(holder[key])))
            return "wrapped"
        case 3 if isinstance(holder, dict):
            holder[key] = holder[draw.choice(list(holder))]
            return "swapped"
        case 4 if isinstance(holder[key], int | float):
            holder[key] = holder[key] * draw.choice((-1, 10, 1e30, 1e200, 10**30))
            return "multiplied"
    new = draw.choice(_VALUES)
    holder[key] = json.loads(json.dumps(new))  # a value of its own
    return f"= {new!r:.40}"


def _json(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    change, text = _tree(json.loads(data), draw)
    return change, text.encode("utf-8", draw.choice(("surrogatepass", "replace")))


def _json_lines(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    lines = data.split(b"\n")
    at = draw.choice([i for i, line in enumerate(lines) if line.strip()])
    change, lines[at] = _json(lines[at], draw)
    return f"line {at}: {change}", b"\n".join(line.replace(b"\n", b" ") for line in lines)


def _toml(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    lines = data.decode().split("\n")
    at = draw.randrange(len(lines))
    name = lines[at].partition(" = ")[0]
    match draw.randrange(6):
        case 0:
            change = f"line {at} deleted"
            lines.pop(at)
        case 1:
            change = f"line {at} twice"
            lines.insert(at, lines[at])
        case 2:
            lines[at] = draw.choice(
                ("fit = 1", "[fit]", "[[fit]]", "data = 'x'", "[data]", "x.y = 1")
            )
            change = f"line {at} {lines[at]}"
        case _:
            lines[at] = f"{name} = {draw.choice(_TOML)}"
            change = f"{lines[at]:.70}"
    return change, "\n".join(lines).encode()


def _head(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Alter a head: what it says of itself, the kind and shape of its arrays, or its numbers."""
    import numpy as np

    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    weights = np.frombuffer(data, "<f4", offset=8 + size + header["weights"]["data_offsets"][0])
    weights = weights[: int(np.prod(header["weights"]["shape"]))]
    match draw.randrange(6):
        case 0:
            change, header["__metadata__"]["promptboost"] = _tree(
                json.loads(header["__metadata__"]["promptboost"]), draw
            )
        case 1:
            change, text = _tree(header, draw)
            header = text
        case 2:
            kind = draw.choice(("BF16", "F16", "F64", "I64", "BOOL", "F8_E4M3", "U8", "F32"))
            width = {"BF16": 2, "F16": 2, "F64": 8, "I64": 8, "F32": 4}.get(kind, 1)
            *rest, last = header["weights"]["shape"]
            honest = [*rest, last * 4 // width]
            shapes = (
                honest,
                honest,
                [len(weights)],
                [4, -1],
                [0, 32],
                [4, 16],
                [1, 4, 32],
                [2**40] * 2,
            )
            header["weights"] |= {"dtype": kind, "shape": draw.choice(shapes)}
            change = f"weights {kind} {header['weights']['shape']}"
        case _:
            start = header["weights"]["data_offsets"][0]
            forged = {
                "reversed": weights[::-1],
                "negated": -weights,
                "zero": weights * 0,
                "NaN": weights * np.nan,
                "infinite": weights * np.inf,
                "huge": weights * 1e30,
                "random": np.random.default_rng(draw.randrange(99)).normal(size=len(weights)),
                "nearly": weights * 1.01,
            }
            change = draw.choice(list(forged))
            part = np.asarray(forged[change], "<f4").tobytes()
            body[start : start + len(part)] = part
    text = header if isinstance(header, str) else json.dumps(header)
    encoded = text.encode("utf-8", "surrogatepass")
    return f"head {change}", struct.pack("<Q", len(encoded)) + encoded + bytes(body)


# --- what is attacked, and by which commands ----------------------------------------------------


def _predict(run: str) -> tuple[str, ...]:
    return "predict", run, "images", "--top-k", "4", "--json"


def _commands(run: str) -> dict[str, tuple[str, ...]]:
    grow = ("pool", "grow", run, "-o", "grown.json", "--model", "m", "--dry-run")
    return {
        "show": ("show", run, "--all"),
        "rounds": ("show", run, "--by", "round", "--json"),
        "predict": _predict(run),
        "table": ("predict", run, "images/sea", "--format", "table"),
        "elsewhere": ("predict", run, "images/sea", "--encoder", OTHER, "--format", "jsonl"),
        "uncached": ("predict", run, "images/sea", "--top-k", "4", "--json", "--no-cache"),
        "report": ("report", run),
        "transfer": ("transfer", run, "--encoder", OTHER, "--json"),
        "other images": ("transfer", run, "images", "--encoder", OTHER),
        "evaluate": ("evaluate", run, "images", "--json"),
        "diff": ("diff", run, "kept/gradient"),
        "grow": grow,
    }


_FIGURES = ("show", "rounds", "report", "transfer", "other images", "evaluate", "grow")
_TEXT = (*_FIGURES, "predict", "table", "elsewhere", "diff")
_HEAD = ("predict", "predict", "uncached", "evaluate", "transfer")
Alter = Callable[[bytes, random.Random], tuple[str, bytes]]
#: The files of a run: how they are altered, and what reads them; the first weighs most.
_FILES: dict[str, tuple[Alter, tuple[str, ...]]] = {
    "ensemble.json": (_json, _TEXT),
    "metrics.json": (_json, _FIGURES),
    "run.toml": (_toml, ("report", "transfer", "other images", "evaluate", "grow")),
    "weights.json": (_json, ("show", "predict", "report", "transfer")),
    "thumbnails.json": (_json, ("report",)),
    "head-fake-32-0.safetensors": (_head, _HEAD),
}
_OFTEN = (30, 25, 15, 5, 3, 17)


def case(world: World, seed: int, number: int) -> Case:
    """Draw one attack; the same seed and number are the same attack."""
    draw = random.Random(f"{seed}-{number}")
    if draw.random() < 0.06:
        file, alter = draw.choice((("cells.jsonl", _json_lines), ("compare.json", _json)))
        folder, command = "comparison", world.compare("comparison")
    else:
        folder = draw.choice(("greedy", "votes", "gradient"))
        (file,) = draw.choices(list(_FILES), _OFTEN)
        alter, names = _FILES[file]
        command = _commands(folder)[draw.choice(names)]
    if draw.random() < 0.2:
        alter = _bytes
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
        return (
            "exit 0" if answer.out == world.answers[attack.folder] else "a forged head was believed"
        )
    return "exit 0"


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
