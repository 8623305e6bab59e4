"""Requirements of plans: data, weights, embeddings, fits and time."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from promptboost.compare.cell_worker import code_of
from promptboost.compare.cells import ResultLog
from promptboost.config import FitConfig
from promptboost.data.benchmarks.registry import BENCHMARKS
from promptboost.data.source import load_data
from promptboost.encoders.registry import MODELS, check_trusted, load_encoder
from promptboost.errors import PromptBoostError
from promptboost.methods import make_method
from promptboost.paper.plans import CellSpec, PaperPlan, crop_scale
from promptboost.paper.runner import CELLS, PaperCell, PaperRequest, find_data, find_sentences
from promptboost.run.fit import paper_pool, pool_for

#: Operations per second, in 10^12, of the paper's RTX 3090: a third of its half-precision peak.
TFLOPS = 25.0
_CALIBRATION = 60.0  # seconds for all encoders
_BATCH = 8
_RECORDS = {record.name: record for record in MODELS}


@dataclass(frozen=True)
class DataNeed:
    """A data set, and whether it and its sentences are available."""

    name: str
    images: int | None  # None if unknown
    test_images: int | None
    classes: int | None
    held_apart: int | None = None  # number of test images that are never used for training
    data: str = ""  # why the images are missing, or empty
    sentences: str = ""  # why the sentences are missing, or empty
    prompts: int | None = None  # of all classes


@dataclass(frozen=True)
class EncoderNeed:
    """An encoder and the number of its embeddings."""

    name: str
    images: int  # embeddings of images and crops, at most
    texts: int
    bytes: int | None  # size of these embeddings
    seconds: float | None  # to compute them; None if unknown
    missing: str = ""  # why it cannot be used, or empty
    measured: bool = False  # whether the time is that of this machine


@dataclass(frozen=True)
class Needs:
    """Requirements of some plans, with shared ones counted once."""

    fits: int
    cells: int
    done: int  # cells in the folder, by name and code; changes of images are not detected
    data: tuple[DataNeed, ...]
    encoders: tuple[EncoderNeed, ...]
    training: dict[str, float]  # seconds of gradient descent, by method

    @property
    def bytes(self) -> int:
        """Size of the embeddings, for encoders of known dimension."""
        return sum(encoder.bytes or 0 for encoder in self.encoders)


def find_needs(
    plans: Sequence[PaperPlan], request: PaperRequest, *, calibrate: bool = False
) -> Needs:
    """Return the requirements of some plans.

    Times are predicted from the published operations of the towers, at :data:`TFLOPS`. With `calibrate`,
    encoders that are on this machine are measured instead, a minute in all.
    """
    cells = {cell._replace(pair=None) for plan in plans for cell in plan.cells()}
    fits = {cell.home for cell in cells if cell.shots}
    datasets = dict.fromkeys(name for plan in plans for name in plan.datasets)
    data = {name: _data_need(name, request) for name in datasets}
    names = dict.fromkeys(name for plan in plans for name in plan.encoders)
    training: dict[str, float] = {}
    for fit in fits:
        if gflop := _training_gflop(fit, data[fit.dataset].classes or 0):
            method = fit.method.partition("?")[0]
            training[method] = training.get(method, 0.0) + gflop / 1000 / TFLOPS
    encoders = [_encoder_need(name, cells, data, request) for name in names]
    if calibrate:
        encoders = [_measured(need, request, _CALIBRATION / len(encoders)) for need in encoders]
    return Needs(
        len(fits),
        len(cells),
        _finished(request, {cell[:5] for cell in cells}),
        tuple(data.values()),
        tuple(encoders),
        training,
    )


def _training_gflop(fit: CellSpec, classes: int) -> float:
    """Return the operations of the towers in a fit by gradients; a gradient costs two more passes."""
    record = _RECORDS.get(fit.source)
    method: Any = make_method(fit.method)
    if record is None or record.text_gflop is None or record.image_gflop is None:
        return 0.0
    images, passes = classes * fit.shots, 0.0
    if method.name == "promptsrc":  # each image also goes through the frozen tower
        steps = method.epochs * max(images // method.batch_size, 1)
        passes = 4.0 * method.epochs * images
    elif method.name == "coop":
        steps = method.epochs_for(fit.shots) * max(images // method.batch, 1)
    elif method.name == "pez":
        steps = method.epochs * max(images // method.batch, 1) if method.epochs else method.steps
    else:
        return 0.0
    return float(3.0 * steps * classes * record.text_gflop + passes * record.image_gflop)


def _finished(request: PaperRequest, wanted: Collection[tuple[Any, ...]]) -> int:
    """Return the number of wanted cells with results of the same code and number of crops."""
    log = ResultLog(request.out / CELLS, PaperCell)
    finished = set()
    for line in log.results(log):
        spec = tuple(line[key] for key in ("dataset", "method", "shots", "seed", "on"))
        if spec in wanted:
            current = code_of(type(make_method(spec[1]))), request.views_for(spec[1])
            if (line["code"], line["views"]) == current:
                finished.add(spec)
    return len(finished)


def _data_need(name: str, request: PaperRequest) -> DataNeed:
    missing = lacking = ""
    images = test = classes = apart = prompts = None
    if (benchmark := BENCHMARKS.get(name)) is not None:
        images, test = sum(benchmark.sizes.values()), benchmark.sizes["test"]
        classes, apart = benchmark.classes, test
    class_names: Sequence[str] = ()
    try:
        source = find_data(name, request.data)
        images_here = load_data(source, check=False)
        class_names = images_here.class_names
        if not source.startswith(f"{name}:"):
            classes, images, test, apart = len(class_names), len(images_here), len(images_here), 0
    except PromptBoostError as error:
        missing = str(error)
    try:
        path = find_sentences(name, request.pools)
        if class_names:
            settings: dict[str, Any] = paper_pool(path, name)
            pool = pool_for(FitConfig(prompts=path, **settings), name, class_names)
            prompts = sum(len(pool.prompts(class_name)) for class_name in class_names)
    except PromptBoostError as error:
        lacking = str(error)
    return DataNeed(name, images, test, classes, apart, missing, lacking, prompts)


def _encoder_need(
    name: str, cells: Collection[CellSpec], data: dict[str, DataNeed], request: PaperRequest
) -> EncoderNeed:
    tested = {cell.dataset for cell in cells if name in (cell.source, cell.on)}
    images = sum(data[dataset].test_images or 0 for dataset in tested)
    # Draws by data set, number and size of crops; shared images are embedded once.
    draws: dict[tuple[str, int, float], set[tuple[int, int]]] = {}
    for cell in cells:
        if cell.source == name and cell.shots:
            kind = cell.dataset, request.views_for(cell.method), crop_scale(cell.method)
            draws.setdefault(kind, set()).add((cell.shots, cell.seed))
    learned: dict[tuple[str, float], int] = {}
    for (dataset, views, scale), drawn in draws.items():
        need = data[dataset]
        number = (need.classes or 0) * sum(shots for shots, _ in drawn)
        number = min(number, (need.images or number) - (need.held_apart or 0))
        learned[dataset, scale] = max(learned.get((dataset, scale), 0), number * (1 + views))
    images += sum(learned.values())
    texts = sum(data[dataset].prompts or 0 for dataset in {dataset for dataset, _ in learned})
    size = seconds = None
    if (record := _RECORDS.get(name)) is not None:
        size = 4 * record.dim * (images + texts)
        if record.image_gflop is not None and record.text_gflop is not None:
            seconds = (images * record.image_gflop + texts * record.text_gflop) / 1000 / TFLOPS
    try:
        check_trusted(name)
    except PromptBoostError as error:
        return EncoderNeed(name, images, texts, size, seconds, str(error))
    return EncoderNeed(name, images, texts, size, seconds)


def _measured(need: EncoderNeed, request: PaperRequest, most: float) -> EncoderNeed:
    """Measure the time of an encoder that is on this machine, in about so many seconds."""
    from PIL import Image

    if need.missing:
        return need
    try:
        encoder = load_encoder(need.name, device=request.device)
    except PromptBoostError as error:
        return replace(need, missing=str(error))
    noise = np.random.default_rng(0).integers(0, 256, (_BATCH, 224, 224, 3), dtype=np.uint8)
    texts = [f"a photo of thing number {number} on a sunny day." for number in range(_BATCH)]

    def seconds(encode: Callable[[Any], Any], inputs: list[Any]) -> float:
        encode(inputs)  # warm up
        start, batches = time.perf_counter(), 0
        while not batches or time.perf_counter() - start < most / 4:
            encode(inputs)
            batches += 1
        return (time.perf_counter() - start) / batches / _BATCH

    image = seconds(encoder.encode_images, [Image.fromarray(pixels) for pixels in noise])
    total = need.images * image + need.texts * seconds(encoder.encode_texts, texts)
    size = 4 * encoder.dim * (need.images + need.texts)
    return replace(need, bytes=size, seconds=total, measured=True)
