"""Kills: SIGKILL at chosen and at random moments, in every command that writes.

After each kill nothing may be lost, mixed or stuck: what was there before is there, or what was asked
for is, and the same command, where needed with --resume, ends with the same bytes as one never killed.
"""

import csv
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from random import Random

from promptboost.hub import push_run
from tests.attack.forks import (
    BOTH,
    COMPARE,
    EMBED,
    POOL,
    PREDICT,
    REFIT,
    SEVERAL,
    TRANSFER,
    Ended,
    Forks,
    chances,
    fit_command,
    left_behind,
    write_task,
)
from tests.llm.llm_server import Act, Server
from tests.run.hub_server import Hub

HARMLESS = frozenset({"ok"})
#: The files of a run in which nothing is measured in seconds.
SAME = ("ensemble.json", "predictions.csv", "head-fake-16-0.safetensors", "weights.json")


class FaultError(Exception):
    """What must not happen did; the message is its name, or begins with it."""


def check(holds: object, name: str, *about: object) -> None:
    """Raise unless something holds."""
    if not holds:
        raise FaultError(name, *about)


def succeeded(ended: Ended) -> Ended:
    """Raise unless a command did what it was asked to do."""
    check(ended.code is not None, "stuck", ended.err)
    check(ended.code == 0, "stuck: the same command does not go on", ended.code, ended.err)
    return ended


def check_whole(run: Path) -> int:
    """Raise unless all files of a run belong together; return the seed it was made with."""
    from promptboost.model import PromptEnsemble
    from promptboost.run.run_folder import RunFolder

    folder = RunFolder(run)
    try:
        results = folder.results
        seed = int(tomllib.loads((run / "run.toml").read_text())["fit"]["seed"])
        text = PromptEnsemble.load(run / "ensemble.json")
        rows = list(csv.reader((run / "predictions.csv").read_text().splitlines()))
    except FaultError:
        raise
    except Exception as error:
        raise FaultError("lost", repr(error)) from error
    check(results.task.seed == seed, "mixed", "metrics.json and run.toml")
    check(results.ensemble_fingerprint == text.fingerprint, "mixed", "metrics and ensemble.json")
    right = sum(row[1] == row[2] for row in rows[1:]) / len(rows[1:])
    measured = results.measured()
    check(measured is not None and abs(right - measured) < 1e-9, "mixed", "predictions.csv")
    return seed


@dataclass
class World:
    """Folders to start from, and what commands that are never killed make of them."""

    forks: Forks
    root: Path
    llm: str = ""
    hub: Hub | None = None
    tries: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def fresh(self, start: str = "empty") -> Path:
        """Return a new folder with the images, and perhaps a finished run of seed 0."""
        self.tries += 1
        place = self.root / f"try-{self.tries}"
        shutil.copytree(self.root / start, place)
        return place

    def prepare_runs(self) -> None:
        """Fit with two seeds, and keep what comes of it."""
        write_task(self.root / "empty")
        for seed in (0, 1):
            place = self.fresh()
            self.totals["fit"] = self.forks.changes(place, *fit_command(seed))
            for name in SAME:
                self.files[name, str(seed)] = (place / "run" / name).read_bytes()
            if seed == 0:
                shutil.copytree(place, self.root / "fitted")
        (self.root / "fitted" / "run" / "notes.txt").write_text("my own")

    def prepare(self) -> None:
        """Run every other command once too, and count the changes of files that it makes."""
        self.prepare_runs()
        push_run(self.root / "fitted" / "run", "ann/colors", endpoint=self.hub.address)
        for name, start, command in (
            ("overwrite", "fitted", fit_command(1, "--overwrite")),
            ("transfer", "fitted", TRANSFER),
            ("report", "fitted", ["report", "run"]),
            ("edit", "fitted", ["(edit)", "run", "fake:16-0"]),
            ("compare", "empty", COMPARE),
            ("several", "empty", SEVERAL),
            ("pool", "empty", POOL),
            ("generate", "empty", self.generate),
            ("both", "empty", BOTH),
            ("refit", "fitted", REFIT),
            ("embed", "empty", EMBED),
            ("pull", "empty", self.pull),
        ):
            place = self.fresh(start)
            self.totals[name] = self.forks.changes(place, *command)
            for path in place.rglob("*"):
                if path.is_file():
                    self.files[str(path.relative_to(place)), name] = path.read_bytes()

    @property
    def pull(self) -> list[str]:
        """The command that fetches a run from a hub, here one on this machine."""
        return ["pull", "ann/colors", "-o", "run", "--endpoint", self.hub.address, "--quiet"]

    @property
    def generate(self) -> list[str]:
        """The command that asks a language model, here one on this machine."""
        server = ["--model", "m", "--base-url", self.llm, "--per-class", "1", "--quiet"]
        return ["pool", "generate", "ember", "sea", "-o", "llm.json", *server]

    def killed(self, chance: Random, place: Path, kind: str, *command: str) -> None:
        """Run a command, and kill it before one of its changes, or at any moment."""
        if chance.random() < 0.75:
            self.forks.run(place, *command, kill_at=chance.randint(1, self.totals[kind]))
            return
        child = self.forks.start(place, *command)
        time.sleep(chance.uniform(0.0, 0.4))
        os.kill(child, signal.SIGKILL)
        self.forks.wait(child)


