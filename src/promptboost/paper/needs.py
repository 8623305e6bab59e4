"""What a plan needs before it is run: data, weights, embeddings, fits, time and room."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from promptboost.compare.cells import ResultLog
from promptboost.compare.method_code import code_of
from promptboost.data.benchmarks.registry import BENCHMARKS
from promptboost.encoders.registry import MODELS, check_trusted, load_encoder
from promptboost.errors import PromptBoostError
from promptboost.methods import make_method
from promptboost.paper.plans import CellSpec, PaperPlan
from promptboost.paper.runner import (
    CELLS,
    PaperCell,
    PaperRequest,
    find_data,
    find_sentences,
)

_PROBED = 8  # images, and texts, to measure the speed of an encoder


@dataclass(frozen=True)
class DataNeed:
    """A data set, and whether it and its sentences are there."""

    name: str
    images: int | None  # None where that is not known
    test_images: int | None
    classes: int | None
    held_apart: int | None = None  # test images that are never learned from
    data: str = ""  # why the images are not there, or nothing
    sentences: str = ""  # why the sentences are not there, or nothing
    prompts: int | None = None  # of all classes


@dataclass(frozen=True)
class EncoderNeed:
    """An encoder, what it has to embed, and how fast it is here."""

    name: str
    images: int  # embeddings of images and crops, at most
    texts: int
    bytes: int | None  # of their rows
    stored: int  # rows of it in the store, of whatever
    missing: str = ""  # why it cannot be used here, or nothing
    seconds: float | None = None  # to embed all that; None if unknown


@dataclass(frozen=True)
class Needs:
    """What some plans need, everything they share counted once."""

    names: tuple[str, ...]
    methods: tuple[str, ...]
    shots: tuple[int, ...]
    seeds: tuple[int, ...]
    views: int
    fits: int
    cells: int
    kept: int  # cells in the folder already, by name and code: whether images changed is not looked at
    data: tuple[DataNeed, ...]
    encoders: tuple[EncoderNeed, ...]
    fit_seconds: float | None  # of the fits that are missing, by those that are there

    def record(self) -> dict[str, Any]:
        """Return a JSON-serializable record."""
        return asdict(self)

    @property
    def bytes(self) -> int:
        """Room for the embeddings, of encoders whose width is known."""
        return sum(encoder.bytes or 0 for encoder in self.encoders)


def find_needs(plans: Sequence[PaperPlan], request: PaperRequest, *, probe: bool = True) -> Needs:
    """Count what some plans need; `probe` opens encoders that are here to see how fast they are."""
    cells = {cell._replace(pair=None) for plan in plans for cell in plan.cells()}
    fits = {cell.home for cell in cells if cell.shots}
    datasets = dict.fromkeys(name for plan in plans for name in plan.datasets)
    data = {name: _data_need(name, request) for name in datasets}
    names = dict.fromkeys(name for plan in plans for name in plan.encoders)
    there = _kept(request, {cell[:5] for cell in cells})
    return Needs(
        tuple(plan.name for plan in plans),
        tuple(dict.fromkeys(name for plan in plans for name in plan.methods)),
        tuple(sorted({k for plan in plans for k in plan.shots})),
        tuple(sorted({seed for plan in plans for seed in plan.seeds})),
        max(request.views_for(cell.method) for cell in cells),
        len(fits),
        len(cells),
        len(there),
        tuple(data.values()),
        tuple(_encoder_need(name, cells, data, request, probe=probe) for name in names),
        _fit_seconds(fits, there),
    )


_WHICH = ("dataset", "method", "shots", "seed", "on")


def _kept(request: PaperRequest, wanted: Collection[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the results of wanted cells, one of each, that the same code and crops made."""
    log = ResultLog(request.out / CELLS, PaperCell)
    found = {}
    for line in log.results(log):
        which = tuple(line[key] for key in _WHICH)
        if which in wanted:
            method = line["method"]
            now = code_of(type(make_method(method))), request.views_for(method)
            if (line["code"], line["views"]) == now:
                found[which] = line
    return list(found.values())


