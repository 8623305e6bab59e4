"""Comparison of methods on the same images, draws and embeddings."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from promptboost.compare.cell_worker import Cell, CellWorker, about, inputs_of
from promptboost.compare.cells import (
    CellResult,
    CellRunner,
    CompareRequest,
    Key,
    Result,
    ResultLog,
    check_folder,
    check_same,
)
from promptboost.compare.comparison import Comparison
from promptboost.compare.summary import (
    COLUMNS,
    accuracy_figure,
    curves,
    markdown,
    to_csv,
    unseen_lines,
    with_times,
)
from promptboost.distributed.engine import Job, Placement, Say, WorkUnit
from promptboost.errors import PromptBoostError, RunError, count
from promptboost.io import write_text, writing
from promptboost.methods import make_method
from promptboost.methods.base import Transfer
from promptboost.methods.registry import METHODS
from promptboost.report.svg import as_text
from promptboost.run.overlap import Overlap

_WORKER = "promptboost.compare.cell_worker:open_worker"


def usable_cells(
    request: CompareRequest, comparison: Comparison, log: ResultLog, say: Say
) -> list[Cell]:
    """Return the cells of all usable methods; raise if a named one cannot be used."""
    spelled = [name for name in request.methods if name != "all"]
    every = METHODS if "all" in request.methods else ()
    methods = {name: make_method(name) for name in (*every, *spelled)}
    first = comparison.draw(request.shots[0], request.seeds[0]).learn
    usable: list[Cell] = []
    for name, method in methods.items():
        cells = [Cell(name, k, seed) for k in request.shots for seed in request.seeds]
        # Complete results are shown even if the method cannot be used now.
        if any(key not in log for cell in cells for key in cell.keys(comparison)):
            again = method.carries_over is Transfer.REFIT
            try:
                for encoder in comparison.encoders if again else [comparison.encoder]:
                    method.check(first, comparison.pool, encoder)
            except PromptBoostError as error:
                if name in spelled:
                    raise type(error)(f"{name} cannot be used here: {error}") from error
                say(f"without {name}: {error}")
                continue
        usable += cells
    return usable


def report_short(request: CompareRequest, comparison: Comparison, say: Say) -> None:
    """Report numbers of shots that some classes do not have."""
    for shots in () if request.uneven else request.shots:
        learn = comparison.draw(shots, request.seeds[0]).learn
        counts = np.bincount(learn.labels, minlength=learn.n_classes)
        if fewer := int((counts < shots).sum()):
            say(
                f"at {shots} shots {fewer} of {learn.n_classes} classes have fewer training images, "
                f"at least {counts.min()}: all of them are used"
            )


@dataclass(frozen=True)
class Compared:
    """Results of a comparison."""

    lines: list[Result]  # one for each method, number of shots, seed and encoder
    failed: list[str] = field(default_factory=list)  # cells that failed, and why
    # Duplicates among the images of each draw, by shots and seed.
    overlaps: dict[tuple[int, int], Overlap] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """Warnings about duplicates, of the draw with the most leaks."""
        if not self.overlaps:
            return []
        (shots, seed), worst = max(self.overlaps.items(), key=lambda drawn: drawn[1].leaks.images)
        return [f"{shots} shots, seed {seed}: {line}" for line in worst.lines()]

    def overlap_records(self) -> list[dict[str, Any]]:
        """Return JSON-serializable records of the duplicates of each draw."""
        return [
            {"shots": shots, "seed": seed, **msgspec.to_builtins(overlap)}
            for (shots, seed), overlap in self.overlaps.items()
        ]


def compare(
    request: CompareRequest, say: Say = lambda _: None, placement: Placement | None = None
) -> Compared:
    """Measure the missing cells, and return all results.

    Problems are raised before any work. Every result is written at once: an interrupted comparison
    resumes with the same request. Results do not depend on the placement, except for times.
    """
    placement = placement or Placement()
    comparison = Comparison(request)
    out, inputs = request.out, about(request, comparison)
    check_folder(out, "comparison", "compare.json")
    # Wait for another comparison in this folder, then use its results.
    lock = writing(out, "comparison", patience=math.inf, say=say)
    if placement.share is not None:
        out.mkdir(parents=True, exist_ok=True)
    # Parts write at the same time.
    with lock if placement.share is None else contextlib.nullcontext():
        log = ResultLog(out / "cells.jsonl", CellResult, inputs)
        cells = usable_cells(request, comparison, log, say)
        check_same(out, inputs, comparison.target_weights, say)
        log.drop_damaged(say)
        report_short(request, comparison, say)
        inspections = comparison.inspections.items()
        compared = Compared([], [], {draw: found.overlap for draw, found in inspections})
        for line in compared.remarks:
            say(line)
        wanted = [key for cell in cells for key in cell.keys(comparison)]
        missing = [key for key in wanted if key not in log]
        old = {_without_code(key) for key in log}
        if stale := sum(_without_code(key) in old for key in missing):
            say(
                f"{count(stale, 'result')} in {out} made by other code than this version's: kept in "
                "cells.jsonl, but measured again for the tables"
            )
        if not placement.merge:
            compared.failed.extend(
                _measure_missing(request, comparison, log, cells, placement, say)
            )
        elif missing:
            raise RunError(
                f"{len(missing)} of {count(len(wanted), 'cell')} are not in {out} yet; the same command "
                "without --merge does them, or the parts that have not ended"
            )
        if placement.share is None:
            log.write()
    compared.lines.extend(with_times(log.results(wanted), log.results(log)))
    return compared


def _without_code(key: Key) -> tuple[Any, ...]:
    return tuple(key.get(name) for name in ("method", "shots", "seed", "encoder", "on"))


def _measure_missing(
    request: CompareRequest,
    comparison: Comparison,
    log: ResultLog,
    cells: Sequence[Cell],
    placement: Placement,
    say: Say,
) -> list[str]:
    """Measure the missing cells; return those that failed, and why."""
    ours = list(cells if placement.share is None else placement.share.of_units(cells))
    timed = {_whose(key) for key in log}  # time to predict is measured once for each
    settings = {"request": request.settings(), "inputs": inputs_of(request, comparison)}
    job = Job(_WORKER, settings, str(request.out.absolute()), "cells", request.device)
    worker, runner = CellWorker(request, comparison), CellRunner(placement, say)
    failed: dict[str, None] = {}
    try:
        # Fits before transfers; failed fits are reported already.
        for encoders in (range(1), range(1, len(comparison.encoders))):
            units: list[WorkUnit] = []
            named: dict[str, Cell] = {}
            for cell in ours:
                keys = cell.keys(comparison)
                for on in encoders if encoders == range(1) or keys[0] in log else ():
                    if (key := keys[on]) in log:
                        continue
                    order = {
                        "method": cell.spelling,
                        "shots": cell.shots,
                        "seed": cell.seed,
                        "on": on,
                        "timed": _whose(key) not in timed,
                        "code": cell.code,
                    }
                    timed.add(_whose(key))
                    units.append(WorkUnit(log.name(key), order))
                    named[log.name(key)] = cell
            if not placement.elsewhere:
                # An error is raised again by its cell.
                with contextlib.suppress(Exception):
                    for unit in units:
                        worker.embed(unit.order)
            problems = runner.run(log, job, units, worker, "comparing", request.progress)
            for name, problem in problems:
                failed[f"{named[name]}: {problem}"] = None
                say(f"left out: {named[name]}: {problem}")
    finally:
        runner.close()
    return list(failed)


def _whose(key: Key) -> tuple[Any, ...]:
    return tuple(key.get(name) for name in ("method", "encoder", "on", "code"))


def write_results(request: CompareRequest, compared: Compared) -> list[Path]:
    """Write tables and figure of a comparison into its folder."""
    if not compared.lines:
        return []
    encoders = list(dict.fromkeys(line["on"] for line in compared.lines))
    panels = []
    page = [f"# {as_text(request.source)}\n"]
    for on in encoders:
        drawn = curves(compared.lines, on)
        title = f"on {on}" if not drawn[0].via else f"transferred from {request.encoder} to {on}"
        panels.append((title, drawn))
        page.append(f"## Accuracy {as_text(title)}\n\n{markdown(drawn, request.shots)}\n")
    draws = f"mean ± standard deviation over the draws {', '.join(map(str, request.seeds))}"
    if len(request.seeds) == 1:
        draws = f"of the draw {request.seeds[0]} alone"
    page.append(
        f"Percent, {draws}; the best of each column is bold. Time of a fit at the "
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
        "results.csv": to_csv(compared.lines, COLUMNS),
        "results.md": "\n".join(page),
        "accuracy.svg": accuracy_figure(panels, request.shots),
    }
    with writing(request.out, "comparison"):
        for name, text in files.items():
            write_text(request.out / name, text, follow=False)
    return [request.out / name for name in files]
