"""The worker of a comparison: fits and measures a cell, in any process."""

import contextlib
import dataclasses
import hashlib
import inspect
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost import __version__
from promptboost.baselines import Guesses, accuracy
from promptboost.compare.cells import CompareRequest, Key, Result, cell_file
from promptboost.compare.comparison import Comparison, FewShotTask
from promptboost.distributed.engine import UnitError
from promptboost.encoders import Encoder
from promptboost.errors import FileFormatError, MissingExtraError, PromptBoostError, RunError
from promptboost.methods import FittedMethod, Method, make_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import Images, Transfer
from promptboost.pool import PromptPool
from promptboost.pool.templates import plain_template

# Number of images for the time to predict.
_TIMED = 8
_MEASURES = (
    *("accuracy", "class_accuracy", "learn_accuracy"),
    *("log_loss", "expected_calibration_error", "unseen_accuracy"),
)
_PACKAGE = Path(__file__).parents[1]


@cache
def code_of(method: type[Method]) -> str:
    """Return the version, and a digest of the code of a method and of all that methods share."""
    files = {
        path
        for room in ("methods", "boosting", "training")
        for path in _PACKAGE.joinpath(room).rglob("*.py")
    }
    with contextlib.suppress(TypeError, OSError):  # a class that was defined in a session
        files.add(Path(inspect.getfile(method)))
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(files):
        digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()}"


