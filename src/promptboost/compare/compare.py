"""Every method on the same images, the same draws and the same embeddings."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.compare.cell_worker import Cell, CellWorker, about
from promptboost.compare.cells import (
    CellResult,
    CompareRequest,
    Key,
    Notebook,
    Result,
    check_comparison,
    check_same,
)
from promptboost.compare.summary import (
    accuracy_figure,
    curves,
    markdown,
    to_csv,
    unseen_lines,
    with_times,
)
from promptboost.compare.world import World
from promptboost.distributed.engine import (
    Engine,
    Job,
    Placement,
    Receipt,
    Say,
    WorkUnit,
    run_units,
)
from promptboost.errors import PromptBoostError, RunError, count
from promptboost.io import write_text, writing
from promptboost.methods import METHODS, Transfer, make_method
from promptboost.progress import stage
from promptboost.report.phrases import as_text
from promptboost.run.overlap import Overlap

_WORKER = "promptboost.compare.cell_worker:CellWorker"


def usable_cells(request: CompareRequest, world: World, book: Notebook, say: Say) -> list[Cell]:
    """Make the methods and what is to be done with them; raise for one that cannot be used."""
    spelled = [name for name in request.methods if name != "all"]
    every = METHODS if "all" in request.methods else ()
    methods = {name: make_method(name) for name in (*every, *spelled)}
    first = world.draw(request.shots[0], request.seeds[0]).learn
    usable: list[Cell] = []
    for name, method in methods.items():
        cells = [Cell(name, method, k, seed) for k in request.shots for seed in request.seeds]
        # What is all there can be shown, though a server that it needs is down.
        if any(key not in book for cell in cells for key in cell.keys(world)):
            again = method.carries_over is Transfer.REFIT
            try:
                for encoder in world.encoders_for(method) if again else [world.encoder]:
                    method.check(first, world.pool, encoder)
            except PromptBoostError as error:
                if name in spelled:
                    raise type(error)(f"{name} cannot be used here: {error}") from error
                say(f"without {name}: {error}")
                continue
        usable += cells
    return usable


def say_what_is_short(request: CompareRequest, world: World, say: Say) -> None:
    """Tell where a number of shots is not what every class gets."""
    for shots in request.shots:
        learn = world.draw(shots, request.seeds[0]).learn
        counts = np.bincount(learn.labels, minlength=learn.n_classes)
        if fewer := int((counts < shots).sum()):
            say(
                f"at {shots} shots {fewer} of {learn.n_classes} classes have fewer images to learn "
                f"from, {counts.min()} at least: all that they have are taken"
            )


@dataclass(frozen=True)
class Compared:
    """What a comparison has found."""

    lines: list[Result]  # one for each method, number of shots, seed and encoder
    failed: list[str] = field(default_factory=list)  # what could not be done, and why
    # Copies among the images of each draw, by shots and seed.
    overlaps: dict[tuple[int, int], Overlap] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """What people should know of the images: of the draw with the most leaks."""
        if not self.overlaps:
            return []
        (shots, seed), worst = max(self.overlaps.items(), key=lambda item: item[1].leaks.images)
        return [f"{shots} shots, seed {seed}: {line}" for line in worst.lines()]

    def overlap_records(self) -> list[dict[str, Any]]:
        """Return the copies of each draw as JSON can hold them."""
        return [
            {"shots": shots, "seed": seed, **msgspec.to_builtins(overlap)}
            for (shots, seed), overlap in self.overlaps.items()
        ]


def compare(
    request: CompareRequest, say: Say = lambda _: None, place: Placement | None = None
) -> Compared:
    """Do what is not there yet, and return all results.

    What cannot be done is refused before any work. Every result is kept as soon as it is there:
    stop it at any time, and the same request goes on.

    Parameters
    ----------
    request : CompareRequest
    say : callable, optional
        Called with a line for people now and then.
    place : Placement, optional
        Where the fits are done, and which of them; by default all of them, in this process. Wherever it
        is, the results are the same but for what is measured in time.
    """
    place = place or Placement()
    world = World(request)
    check_comparison(request.out)
    with _writing(request, place, say):
        book = Notebook(request.out / "cells.jsonl", CellResult, about(request, world))
        cells = usable_cells(request, world, book, say)
        check_same(request.out, about(request, world), world.target_weights, say)
        if book.damaged:
            damaged = count(book.damaged, "damaged cell")
            say(f"{damaged} in {request.out} left aside: what is not there is done again")
            book.drop_damaged()
        say_what_is_short(request, world, say)
        overlaps = {
            (k, seed): world.inspection(k, seed).overlap
            for k in request.shots
            for seed in request.seeds
        }
        compared = Compared([], [], overlaps)
        for line in compared.remarks:
            say(line)
        wanted = [key for cell in cells for key in cell.keys(world)]
        _say_what_is_old(request.out, book, wanted, say)
        if place.merge:
            _check_whole(request.out, book, wanted)
        else:
            campaign = _Campaign(request, world, book, place, say)
            compared.failed.extend(campaign.run(cells))
        if place.share is None:
            book.write()
    compared.lines.extend(with_times(book.results(wanted), book.results(book)))
    return compared


def _say_what_is_old(out: Path, book: Notebook, wanted: Sequence[Key], say: Say) -> None:
    """Tell of results that are there, but by other code: beside new ones they would mislead."""
    old = {_fit(key) for key in book}
    stale = sum(key not in book and _fit(key) in old for key in wanted)
    if stale:
        say(
            f"{count(stale, 'result')} in {out} made by other code than this version's: kept in "
            "cells.jsonl, but measured again for the tables"
        )


def _fit(key: Key) -> tuple[Any, ...]:
    return tuple(key.get(name) for name in ("method", "shots", "seed", "encoder", "on"))


def _writing(
    request: CompareRequest, place: Placement, say: Say
) -> contextlib.AbstractContextManager[None]:
    """Be the only writer, unless this is one of several parts that work at the same time."""
    if place.share is not None:
        request.out.mkdir(parents=True, exist_ok=True)
        return contextlib.nullcontext()
    # Another comparison in this folder may be doing part of the work: it is waited for, then used.
    return writing(request.out, "comparison", patience=math.inf, say=say)


def _check_whole(out: Path, book: Notebook, wanted: Sequence[Key]) -> None:
    missing = sum(key not in book for key in wanted)
    if missing:
        raise RunError(
            f"{missing} of {count(len(wanted), 'cell')} are not in {out} yet; the same command without "
            "--merge does them, or the parts that have not ended"
        )


class _Campaign:
    """The cells of a comparison: which are missing, and who does them."""

    def __init__(
        self, request: CompareRequest, world: World, book: Notebook, place: Placement, say: Say
    ) -> None:
        self._request, self._world, self._book = request, world, book
        self._place, self._say = place, say
        self._timed = {_whose(key) for key in book}  # time to predict is measured once for each

    def run(self, cells: Sequence[Cell]) -> list[str]:
        """Do what is missing; return what could not be done, and why."""
        share = self._place.share
        ours = list(cells if share is None else share.of_units(cells))
        failed: dict[str, None] = {}
        engine = None
        # What is carried elsewhere is learnt at home first, and once.
        try:
            for at_home in (True, False):
                units = list(self._units(ours, at_home=at_home))
                if units:
                    engine = engine or self._place.engine(self._say)
                    failed |= dict.fromkeys(self._do(engine, units))
        finally:
            if engine is not None:
                engine.close()
        return list(failed)

    def _units(self, cells: Sequence[Cell], *, at_home: bool) -> Iterator[tuple[WorkUnit, Cell]]:
        for cell in cells:
            home, *others = cell.keys(self._world)
            # Where it could not be learnt at home, that has been said already.
            wanted = [(0, home)] if at_home else list(enumerate(others, 1)) * (home in self._book)
            for on, key in wanted:
                if key in self._book:
                    continue
                timed = self._request.timed and _whose(key) not in self._timed
                self._timed.add(_whose(key))
                order = {
                    "method": cell.spelling,
                    "shots": cell.shots,
                    "seed": cell.seed,
                    "on": on,
                    "timed": timed,
                    "code": cell.code,
                }
                yield WorkUnit(self._book.name(key), order), cell

    def _do(self, engine: Engine, units: Sequence[tuple[WorkUnit, Cell]]) -> list[str]:
        request, world = self._request, self._world
        inputs = {**about(request, world), "targets": world.target_weights}
        settings = {"request": request.settings(), "inputs": inputs}
        job = Job(_WORKER, settings, str(request.out.absolute()), "cells", request.device)
        named = {unit.name: cell for unit, cell in units}
        failed: list[str] = []
        worker = CellWorker.around(request, world)
        if not self._place.elsewhere:
            # Whatever is wrong, the cells will say it; and those that are done shall be shown.
            with contextlib.suppress(Exception):
                for unit, _ in units:
                    worker.embed(unit.order)
        with stage(request.progress, "comparing", len(units)) as advance:

            def note(receipt: Receipt) -> None:
                cell = named[receipt.name]
                problem = receipt.problem
                if problem is None and not self._book.take(receipt.name):
                    problem = "its file cannot be read"
                if problem is not None:
                    failed.append(f"{cell}: {problem}")
                    self._say(f"left out: {failed[-1]}")

            orders = (unit for unit, _ in units)
            run_units(engine, job, orders, advance=advance, worker=worker, each=note)
        return failed


def _whose(key: Key) -> tuple[Any, ...]:
    return tuple(key.get(name) for name in ("method", "encoder", "on", "code"))


def write_results(request: CompareRequest, compared: Compared) -> list[Path]:
    """Write what a comparison has found into its folder."""
    if not compared.lines:
        return []
    encoders = list(dict.fromkeys(line["on"] for line in compared.lines))
    panels = []
    page = [f"# {as_text(request.source)}\n"]
    for on in encoders:
        drawn = curves(compared.lines, on)
        title = f"on {on}" if not drawn[0].via else f"carried from {request.encoder} to {on}"
        panels.append((title, drawn))
        page.append(f"## Accuracy {as_text(title)}\n\n{markdown(drawn, request.shots)}\n")
    page.append(
        f"Per cent, {_spread(request.seeds)}; the best of each column is bold. Time of a fit at the "
        "most shots, with images embedded already; time of an image from file to answer.\n"
    )
    notes = {
        "Copies among the images": [*compared.remarks, *unseen_lines(compared.lines)],
        "Left out": compared.failed,
    }
    for head, lines in notes.items():
        if lines:
            page.append("\n".join([f"{head}:\n", *(f"- {as_text(line)}" for line in lines), ""]))
    files = {
        "results.csv": to_csv(compared.lines),
        "results.md": "\n".join(page),
        "accuracy.svg": accuracy_figure(panels, request.shots),
    }
    with writing(request.out, "comparison"):
        for name, text in files.items():
            write_text(request.out / name, text, follow=False)
    return [request.out / name for name in files]


def _spread(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"of the draw {seeds[0]} alone"
    return f"mean ± standard deviation over the draws {', '.join(map(str, seeds))}"
