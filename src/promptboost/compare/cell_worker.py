"""The worker of a comparison: fits, and measures on one encoder, in any process."""

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
from promptboost.compare.comparison import Comparison, FewShotTask
from promptboost.compare.method_code import code_of
from promptboost.distributed.engine import UnitError, UnitResult
from promptboost.encoders import Encoder
from promptboost.errors import FileFormatError, MissingExtraError, PromptBoostError, RunError
from promptboost.methods import FittedMethod, Method, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import Images, Transfer

# Images that time to predict is measured with, from file to answer.
_TIMED = 8


@dataclass(frozen=True)
class Cell:
    """One method on one draw, and the keys of its results on all encoders."""

    spelling: str
    method: Method
    shots: int
    seed: int

    @property
    def code(self) -> str:
        """The version and the code that its results come from."""
        return code_of(type(self.method))

    def key(self, comparison: Comparison, on: Encoder) -> Key:
        """Return what its result on an encoder is kept under."""
        return {
            "method": self.spelling,
            "shots": self.shots,
            "seed": self.seed,
            "encoder": comparison.encoder.id,
            "on": on.id,
            "code": self.code,
        }

    def keys(self, comparison: Comparison) -> list[Key]:
        """Return where it is to be measured: on its own encoder, then on all others."""
        return [self.key(comparison, on) for on in comparison.encoders_for(self.method)]

    def __str__(self) -> str:
        return f"{self.spelling}, {self.shots} shots, seed {self.seed}"

    def seeded(self) -> Method:
        """Return the method, with the seed of the draw where it draws itself and none is spelled."""
        names = {f.name for f in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if "seed" not in names or re.search(r"[?&]seed=", self.spelling):
            return self.method
        return dataclasses.replace(self.method, seed=self.seed)  # type: ignore[type-var]


def open_worker(request: Mapping[str, Any], inputs: Mapping[str, Any]) -> "CellWorker":
    """Make the worker of another process; raise if images, pool or encoder differ here."""
    settings = CompareRequest.from_settings(request)
    comparison = Comparison(settings)
    here = inputs_of(settings, comparison)
    if other := [name for name in inputs if inputs[name] != here[name]]:
        raise RunError(
            f"{' and '.join(other)} on {platform.node()} are other than where the command was "
            "typed; give folders that all machines share"
        )
    return CellWorker(settings, comparison)


class CellWorker:
    """Fits, and measures on one encoder after the other, with images and pool that are read once."""

    def __init__(self, request: CompareRequest, comparison: Comparison) -> None:
        self._request, self._comparison = request, comparison

    def embed(self, order: Mapping[str, Any]) -> None:
        """Embed the images of a cell that will be measured: a job of its own, with a bar of its own."""
        method = make_method(order["method"])
        on = self._comparison.encoders_for(method)[order["on"]]
        self._embed(self._comparison.draw(order["shots"], order["seed"]), method, on)

    def _embed(self, draw: FewShotTask, method: Method, on: Encoder) -> None:
        draw.learn.images.views(
            on if method.carries_over is Transfer.REFIT else self._comparison.encoder
        )
        draw.held_out.rows(on)

    def do(self, order: Mapping[str, Any]) -> UnitResult:
        """Fit, or load the fit, and measure on one encoder."""
        cell = Cell(order["method"], make_method(order["method"]), order["shots"], order["seed"])
        if cell.code != order["code"]:
            raise RunError(
                f"the code of {cell.spelling} on {platform.node()} is {cell.code}, but {order['code']} "
                "where the command was typed; install the same version on all machines"
            )
        on = self._comparison.encoders_for(cell.method)[order["on"]]
        try:
            result, times = self._measured(cell, on, timed=order["timed"])
        except MissingExtraError:  # another machine may have it
            raise
        except PromptBoostError as error:
            raise UnitError(str(error)) from error
        return UnitResult(cell_file(cell.key(self._comparison, on), [result], times))

    def _measured(
        self, cell: Cell, on: Encoder, *, timed: bool
    ) -> tuple[Result, dict[str, float | None]]:
        comparison, via = self._comparison, cell.method.carries_over
        draw = comparison.draw(cell.shots, cell.seed)
        at_home = on is comparison.encoder
        learns_there = not at_home and via is Transfer.REFIT
        self._embed(draw, cell.method, on)  # not part of a fit's time
        start = time.perf_counter()
        if learns_there:
            there = cell.seeded().fit(draw.learn, comparison.pool, on)
        elif at_home:
            there = self._fit(cell, draw)
        else:
            there = carried(
                load_if_whole(self._folder(cell), comparison.encoder) or self._fit(cell, draw),
                via,
                on,
            )
        seconds = round(time.perf_counter() - start, 3)
        leaked = comparison.inspection(cell.shots, cell.seed).leaked
        result = figures(there, draw, leaked, learned_there=at_home)
        result["via"] = "" if at_home else via.name.lower()
        times = {"seconds": seconds, "fit_s": seconds}
        return result, {**times, "predict_ms": self._time_to_predict(there) if timed else None}

    def _fit(self, cell: Cell, draw: FewShotTask) -> FittedMethod:
        """Fit and save, for the other encoders."""
        fitted = cell.seeded().fit(draw.learn, self._comparison.pool, self._comparison.encoder)
        save_fitted(fitted, self._folder(cell))
        return fitted

    def _folder(self, cell: Cell) -> Path:
        return self._request.out / "fitted" / _folder_name(cell)

    def _time_to_predict(self, fitted: FittedMethod) -> float:
        """Measure from file to answer, without the store."""
        fitted.predict(self._comparison.few(1))  # what is read only once is read now
        images: Images = self._comparison.few(_TIMED)
        start = time.perf_counter()
        fitted.predict(images)
        return round(1000 * (time.perf_counter() - start) / len(images), 3)


def load_if_whole(folder: Path, encoder: Encoder) -> FittedMethod | None:
    """Read a fitted method; return None if it is missing or damaged, so that it is fitted again."""
    try:
        return load_fitted(folder, encoder)
    except FileFormatError:
        return None


def carried(fitted: FittedMethod, via: Transfer, on: Encoder) -> FittedMethod:
    """Transfer a fitted method to another encoder."""
    if via is Transfer.EMULATED:
        from promptboost.methods.eft import emulate

        return emulate(fitted, on)
    return fitted.transfer(on)


def figures(
    fitted: FittedMethod,
    draw: FewShotTask,
    leaked: NDArray[np.bool_] | None = None,
    *,
    learned_there: bool = True,
) -> Result:
    """Measure a classifier on the test images and the training images of a draw."""
    name, held_out = fitted.origin.method, fitted.predict(draw.held_out)
    if learned_there:
        learned = fitted.predict(draw.learn.images)
        measured = Guesses(name, "", held_out, learned).result(
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


def about(request: CompareRequest, comparison: Comparison) -> dict[str, Any]:
    """Return what all results of a comparison depend on."""
    return {
        "images": comparison.data.fingerprint,
        "words": comparison.pool.fingerprint,
        "views": [request.words.views, request.words.view_scale],
        "encoder": [comparison.encoder.id, comparison.encoder.fingerprint],
    }


def inputs_of(request: CompareRequest, comparison: Comparison) -> dict[str, Any]:
    """Return what must be the same in every process: everything shared, and the weights of targets."""
    return {**about(request, comparison), "targets": comparison.target_weights}