@dataclass(frozen=True)
class Cell:
    """One method on one draw, with the keys of its results on all encoders."""

    spelling: str
    shots: int
    seed: int

    @cached_property
    def method(self) -> Method:
        """The method with its settings."""
        return make_method(self.spelling)

    @property
    def code(self) -> str:
        """The version and digest of its code."""
        return code_of(type(self.method))

    def key(self, comparison: Comparison, on: Encoder) -> Key:
        """Return the key of its result on an encoder."""
        return {
            "method": self.spelling,
            "shots": self.shots,
            "seed": self.seed,
            "encoder": comparison.encoder.id,
            "on": on.id,
            "code": self.code,
        }

    def keys(self, comparison: Comparison) -> list[Key]:
        """Return the keys of its results: on the encoder of the fit, then on all others."""
        return [self.key(comparison, on) for on in comparison.encoders]

    def __str__(self) -> str:
        return f"{self.spelling}, {self.shots} shots, seed {self.seed}"

    def seeded(self) -> Method:
        """Return the method with the seed of the draw, unless it has none or an explicit one."""
        names = {f.name for f in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if "seed" not in names or re.search(r"[?&]seed=", self.spelling):
            return self.method
        return dataclasses.replace(self.method, seed=self.seed)  # type: ignore[type-var]


def open_worker(request: Mapping[str, Any], inputs: Mapping[str, Any]) -> "CellWorker":
    """Return the worker of another process; raise a RunError if its inputs differ."""
    settings = CompareRequest.from_settings(request)
    comparison = Comparison(settings)
    inputs_here = inputs_of(settings, comparison)
    if other := [name for name in inputs if inputs[name] != inputs_here[name]]:
        raise RunError(
            f"{' and '.join(other)} on {platform.node()} are other than where the command was "
            "typed; give folders that all machines share"
        )
    return CellWorker(settings, comparison)


class CellWorker:
    """Fits and measures cells of a comparison, whose images and pool are read once."""

    def __init__(self, request: CompareRequest, comparison: Comparison) -> None:
        self._request, self._comparison = request, comparison

    def embed(self, order: Mapping[str, Any]) -> None:
        """Embed the images of a cell, with a progress bar of its own."""
        home, on = self._comparison.encoder, self._comparison.encoders[order["on"]]
        draw = self._comparison.draw(order["shots"], order["seed"])
        refit = make_method(order["method"]).carries_over is Transfer.REFIT
        draw.learn.images.views(on if refit else home)
        draw.held_out.rows(on)

    def do(self, order: Mapping[str, Any]) -> bytes:
        """Measure a cell on one encoder."""
        cell = Cell(order["method"], order["shots"], order["seed"])
        if cell.code != order["code"]:
            raise RunError(
                f"the code of {cell.spelling} on {platform.node()} is {cell.code}, but {order['code']} "
                "where the command was typed; install the same version on all machines"
            )
        on = self._comparison.encoders[order["on"]]
        try:
            result, times = self._measured(cell, on, timed=order["timed"])
        except MissingExtraError:  # another machine may have it
            raise
        except PromptBoostError as error:
            raise UnitError(str(error)) from error
        return cell_file(cell.key(self._comparison, on), [result], times)

    def _measured(
        self, cell: Cell, on: Encoder, *, timed: bool
    ) -> tuple[Result, dict[str, float | None]]:
        comparison, home = self._comparison, self._comparison.encoder
        draw = comparison.draw(cell.shots, cell.seed)
        fitted, seconds = fit_on(cell, draw, comparison.pool, home, on, self._folder(cell))
        leaked = comparison.inspections[cell.shots, cell.seed].leaked
        result = figures(fitted, draw, leaked, at_home=on is home)
        result["via"] = "" if on is home else cell.method.carries_over.name.lower()
        times = {"seconds": round(seconds, 3), "fit_s": round(seconds, 3)}
        return result, {**times, "predict_ms": self._time_to_predict(fitted) if timed else None}

    def _folder(self, cell: Cell) -> Path:
        return self._request.out / "fitted" / _folder_name(cell)

    def _time_to_predict(self, fitted: FittedMethod) -> float:
        """Return milliseconds per image, from file to prediction, without the store."""
        fitted.predict(self._comparison.few(1))  # warm up
        images: Images = self._comparison.few(_TIMED)
        start = time.perf_counter()
        fitted.predict(images)
        return round(1000 * (time.perf_counter() - start) / len(images), 3)


def fit_on(
    cell: Cell, draw: FewShotTask, pool: PromptPool, home: Encoder, on: Encoder, folder: Path
) -> tuple[FittedMethod, float]:
    """Return the classifier of a cell on an encoder, and the seconds it took, without embedding.

    Fits on the encoder `home` are saved in `folder`, from which they are transferred to others.
    """
    via = cell.method.carries_over
    source = on if via is Transfer.REFIT else home
    fitted = None if source is on else _load_if_whole(folder, home)
    draw.held_out.rows(on)
    if fitted is None:
        draw.learn.images.views(source)
    start = time.perf_counter()
    if fitted is None:
        fitted = cell.seeded().fit(draw.learn, pool, source)
        if source is home:
            save_fitted(fitted, folder)
    if source is not on:
        fitted = transferred(fitted, via, on, pool.templates)
    return fitted, time.perf_counter() - start


def _load_if_whole(folder: Path, encoder: Encoder) -> FittedMethod | None:
    """Load a fitted method; return None if it is missing or damaged."""
    try:
        return load_fitted(folder, encoder)
    except FileFormatError:
        return None


def transferred(
    fitted: FittedMethod, via: Transfer, on: Encoder, templates: Sequence[str]
) -> FittedMethod:
    """Transfer a fitted method to another encoder; `templates` are those of the pool."""
    if via is Transfer.EMULATED:
        from promptboost.methods.eft import emulate

        return emulate(fitted, on, plain_template(templates))
    return fitted.transfer(on)


def figures(
    fitted: FittedMethod,
    draw: FewShotTask,
    leaked: NDArray[np.bool_] | None = None,
    *,
    at_home: bool = True,
) -> Result:
    """Measure a classifier on the test images and, `at_home`, on the training images of a draw."""
    logits = fitted.logits(draw.held_out).astype(np.float64)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    guesses = Guesses(fitted.origin.method, "", logits.argmax(axis=1), probabilities=chances)
    if at_home:
        guesses = dataclasses.replace(guesses, learn=fitted.predict(draw.learn.images))
    measured = guesses.result(draw.labels, draw.learn.labels if at_home else None, leaked)
    words, text = fitted.words(), fitted.text_alone()
    text_accuracy = measured.accuracy if text is fitted else None
    if text is not None and text is not fitted:
        text_accuracy = accuracy(text.predict(draw.held_out), draw.labels)
    return {
        **{name: getattr(measured, name) for name in _MEASURES},
        "leaked_images": 0 if leaked is None else int(leaked.sum()),
        "text_accuracy": text_accuracy,
        "prompts": None if words is None else float(np.mean([len(bank) for bank in words])),
        "image_passes": len(fitted.image_towers),
    }


def _folder_name(cell: Cell) -> str:
    name = re.sub(r"[^\w.+-]+", "_", cell.spelling)
    if name != cell.spelling:  # names must stay unique
        name += "-" + hashlib.blake2b(cell.spelling.encode(), digest_size=4).hexdigest()
    return f"{name}/{cell.shots}-shots-seed-{cell.seed}-{cell.code}"


def about(request: CompareRequest, comparison: Comparison) -> dict[str, Any]:
    """Return the inputs that all results of a comparison depend on."""
    return {
        "images": comparison.data.fingerprint,
        "words": comparison.pool.fingerprint,
        "views": [request.words.crops(0), request.words.view_scale],
        "draw": "uneven" if request.uneven else "even",
        "encoder": [comparison.encoder.id, comparison.encoder.fingerprint],
    }


def inputs_of(request: CompareRequest, comparison: Comparison) -> dict[str, Any]:
    """Return the inputs that must be the same in every process."""
    return {**about(request, comparison), "targets": comparison.target_weights}