def kill_fit(world: World, chance: Random) -> None:
    """A first fit: with --resume it ends as one never killed."""
    place = world.fresh()
    for _ in range(chance.randint(1, 2)):
        world.killed(chance, place, "fit", *fit_command(0, "--resume"))
    succeeded(world.forks.run(place, *fit_command(0, "--resume")))
    check_same_run(world, place, 0)


def kill_overwrite(world: World, chance: Random) -> None:
    """A run is replaced: there is the old one, perhaps with a new one to go on with, or the new one."""
    place = world.fresh("fitted")
    world.killed(chance, place, "overwrite", *fit_command(1, "--overwrite"))
    shown = succeeded(world.forks.run(place, "show", "run", "--json"))
    check(not json.loads(shown.out)["edited"], "mixed", "show")
    seed = check_whole(place / "run")
    check_same_run(world, place, seed, tidy=False)
    again = world.forks.run(place, *fit_command(1, "--resume"))
    if again.code == 2 and seed == 0:  # nothing had begun: the old run is there, and said to be
        check("was made with" in again.err, "stuck", again.err)
        check_same_run(world, place, 0)
        again = world.forks.run(place, *fit_command(1, "--overwrite"))
    succeeded(again)
    check_same_run(world, place, 1)
    check((place / "run/notes.txt").read_text() == "my own", "lost", "notes.txt")


def kill_transfer(world: World, chance: Random) -> None:
    """A row is added to the figures: nothing of the run changes but that."""
    place = world.fresh("fitted")
    world.killed(chance, place, "transfer", *TRANSFER)
    check_same_run(world, place, 0, tidy=False)
    succeeded(world.forks.run(place, *TRANSFER))
    check_same_run(world, place, 0)
    rows = json.loads((place / "run/metrics.json").read_text())["transfers"]
    check([row["encoder"] for row in rows] == ["fake:24-1"], "lost", "transfer")


def kill_report(world: World, chance: Random) -> None:
    """The report and the card are written again."""
    place = world.fresh("fitted")
    world.killed(chance, place, "report", "report", "run")
    check((place / "run/report.html").read_text().rstrip().endswith("</html>"), "mixed", "report")
    succeeded(world.forks.run(place, "report", "run"))
    check_same_run(world, place, 0)


def kill_edit(world: World, chance: Random) -> None:
    """An edited text is saved: it is the old one or the new one, and the head is never of the other."""
    place = world.fresh("fitted")
    world.killed(chance, place, "edit", "(edit)", "run", "fake:16-0")
    text = (place / "run/ensemble.json").read_bytes()
    old, new = world.files["ensemble.json", "0"], world.files["run/ensemble.json", "edit"]
    check(text in (old, new), "mixed", "ensemble.json")
    succeeded(world.forks.run(place, *PREDICT))
    if text == old:
        succeeded(world.forks.run(place, "(edit)", "run", "fake:16-0"))
    check((place / "run/ensemble.json").read_bytes() == new, "lost", "ensemble.json")
    succeeded(world.forks.run(place, "report", "run"))
    check(not left_behind(place), "left behind", *left_behind(place))


