"""Every method on the same pictures, the same draws and the same embeddings."""

import dataclasses
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.encoders import Encoder
from promptboost.errors import FileFormatError, PromptBoostError
from promptboost.experiments.cells import Key, Notebook, Result
from promptboost.experiments.request import CompareRequest, check_same
from promptboost.experiments.world import Draw, World
from promptboost.methods import (
    METHODS,
    Fitted,
    Method,
    Pictures,
    Transfer,
    load_fitted,
    make_method,
    save_fitted,
)
from promptboost.runs.measures import accuracy, class_accuracy

__all__ = ["Compared", "compare"]

Say = Callable[[str], None]

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


@dataclass(frozen=True)
class _Cell:
    """One method, learnt from one draw, and everywhere it is to be measured."""

    spelling: str
    method: Method
    shots: int
    seed: int

    def key(self, world: World, on: Encoder) -> Key:
        return {
            "method": self.spelling,
            "shots": self.shots,
            "seed": self.seed,
            "encoder": world.encoder.id,
            "on": on.id,
        }

    def seeded(self) -> Method:
        """Give the method, with the seed of the draw where it draws itself."""
        names = {f.name for f in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if "seed" not in names:
            return self.method
        return dataclasses.replace(self.method, seed=self.seed)  # type: ignore[type-var]


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
    methods = _usable(request, world, say)
    check_same(request.out, _about(request, world), say)
    cells = [
        _Cell(spelling, method, shots, seed)
        for spelling, method in methods.items()
        for shots in request.shots
        for seed in request.seeds
    ]
    book = Notebook(request.out / "cells.jsonl")
    failed = _run(request, world, book, cells, say)
    wanted = [cell.key(world, on) for cell in cells for on in (world.encoder, *world.targets)]
    return Compared(book.results(wanted), failed)


def _usable(request: CompareRequest, world: World, say: Say) -> dict[str, Method]:
    """Make the methods; refuse those that cannot be used, or leave them out of all."""
    wanted = list(METHODS) if request.methods == ("all",) else list(request.methods)
    found: dict[str, Method] = {name: make_method(name) for name in wanted}
    first = world.draw(request.shots[0], request.seeds[0]).learn
    for name, method in list(found.items()):
        encoders = [world.encoder]
        if method.carries_over is Transfer.REFIT:
            encoders += world.targets
        try:
            for encoder in encoders:
                method.check(first, world.pool, encoder)
        except PromptBoostError as error:
            if request.methods != ("all",):
                raise type(error)(f"{name} cannot be used here: {error}") from error
            say(f"without {name}: {error}")
            del found[name]
    return found


def _run(
    request: CompareRequest, world: World, book: Notebook, cells: list[_Cell], say: Say
) -> list[str]:
    from tqdm import tqdm

    missing = [
        cell
        for cell in cells
        if any(cell.key(world, on) not in book for on in (world.encoder, *world.targets))
    ]
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
    return failed


def _measure(
    request: CompareRequest, world: World, book: Notebook, cell: _Cell
) -> Iterator[tuple[Key, Result, float]]:
    """Fit once, then measure on the encoder it was learnt with and on all others."""
    draw = world.draw(cell.shots, cell.seed)
    folder = request.out / "fitted" / _folder_name(cell)
    fitted: Fitted | None = None
    for on in (world.encoder, *world.targets):
        key = cell.key(world, on)
        if key in book:
            continue
        draw.learn.pictures.views(on if _learns_on(cell, world, on) else world.encoder)
        draw.held_out.rows(on)
        start = time.perf_counter()
        if fitted is None and not (on is not world.encoder and _learns_on(cell, world, on)):
            fitted = _fit_or_load(cell, world, draw, folder, book)
        there = fitted if on is world.encoder else _carried(cell, world, draw, fitted, on)
        assert there is not None
        seconds = time.perf_counter() - start
        result = _figures(there, draw, on is world.encoder, seconds)
        result["predict_ms"] = _time_to_predict(there, world, book, key)
        result["via"] = "" if on is world.encoder else cell.method.carries_over.name.lower()
        yield key, result, seconds


def _learns_on(cell: _Cell, world: World, on: Encoder) -> bool:
    return on is world.encoder or cell.method.carries_over is Transfer.REFIT


def _fit_or_load(cell: _Cell, world: World, draw: Draw, folder: Path, book: Notebook) -> Fitted:
    """Fit, and keep what was learnt: a further encoder then needs no further fit."""
    if cell.key(world, world.encoder) in book:
        try:
            return load_fitted(folder, world.encoder)
        except FileFormatError:
            pass  # gone or damaged: learnt again, with the same result
    fitted = cell.seeded().fit(draw.learn, world.pool, world.encoder)
    save_fitted(fitted, folder)
    return fitted


def _carried(cell: _Cell, world: World, draw: Draw, fitted: Fitted | None, on: Encoder) -> Fitted:
    if cell.method.carries_over is Transfer.REFIT:
        return cell.seeded().fit(draw.learn, world.pool, on)
    assert fitted is not None
    if cell.method.carries_over is Transfer.EMULATED:
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


def _folder_name(cell: _Cell) -> str:
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
