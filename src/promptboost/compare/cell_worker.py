"""A fit, measured on one encoder: what a comparison is made of, done in any process."""

import dataclasses
import hashlib
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Guesses, accuracy
from promptboost.compare.cells import CompareRequest, Key, Result, cell_file
from promptboost.compare.method_code import code_of
from promptboost.compare.world import Draw, World
from promptboost.distributed.engine import UnitError, UnitResult
from promptboost.encoders import Encoder
from promptboost.errors import FileFormatError, MissingExtraError, PromptBoostError, RunError
from promptboost.methods import (
    FittedMethod,
    Images,
    Method,
    Transfer,
    load_fitted,
    make_method,
    save_fitted,
)

# Images that time to predict is measured with, from file to answer.
_TIMED = 8


@dataclass(frozen=True)
class Cell:
    """One method, learnt from one draw, and everywhere it is to be measured."""

    spelling: str
    method: Method
    shots: int
    seed: int

    @property
    def code(self) -> str:
        """The version and the code that its results come from."""
        return code_of(type(self.method))

    def key(self, world: World, on: Encoder) -> Key:
        """Return what its result on an encoder is kept under."""
        return {
            "method": self.spelling,
            "shots": self.shots,
            "seed": self.seed,
            "encoder": world.encoder.id,
            "on": on.id,
            "code": self.code,
        }

    def keys(self, world: World) -> list[Key]:
        """Return where it is to be measured: on its own encoder, then on all others."""
        return [self.key(world, on) for on in world.encoders_for(self.method)]

    def __str__(self) -> str:
        return f"{self.spelling}, {self.shots} shots, seed {self.seed}"

    def seeded(self) -> Method:
        """Return the method, with the seed of the draw where it draws itself and none is spelled."""
        names = {f.name for f in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if "seed" not in names or re.search(r"[?&]seed=", self.spelling):
            return self.method
        return dataclasses.replace(self.method, seed=self.seed)  # type: ignore[type-var]


class CellWorker:
    """Fits, and measures on one encoder after the other, with images and words that are read once.

    Parameters
    ----------
    request : mapping
        The comparison, as :meth:`~promptboost.compare.cells.CompareRequest.settings` writes it.
    inputs : mapping
        What images, words and encoder are where the command was typed: here they must be the same.
    """

    def __init__(self, request: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        self._request = CompareRequest.from_settings(request)
        self._world = World(self._request)
        here = {**about(self._request, self._world), "targets": self._world.target_weights}
        if other := [name for name in inputs if inputs[name] != here[name]]:
            raise RunError(
                f"{' and '.join(other)} on {platform.node()} are other than where the command was "
                "typed; give folders that all machines share"
            )

    @classmethod
    def around(cls, request: CompareRequest, world: World) -> "CellWorker":
        """Make a worker of what is read already."""
        worker = cls.__new__(cls)
        worker._request, worker._world = request, world
        return worker

    def embed(self, order: Mapping[str, Any]) -> None:
        """Embed the images of a cell that will be measured: a job of its own, with a bar of its own."""
        method = make_method(order["method"])
        on = self._world.encoders_for(method)[order["on"]]
        self._embed(self._world.draw(order["shots"], order["seed"]), method, on)

    def _embed(self, draw: Draw, method: Method, on: Encoder) -> None:
        draw.learn.images.views(
            on if method.carries_over is Transfer.REFIT else self._world.encoder
        )
        draw.held_out.rows(on)

    def do(self, order: Mapping[str, Any]) -> UnitResult:
        """Fit, or load what was learnt, and measure on one encoder."""
        cell = Cell(order["method"], make_method(order["method"]), order["shots"], order["seed"])
        if cell.code != order["code"]:
            raise RunError(
                f"the code of {cell.spelling} on {platform.node()} is {cell.code}, but {order['code']} "
                "where the command was typed; install the same version on all machines"
            )
        on = self._world.encoders_for(cell.method)[order["on"]]
        try:
            result, times = self._measured(cell, on, timed=order["timed"])
        except MissingExtraError:  # another machine may have it
            raise
        except PromptBoostError as error:
            raise UnitError(str(error)) from error
        return UnitResult(cell_file(cell.key(self._world, on), [result], times))

    def _measured(
        self, cell: Cell, on: Encoder, *, timed: bool
    ) -> tuple[Result, dict[str, float | None]]:
        world, via = self._world, cell.method.carries_over
        draw = world.draw(cell.shots, cell.seed)
        at_home = on is world.encoder
        learns_there = not at_home and via is Transfer.REFIT
        self._embed(draw, cell.method, on)  # not part of a fit's time
        start = time.perf_counter()
        if learns_there:
            there = cell.seeded().fit(draw.learn, world.pool, on)
        elif at_home:
            there = self._fit(cell, draw)
        else:
            there = carried(self._load(cell) or self._fit(cell, draw), via, on)
        seconds = round(time.perf_counter() - start, 3)
        leaked = world.inspection(cell.shots, cell.seed).leaked
        result = figures(there, draw, leaked, learnt_there=at_home)
        result["via"] = "" if at_home else via.name.lower()
        times = {"seconds": seconds, "fit_s": seconds}
        return result, {**times, "predict_ms": self._time_to_predict(there) if timed else None}

    def _fit(self, cell: Cell, draw: Draw) -> FittedMethod:
        """Fit, and keep what was learnt: a further encoder then needs no further fit."""
        fitted = cell.seeded().fit(draw.learn, self._world.pool, self._world.encoder)
        save_fitted(fitted, self._folder(cell))
        return fitted

    def _load(self, cell: Cell) -> FittedMethod | None:
        try:
            return load_fitted(self._folder(cell), self._world.encoder)
        except FileFormatError:
            return None  # gone or damaged: learnt again, with the same result

    def _folder(self, cell: Cell) -> Path:
        return self._request.out / "fitted" / _folder_name(cell)

    def _time_to_predict(self, fitted: FittedMethod) -> float:
        """Measure from file to answer, without the store."""
        fitted.predict(self._world.few(1))  # what is read only once is read now
        images: Images = self._world.few(_TIMED)
        start = time.perf_counter()
        fitted.predict(images)
        return round(1000 * (time.perf_counter() - start) / len(images), 3)


def carried(fitted: FittedMethod, via: Transfer, on: Encoder) -> FittedMethod:
    """Carry what was learnt to another encoder, as its method does."""
    if via is Transfer.EMULATED:
        from promptboost.methods.eft import emulate

        return emulate(fitted, on)
    return fitted.transfer(on)


def figures(
    fitted: FittedMethod,
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
    words, text = fitted.words(), fitted.text_alone()
    return {
        "accuracy": measured.accuracy,
        "class_accuracy": measured.class_accuracy,
        "learn_accuracy": measured.learn_accuracy,
        "unseen_accuracy": measured.unseen_accuracy,
        "leaked_images": 0 if leaked is None else int(leaked.sum()),
        "text_accuracy": None
        if text is None
        else measured.accuracy
        if text is fitted
        else accuracy(text.predict(draw.held_out), draw.labels),
        "prompts": None if words is None else float(np.mean([len(bank) for bank in words])),
        "image_passes": len(fitted.encoders_asked),
    }


def _folder_name(cell: Cell) -> str:
    name = re.sub(r"[^\w.+-]+", "_", cell.spelling)
    if name != cell.spelling:  # two spellings must not meet in one folder
        name += "-" + hashlib.blake2b(cell.spelling.encode(), digest_size=4).hexdigest()
    return f"{name}/{cell.shots}-shots-seed-{cell.seed}-{cell.code}"


def about(request: CompareRequest, world: World) -> dict[str, Any]:
    """Return what all results of a comparison depend on."""
    return {
        "images": world.data.fingerprint,
        "words": world.pool.fingerprint,
        "views": [request.words.views, request.words.view_scale],
        "encoder": [world.encoder.id, world.encoder.fingerprint],
    }