def kill_compare(
    world: World, chance: Random, name: str = "compare", command: list[str] = COMPARE
) -> None:
    """A comparison goes on with the same command."""
    place = world.fresh()
    for _ in range(chance.randint(1, 2)):
        world.killed(chance, place, name, *command)
    cells = {path.name: path.read_bytes() for path in (place / "out/cells").glob("*.json")}
    succeeded(world.forks.run(place, *command))
    for cell, content in cells.items():
        check((place / "out/cells" / cell).read_bytes() == content, "made again", cell)
    made = _figures((place / "out/results.csv").read_bytes())
    check(made == _figures(world.files["out/results.csv", name]), "mixed", "results.csv")
    check(not left_behind(place), "left behind", *left_behind(place))


def kill_several(world: World, chance: Random) -> None:
    """A comparison with several encoders goes on with the same command."""
    kill_compare(world, chance, "several", SEVERAL)


def kill_pool(world: World, chance: Random) -> None:
    """A pool is written whole or not at all."""
    place, whole = world.fresh(), world.files["pool.jsonl", "pool"]
    world.killed(chance, place, "pool", *POOL)
    if (place / "pool.jsonl").exists():
        check((place / "pool.jsonl").read_bytes() == whole, "mixed", "pool.jsonl")
    succeeded(world.forks.run(place, *POOL))
    check((place / "pool.jsonl").read_bytes() == whole, "lost", "pool.jsonl")
    check(not left_behind(place), "left behind", *left_behind(place))


def kill_generate(world: World, chance: Random) -> None:
    """Sentences are asked of a language model; the replies that came are kept."""
    place, whole = world.fresh(), world.files["llm.json", "generate"]
    world.killed(chance, place, "generate", *world.generate)
    succeeded(world.forks.run(place, *world.generate))
    check((place / "llm.json").read_bytes() == whole, "mixed", "llm.json")
    check(not left_behind(place), "left behind", *left_behind(place))


def kill_both(world: World, chance: Random) -> None:
    """A fit on two encoders goes on to the same text and the same two heads."""
    place = world.fresh()
    for _ in range(chance.randint(1, 2)):
        world.killed(chance, place, "both", *BOTH)
    succeeded(world.forks.run(place, *BOTH))
    _check_same_files(
        world, place, "both", "run/ensemble.json", "run/head-*", "run/predictions.csv"
    )


def kill_refit(world: World, chance: Random) -> None:
    """A run is fitted again in its place: it is the old one or the new one."""
    place = world.fresh("fitted")
    world.killed(chance, place, "refit", *REFIT)
    check_whole(place / "run")
    text = (place / "run/ensemble.json").read_bytes()
    new = world.files["run/ensemble.json", "refit"]
    check(text in (world.files["ensemble.json", "0"], new), "mixed", "ensemble.json")
    succeeded(world.forks.run(place, *PREDICT))
    check((place / "run/notes.txt").read_text() == "my own", "lost", "notes.txt")
    if text != new:
        succeeded(world.forks.run(place, *REFIT))
        _check_same_files(world, place, "refit", "run/ensemble.json", "run/head-*")


def kill_embed(world: World, chance: Random) -> None:
    """Images are embedded shard by shard: shards that are there are whole, and are not made again."""
    place = world.fresh()
    world.killed(chance, place, "embed", *EMBED)
    killed = {path.name: path.read_bytes() for path in (place / "out").rglob("*.safetensors")}
    succeeded(world.forks.run(place, *EMBED))
    made = {path.name: path.read_bytes() for path in (place / "out").rglob("*.safetensors")}
    # The names of shards depend on where the images are.
    shutil.rmtree(place / "out")
    succeeded(world.forks.run(place, *EMBED))
    whole = {path.name: path.read_bytes() for path in (place / "out").rglob("*.safetensors")}
    check(made == whole and killed.items() <= whole.items(), "mixed", *made)
    check(not left_behind(place), "left behind", *left_behind(place))


