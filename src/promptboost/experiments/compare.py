"""Every method on the same pictures, the same draws and the same embeddings."""

import errno
import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.encoders import Encoder
from promptboost.errors import FileFormatError, PromptBoostError, RunError
from promptboost.experiments.cells import Key, Notebook, Result
from promptboost.experiments.plan import Cell, Say, say_what_is_short, usable_cells
from promptboost.experiments.request import CompareRequest, check_same
from promptboost.experiments.summary import with_times
from promptboost.experiments.world import Draw, World
from promptboost.methods import (
    Fitted,
    Pictures,
    Transfer,
    load_fitted,
    save_fitted,
)
from promptboost.runs.measures import accuracy, class_accuracy

__all__ = ["Compared", "compare"]

# Pictures that time to predict is measured with, from file to answer.
_TIMED = 8


@dataclass(frozen=True)
class Compared:
    """What a comparison has found.

    Attributes
    ----------
    lines : list of dict
        One for each method, number of shots, seed and encoder.
    failed : list of str
        What could not be done, and why.
    """

    lines: list[Result]
    failed: list[str] = field(default_factory=list)


def compare(request: CompareRequest, say: Say = lambda _: None) -> Compared:
    """Do what is not there yet, and give all results.

    What cannot be done is refused before any work. Every result is kept as soon as it is there:
    stop it at any time, and the same request goes on.

    Parameters
    ----------
    request : CompareRequest
        What to do.
    say : callable, optional
        Called with a line for people now and then.

    Raises
    ------
    PromptBoostError
        If a method is unknown or cannot be used here, or the folder holds other results.
    """
    world = World(request)
    book = Notebook(request.out / "cells.jsonl")
    cells = usable_cells(request, world, book, say)
    check_same(request.out, _about(request, world), say)
    say_what_is_short(request, world, say)
    failed = _run(request, world, book, cells, say)
    wanted = [key for cell in cells for key in cell.keys(world)]
    return Compared(with_times(book.results(wanted), book.results(book)), failed)


def _run(
    request: CompareRequest, world: World, book: Notebook, cells: list[Cell], say: Say
) -> list[str]:
    from tqdm import tqdm

    missing = [cell for cell in cells if any(key not in book for key in cell.keys(world))]
    failed: list[str] = []
    hidden = None if request.progress else True
    with tqdm(missing, unit=" fits", disable=hidden, leave=False) as bar:
        for cell in bar:
            bar.set_description(f"{cell.spelling}, {cell.shots} shots, seed {cell.seed}")
            try:
                for key, result, seconds in _measure(request, world, book, cell):
                    book.keep(key, [result], seconds)
            except PromptBoostError as error:
                line = f"{cell.spelling}, {cell.shots} shots, seed {cell.seed}: {error}"
                failed.append(line)
                say(f"left out: {line}")
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise RunError(
                    f"{error.strerror}, in {request.out} or where embeddings are kept. What is done is "
                    "kept: make room, and the same command goes on"
                ) from error
    return failed


def _measure(
    request: CompareRequest, world: World, book: Notebook, cell: Cell
) -> Iterator[tuple[Key, Result, float]]:
    """Fit once, then measure on the encoder it was learnt with and on all others."""
    draw = world.draw(cell.shots, cell.seed)
    folder = request.out / "fitted" / _folder_name(cell)
    via = cell.method.carries_over
    fitted: Fitted | None = None
    for on in (world.encoder, *world.targets):
        key = cell.key(world, on)
        if key in book:
            continue
        at_home = on is world.encoder
        learns_there = not at_home and via is Transfer.REFIT
        # Embedding is not part of a fit's time.
        draw.learn.pictures.views(on if learns_there else world.encoder)
        draw.held_out.rows(on)
        start = time.perf_counter()
        if learns_there:
            there = cell.seeded().fit(draw.learn, world.pool, on)
        else:
            fitted = fitted or _fit_or_load(cell, world, draw, folder, book)
            there = fitted if at_home else _carried(fitted, via, on)
        seconds = time.perf_counter() - start
        result = _figures(there, draw, at_home, seconds)
        result["predict_ms"] = _time_to_predict(there, world, book, key)
        result["via"] = "" if at_home else via.name.lower()
        yield key, result, seconds


def _fit_or_load(cell: Cell, world: World, draw: Draw, folder: Path, book: Notebook) -> Fitted:
    """Fit, and keep what was learnt: a further encoder then needs no further fit."""
    if cell.key(world, world.encoder) in book:
        try:
            return load_fitted(folder, world.encoder)
        except FileFormatError:
            pass  # gone or damaged: learnt again, with the same result
    fitted = cell.seeded().fit(draw.learn, world.pool, world.encoder)
    save_fitted(fitted, folder)
    return fitted


def _carried(fitted: Fitted, via: Transfer, on: Encoder) -> Fitted:
    if via is Transfer.EMULATED:
        from promptboost.methods.eft import emulate

        return emulate(fitted, on)
    return fitted.transfer(on)


def _figures(fitted: Fitted, draw: Draw, at_home: bool, seconds: float) -> Result:
    guesses = fitted.predict(draw.held_out)
    words = fitted.words()
    return {
        "accuracy": accuracy(guesses, draw.labels),
        "class_accuracy": class_accuracy(guesses, draw.labels),
        "learn_accuracy": (
            accuracy(fitted.predict(draw.learn.pictures), draw.learn.labels) if at_home else None
        ),
        "prompts": None if words is None else float(np.mean([len(bank) for bank in words])),
        "fit_s": round(seconds, 3),
        "image_passes": len(fitted.encoders_asked),
    }


def _time_to_predict(fitted: Fitted, world: World, book: Notebook, key: Key) -> float | None:
    """Measure from file to answer, without the store; once for a method on an encoder."""
    same = ("method", "encoder", "on")
    if any(all(k[name] == key[name] for name in same) for k in book):
        return None
    fitted.predict(world.few(1))  # what is read only once is read now
    pictures: Pictures = world.few(_TIMED)
    start = time.perf_counter()
    fitted.predict(pictures)
    return round(1000 * (time.perf_counter() - start) / len(pictures), 3)


def _folder_name(cell: Cell) -> str:
    name = re.sub(r"[^\w.+-]+", "_", cell.spelling)
    if name != cell.spelling:  # two spellings must not meet in one folder
        name += "-" + hashlib.blake2b(cell.spelling.encode(), digest_size=4).hexdigest()
    return f"{name}/{cell.shots}-shots-seed-{cell.seed}"


def _about(request: CompareRequest, world: World) -> dict[str, Any]:
    return {
        "pictures": world.data.fingerprint,
        "words": world.pool.fingerprint,
        "views": [request.words.views, request.words.view_scale],
        "encoder": [world.encoder.id, world.encoder.fingerprint],
    }
