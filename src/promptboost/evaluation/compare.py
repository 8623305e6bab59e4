"""Every method on the same images, the same draws and the same embeddings."""

import dataclasses
import errno
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.encoders import Encoder
from promptboost.errors import FileFormatError, PromptBoostError, RunError, count
from promptboost.evaluation.cells import (
    CellResult,
    CompareRequest,
    Key,
    Notebook,
    Result,
    check_comparison,
    check_same,
)
from promptboost.evaluation.chart import accuracy_figure
from promptboost.evaluation.measures import Guesses
from promptboost.evaluation.overlap import Overlap
from promptboost.evaluation.summary import (
    curves,
    markdown,
    to_csv,
    unseen_lines,
    with_times,
)
from promptboost.evaluation.world import Draw, World
from promptboost.files import write_text
from promptboost.folders import writing
from promptboost.methods import (
    METHODS,
    Fitted,
    Images,
    Method,
    Transfer,
    load_fitted,
    make_method,
    save_fitted,
)

#: Called with a line for people now and then.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """One method, learnt from one draw, and everywhere it is to be measured."""

    spelling: str
    method: Method
    shots: int
    seed: int

    def key(self, world: World, on: Encoder) -> Key:
        """Return what its result on an encoder is kept under."""
        return {
            "method": self.spelling,
            "shots": self.shots,
            "seed": self.seed,
            "encoder": world.encoder.id,
            "on": on.id,
        }

    def keys(self, world: World) -> list[Key]:
        """Return where it is to be measured: on its own encoder, then on all others."""
        return [self.key(world, on) for on in world.encoders_for(self.method)]

    def seeded(self) -> Method:
        """Return the method, with the seed of the draw where it draws itself and none is spelled."""
        names = {f.name for f in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if "seed" not in names or re.search(r"[?&]seed=", self.spelling):
            return self.method
        return dataclasses.replace(self.method, seed=self.seed)  # type: ignore[type-var]


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


# Images that time to predict is measured with, from file to answer.
_TIMED = 8


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


def compare(request: CompareRequest, say: Say = lambda _: None) -> Compared:
    """Do what is not there yet, and return all results.

    What cannot be done is refused before any work. Every result is kept as soon as it is there:
    stop it at any time, and the same request goes on.
    """
    world = World(request)
    check_comparison(request.out)
    # Another comparison in this folder may be doing part of the work: it is waited for, then used.
    with writing(request.out, "comparison", patience=math.inf, say=say):
        book = Notebook(request.out / "cells.jsonl", CellResult)
        cells = usable_cells(request, world, book, say)
        check_same(request.out, _about(request, world), say)
        if book.damaged:
            lines = count(book.damaged, "damaged line")
            say(
                f"{lines} in {request.out / 'cells.jsonl'} left aside: what is not there is done again"
            )
        say_what_is_short(request, world, say)
        overlaps = {
            (k, seed): world.inspection(k, seed).overlap
            for k in request.shots
            for seed in request.seeds
        }
        compared = Compared([], [], overlaps)
        for line in compared.remarks:
            say(line)
        compared.failed.extend(_run(request, world, book, cells, say))
    wanted = [key for cell in cells for key in cell.keys(world)]
    compared.lines.extend(with_times(book.results(wanted), book.results(book)))
    return compared


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
    for on in world.encoders_for(cell.method):
        key = cell.key(world, on)
        if key in book:
            continue
        at_home = on is world.encoder
        learns_there = not at_home and via is Transfer.REFIT
        # Embedding is not part of a fit's time.
        draw.learn.images.views(on if learns_there else world.encoder)
        draw.held_out.rows(on)
        start = time.perf_counter()
        if learns_there:
            there = cell.seeded().fit(draw.learn, world.pool, on)
        else:
            fitted = fitted or _fit_or_load(cell, world, draw, folder, book)
            there = fitted if at_home else carried(fitted, via, on)
        seconds = time.perf_counter() - start
        leaked = world.inspection(cell.shots, cell.seed).leaked
        result = figures(there, draw, leaked, learnt_there=at_home)
        result["fit_s"] = round(seconds, 3)
        result["predict_ms"] = _time_to_predict(there, world, book, key) if request.timed else None
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


def carried(fitted: Fitted, via: Transfer, on: Encoder) -> Fitted:
    """Carry what was learnt to another encoder, as its method does."""
    if via is Transfer.EMULATED:
        from promptboost.methods.eft import emulate

        return emulate(fitted, on)
    return fitted.transfer(on)


def figures(
    fitted: Fitted,
    draw: Draw,
    leaked: NDArray[np.bool_] | None = None,
    *,
    learnt_there: bool = True,
) -> Result:
    """Measure a classifier on a draw: on the images held out, and on those it learnt from."""
    name, held_out = fitted.origin.method, fitted.predict(draw.held_out)
    if learnt_there:
        learnt = fitted.predict(draw.learn.images)
        measured = Guesses(name, "", held_out, learnt).result(
            draw.labels, draw.learn.labels, leaked
        )
    else:
        measured = Guesses(name, "", held_out).result(draw.labels, leaked=leaked)
    words = fitted.words()
    return {
        "accuracy": measured.accuracy,
        "class_accuracy": measured.class_accuracy,
        "learn_accuracy": measured.learn_accuracy,
        "unseen_accuracy": measured.unseen_accuracy,
        "leaked_images": 0 if leaked is None else int(leaked.sum()),
        "prompts": None if words is None else float(np.mean([len(bank) for bank in words])),
        "image_passes": len(fitted.encoders_asked),
    }


def _time_to_predict(fitted: Fitted, world: World, book: Notebook, key: Key) -> float | None:
    """Measure from file to answer, without the store; once for a method on an encoder."""
    same = ("method", "encoder", "on")
    if any(all(k[name] == key[name] for name in same) for k in book):
        return None
    fitted.predict(world.few(1))  # what is read only once is read now
    images: Images = world.few(_TIMED)
    start = time.perf_counter()
    fitted.predict(images)
    return round(1000 * (time.perf_counter() - start) / len(images), 3)


def _folder_name(cell: Cell) -> str:
    name = re.sub(r"[^\w.+-]+", "_", cell.spelling)
    if name != cell.spelling:  # two spellings must not meet in one folder
        name += "-" + hashlib.blake2b(cell.spelling.encode(), digest_size=4).hexdigest()
    return f"{name}/{cell.shots}-shots-seed-{cell.seed}"


def _about(request: CompareRequest, world: World) -> dict[str, Any]:
    return {
        "images": world.data.fingerprint,
        "words": world.pool.fingerprint,
        "views": [request.words.views, request.words.view_scale],
        "encoder": [world.encoder.id, world.encoder.fingerprint],
    }


def write_results(request: CompareRequest, compared: Compared) -> list[Path]:
    """Write what a comparison has found into its folder."""
    if not compared.lines:
        return []
    encoders = list(dict.fromkeys(line["on"] for line in compared.lines))
    panels = []
    page = [f"# {request.source}\n"]
    for on in encoders:
        drawn = curves(compared.lines, on)
        title = f"on {on}" if not drawn[0].via else f"carried from {request.encoder} to {on}"
        panels.append((title, drawn))
        page.append(f"## Accuracy {title}\n\n{markdown(drawn, request.shots)}\n")
    page.append(
        f"Per cent, {_spread(request.seeds)}; the best of each column is bold. Time of a fit at the "
        "most shots, with images embedded already; time of an image from file to answer.\n"
    )
    notes = [*compared.remarks, *unseen_lines(compared.lines)]
    if notes:
        page.append("Copies among the images:\n\n" + "\n".join(map(_as_item, notes)) + "\n")
    if compared.failed:
        page.append("Left out:\n\n" + "\n".join(f"- {line}" for line in compared.failed) + "\n")
    files = {
        "results.csv": to_csv(compared.lines),
        "results.md": "\n".join(page),
        "accuracy.svg": accuracy_figure(panels, request.shots),
    }
    with writing(request.out, "comparison"):
        for name, text in files.items():
            write_text(request.out / name, text, follow=False)
    return [request.out / name for name in files]


def _as_item(line: str) -> str:
    """Write a line that names files as an item of a list in which nothing is a mark."""
    return "- " + re.sub(r"([\\`*_\[\]<>|~&$#])", r"\\\1", " ".join(line.split()))


def _spread(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"of the draw {seeds[0]} alone"
    return f"mean ± standard deviation over the draws {', '.join(map(str, seeds))}"