def kill_pull(world: World, chance: Random) -> None:
    """A run is fetched from a hub: it is there whole, or not at all."""
    place = world.fresh()
    world.killed(chance, place, "pull", *world.pull)
    if (place / "run/ensemble.json").exists():
        succeeded(world.forks.run(place, *PREDICT))
    succeeded(world.forks.run(place, *world.pull, "--overwrite"))
    _check_same_files(world, place, "pull", "run/*.json", "run/head-*")


def _check_same_files(world: World, place: Path, name: str, *patterns: str) -> None:
    """Raise unless files are, byte for byte, those of a command that was never killed."""
    expected = [
        file
        for file, command in world.files
        if command == name and any(fnmatch(file, pattern) for pattern in patterns)
    ]
    check(expected, "lost", patterns)
    for file in expected:
        same = (place / file).exists() and (place / file).read_bytes() == world.files[file, name]
        check(same, "mixed", file)
    check(not left_behind(place), "left behind", *left_behind(place))


def check_same_run(world: World, place: Path, seed: int, *, tidy: bool = True) -> None:
    """Raise unless the run of a folder is, byte for byte, the one a fit with this seed makes."""
    check(check_whole(place / "run") == seed, "lost", f"the run of seed {seed}")
    for name in SAME:
        file = place / "run" / name
        check(file.exists() and file.read_bytes() == world.files[name, str(seed)], "mixed", name)
    if tidy:
        check(not left_behind(place), "left behind", *left_behind(place))
        check(not (place / "run/partial.json").exists(), "left behind", "partial.json")


def _figures(table: bytes) -> list[list[str]]:
    """Return the rows of results.csv without what is measured in seconds."""
    rows = list(csv.DictReader(table.decode().splitlines()))
    timed = ("seconds", "fit_s", "predict_ms")
    return [[value for name, value in row.items() if name not in timed] for row in rows]


KINDS: tuple[Callable[[World, Random], None], ...] = (
    *(kill_overwrite, kill_fit, kill_transfer, kill_overwrite, kill_compare, kill_edit),
    *(kill_overwrite, kill_fit, kill_pool, kill_generate, kill_report),
    *(kill_both, kill_refit, kill_embed, kill_pull, kill_several),
)


def repeat(
    world: World,
    kinds: tuple[Callable[[World, Random], None], ...],
    count: int,
    seed: int,
    faults: list[str] | None,
) -> dict[str, int]:
    """Try so many times, each kind in turn; return how often each outcome came."""
    outcomes: Counter[str] = Counter()
    for number, chance in enumerate(chances(count, seed)):
        kind = kinds[number % len(kinds)]
        outcome = "ok"
        try:
            kind(world, chance)
        except FaultError as fault:
            outcome = f"{kind.__name__}: {fault.args[0]}"
            line = f"try {number} of seed {seed}, {kind.__name__}: {fault.args}"
            if faults is None:
                print(line[:2000], file=sys.stderr)
            else:
                faults.append(line)
        outcomes[outcome] += 1
        shutil.rmtree(world.root / f"try-{world.tries}")
    return dict(outcomes)


def run(count: int, seed: int, *, faults: list[str] | None = None) -> dict[str, int]:
    """Kill so many commands, each kind in turn; return how often each outcome came.

    `faults` gets a line for each outcome that is not "ok", by which it can be repeated; else it is
    printed on stderr.
    """
    with (
        tempfile.TemporaryDirectory(prefix="promptboost-kills-") as folder,
        Server(lambda question, _: Act(f"A fine {len(question)}.")) as server,
        Hub() as hub,
        Forks(Path(folder) / "output") as forks,
    ):
        world = World(forks, Path(folder), server.url, hub)
        world.prepare()
        return repeat(world, KINDS, count, seed, faults)
