"""Races: commands that write into one folder, or read it, at the same time.

Whoever comes second waits, or is told who is there; the files in a folder are always of one command.
"""

import csv
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.attack.forks import COMPARE, PREDICT, Ended, Forks, fit_command, left_behind
from tests.attack.kills import World, check, check_same_run, check_whole, repeat, succeeded

HARMLESS = frozenset({"ok"})
ENCODERS = ("fake:24-1", "fake:24-2", "fake:24-3", "fake:24-4")


def at_once(world: World, chance: Random, place: Path, *commands: list[str]) -> list[Ended]:
    """Start commands almost at once, and wait for all of them."""
    children = []
    for command in commands:
        children.append(world.forks.start(place, *command))
        time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.05), chance.uniform(0.0, 0.5))))
    ended = [world.forks.wait(child) for child in children]
    for one in ended:
        check(one.code is not None, "stuck")
        check(one.code in (0, 2), "crash", one.err)
    return ended


def race_fits(world: World, chance: Random) -> None:
    """Two fits into one new folder: one does it, the other is told; no file is of the other."""
    place = world.fresh()
    ended = at_once(world, chance, place, fit_command(0), fit_command(1))
    codes = [one.code for one in ended]
    check(sorted(codes) == [0, 2], "mixed", codes)
    told = ended[codes.index(2)].err
    check("is writing to run" in told or "run in run" in told, "unclear", told)
    check_same_run(world, place, codes.index(0))


def race_overwrites(world: World, chance: Random) -> None:
    """Two fits replace one run: one after the other, or one is told; the run is of one of them."""
    place = world.fresh("fitted")
    both = [fit_command(seed, "--overwrite") for seed in (0, 1)]
    codes = [one.code for one in at_once(world, chance, place, *both)]
    check(0 in codes, "stuck", codes)
    seed = check_whole(place / "run")
    check(codes[seed] == 0, "mixed", codes, seed)
    check_same_run(world, place, seed)
    check((place / "run/notes.txt").exists(), "lost", "notes.txt")


def race_fit_and_resume(world: World, chance: Random) -> None:
    """A fit and one that would go on with it: the run is finished, once."""
    place = world.fresh()
    ended = at_once(world, chance, place, fit_command(0), fit_command(0, "--resume"))
    check(0 in [one.code for one in ended], "stuck", ended)
    check_same_run(world, place, 0)


def race_transfers(world: World, chance: Random) -> None:
    """Four transfers of one run: all four rows are there, and all four heads."""
    place = world.fresh("fitted")
    plain = ["--no-cache", "--quiet"]
    commands = [["transfer", "run", "--encoder", encoder, *plain] for encoder in ENCODERS]
    for one in at_once(world, chance, place, *commands):
        succeeded(one)
    rows = json.loads((place / "run/metrics.json").read_text())["transfers"]
    check(sorted(row["encoder"] for row in rows) == list(ENCODERS), "lost", rows)
    for encoder in ENCODERS:
        head = place / "run" / f"head-{encoder.replace(':', '-')}.safetensors"
        check(head.exists(), "lost", head.name)
        check(encoder in (place / "run/report.html").read_text(), "lost", "report", encoder)
    check_same_run(world, place, 0)


def race_compares(world: World, chance: Random) -> None:
    """Two comparisons into one folder: both are whole, and its tables are of one of them."""
    place = world.fresh()
    names = ("zero-shot,logistic", "zero-shot,pool-mean")
    commands = [[names[i] if part == names[0] else part for part in COMPARE] for i in (0, 1)]
    for one in at_once(world, chance, place, *commands):
        succeeded(one)
    cells = [json.loads(line) for line in (place / "out/cells.jsonl").read_text().splitlines()]
    keys = [json.dumps(cell["key"], sort_keys=True) for cell in cells]
    check(len(keys) == len(set(keys)) == 6, "mixed", keys)
    with (place / "out/results.csv").open() as file:
        methods = {row["method"] for row in csv.DictReader(file)}
    check(methods in [set(name.split(",")) for name in names], "mixed", methods)
    page = (place / "out/results.md").read_text()
    other = {"logistic": "pool-mean", "pool-mean": "logistic"}
    [told] = methods - {"zero-shot"}
    check(told in page and other[told] not in page, "mixed", "results.md")
    check(not left_behind(place), "left behind", *left_behind(place))


def race_readers(world: World, chance: Random) -> None:
    """A run is replaced while others read it: each sees the old one or the new one, never both."""
    place = world.fresh("fitted")
    reader = ["(read on)", "run", "fake:16-0", f"{chance.uniform(0.5, 1.5):.2f}"]
    new = fit_command(1, "--overwrite")
    show = ["show", "run", "--json"]
    ended = at_once(world, chance, place, reader, new, show, PREDICT, show)
    for one in ended:
        succeeded(one)
    for text, measured, asked, seed in json.loads(ended[0].out):
        check(text == measured and asked == seed, "mixed", ended[0].out)
    for one in (ended[2], ended[4]):
        check(not json.loads(one.out)["edited"], "mixed", "show")
    check_same_run(world, place, 1)


KINDS: tuple[Callable[[World, Random], None], ...] = (
    *(race_fits, race_transfers, race_readers, race_overwrites, race_compares),
    *(race_fits, race_readers, race_fit_and_resume),
)


def run(count: int, seed: int, *, faults: list[str] | None = None) -> dict[str, int]:
    """Run so many races, each kind in turn; return how often each outcome came.

    `faults` gets a line for each outcome that is not "ok", by which it can be repeated; else it is
    printed on stderr.
    """
    with (
        tempfile.TemporaryDirectory(prefix="promptboost-races-") as folder,
        Forks(Path(folder) / "output") as forks,
    ):
        world = World(forks, Path(folder))
        world.prepare_runs()
        return repeat(world, KINDS, count, seed, faults)