def _data_need(name: str, request: PaperRequest) -> DataNeed:
    missing = lacking = ""
    images = test = classes = apart = prompts = None
    if (benchmark := BENCHMARKS.get(name)) is not None:
        images, test = sum(benchmark.sizes.values()), benchmark.sizes["test"]
        classes, apart = benchmark.classes, test
    names: Sequence[str] = ()
    try:
        source = find_data(name, request.data)
        from promptboost.data.source import load_data

        whole = load_data(source, check=False)
        names = whole.class_names
        if not source.startswith(f"{name}:"):
            classes, images, test, apart = len(names), len(whole), len(whole), 0
    except PromptBoostError as error:
        missing = str(error)
    try:
        found = find_sentences(name, request.pools)
        if names:
            from promptboost.config import FitConfig
            from promptboost.run.preflight import pool_for

            pool = pool_for(FitConfig(prompts=found), name, names)
            prompts = sum(len(pool.prompts(class_name)) for class_name in names)
    except PromptBoostError as error:
        lacking = str(error)
    return DataNeed(name, images, test, classes, apart, missing, lacking, prompts)


def _encoder_need(
    name: str,
    cells: Iterable[CellSpec],
    data: dict[str, DataNeed],
    request: PaperRequest,
    *,
    probe: bool,
) -> EncoderNeed:
    here = [cell for cell in cells if name in (cell.source, cell.on)]
    tested = {cell.dataset for cell in here}
    images = sum(data[dataset].test_images or 0 for dataset in tested)
    # Draws by data set and number of crops; an image in several of them is embedded once.
    draws: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for cell in here:
        if cell.source == name and cell.shots:
            views = request.views_for(cell.method)
            draws.setdefault((cell.dataset, views), set()).add((cell.shots, cell.seed))
    learned: dict[str, int] = {}
    for (dataset, views), drawn in draws.items():
        need = data[dataset]
        number = (need.classes or 0) * sum(shots for shots, _ in drawn)
        number = min(number, (need.images or number) - (need.held_apart or 0))
        learned[dataset] = max(learned.get(dataset, 0), number * (1 + views))
    images += sum(learned.values())
    texts = sum(data[dataset].prompts or 0 for dataset in learned)
    dim = {record.name: record.dim for record in MODELS}.get(name)
    stored = _stored(name) if request.cache else 0
    missing, seconds = "", None
    try:
        check_trusted(name)
        if probe:
            speed, dim = _speed(name, request.device)
            seconds = images * speed[0] + texts * speed[1]
    except PromptBoostError as error:
        missing = str(error)
    size = None if dim is None else 4 * dim * (images + texts)
    return EncoderNeed(name, images, texts, size, stored, missing, seconds)


def _stored(name: str) -> int:
    from promptboost.encoders.store import EmbeddingStore

    return sum(share.rows for share in EmbeddingStore().report().encoders if share.name == name)


def _speed(name: str, device: str | None) -> tuple[tuple[float, float], int]:
    """Return how many seconds an image and a text take, and the width of a row."""
    from PIL import Image

    encoder = load_encoder(name, device=device)
    noise = np.random.default_rng(0).integers(0, 256, (_PROBED, 224, 224, 3), dtype=np.uint8)
    images = [Image.fromarray(pixels) for pixels in noise]
    texts = [f"a photo of thing number {i}, as it looks on a sunny day." for i in range(_PROBED)]
    works: list[Callable[[], Any]] = [
        partial(encoder.encode_images, images),
        partial(encoder.encode_texts, texts),
    ]
    taken = []
    for work in works:
        work()  # what happens only once is over then
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) / _PROBED)
    return (taken[0], taken[1]), encoder.dim


def _fit_seconds(fits: Iterable[CellSpec], there: Sequence[dict[str, Any]]) -> float | None:
    """Return how long the missing fits take, where each method has some results to go by."""
    by_method: dict[str, list[float]] = {}
    done = set()
    for line in there:
        if line["shots"] and line["on"] == line["encoder"]:
            if line["seconds"] is not None:
                by_method.setdefault(line["method"].partition("?")[0], []).append(line["seconds"])
            done.add(tuple(line[key] for key in _WHICH))
    total = 0.0
    for fit in fits:
        if fit[:5] in done:
            continue
        seconds = by_method.get(fit.method.partition("?")[0])
        if seconds is None:
            return None
        total += float(np.median(seconds))  # the first one may have embedded the pool
    return total
