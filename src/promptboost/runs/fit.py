"""The whole way from images to a run folder."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import promptboost
from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.data.benchmarks import benchmark_source
from promptboost.data.shots import Task, load_task
from promptboost.encoders.embedder import Embedder
from promptboost.errors import InputError, RunError
from promptboost.evaluation.world import pool_for
from promptboost.model import PromptEnsemble
from promptboost.runs.artifacts import write_run
from promptboost.runs.learned import Learned, TaskEmbeddings, embed_task, learn, measure
from promptboost.runs.preflight import (
    check_inputs,
    check_place,
    check_same_content,
    check_same_request,
    check_store,
    lasting_settings,
    lasting_source,
    pool_remarks,
    prompts_remarks,
    task_remarks,
)
from promptboost.runs.results import Results, old_names
from promptboost.runs.run_folder import RunFolder

# Where the rows of a big pool are in a run folder, until boosting is done.
_POOL_ROWS = "pool-rows"


@dataclass(frozen=True)
class FitRequest:
    """A fit as it is asked for.

    Attributes
    ----------
    source : str
        Images: a folder, a manifest, or the word ``emoji``.
    run : Path
        Folder to write.
    settings : FitConfig
        What to do. To resume, they must be those of the run.
    overwrite, resume : bool
        What to do about a run that is there already.
    cache : bool
        Use the embedding store.
    progress : bool
        Show progress bars on a terminal.
    device : str or None
        Where the encoder runs, as torch spells it; None for the fastest there is.
    finish : tuple of callable
        Called with the folder once everything is measured, before the run counts as finished: what
        writes the report and the card.
    """

    source: str
    run: Path
    settings: FitConfig
    overwrite: bool = False
    resume: bool = False
    cache: bool = True
    progress: bool = True
    device: str | None = None
    finish: tuple[Callable[[Path], object], ...] = ()


def fit_run(request: FitRequest, say: Callable[[str], None] = lambda _: None) -> Results:
    """Fit, measure, and write a run folder.

    Bad input is found before anything is written. After that the folder holds an unfinished run
    until the last file is there, and the same request with ``resume`` continues it, whatever
    happened in between.
    """
    start = time.perf_counter()
    run, settings = RunFolder(request.run), lasting_settings(request.settings)
    run.check_free(overwrite=request.overwrite, resume=request.resume)
    _check_apart(request.source, run)
    continuing = request.resume and run.state != "missing"
    if continuing:
        check_same_request(run, request.source, settings)
    if continuing and run.state == "finished":
        say(f"the run in {run.path} is finished already")
        return run.results
    embedder = _prepare(request, run, settings)
    task = load_task(request.source, settings, progress=request.progress)
    for line in task_remarks(task, settings.shots):
        say(line)
    pool = pool_for(settings, request.source, task.class_names)
    for line in (*prompts_remarks(settings), *pool_remarks(pool)):
        say(line)
    if continuing:
        check_same_content(run, task, embedder)
    else:
        run.begin(settings, _about(task, embedder))
    embeddings = embed_task(task, pool, settings, embedder, run.path / _POOL_ROWS)
    learned = _learn(run, task, embeddings, settings, embedder, say)
    results = msgspec.structs.replace(
        measure(task, embeddings, learned, settings, embedder),
        timing=_timing(embedder, learned, start),
    )
    write_run(run, task, embeddings, learned, results, request.finish)
    return results


def _prepare(request: FitRequest, run: RunFolder, settings: FitConfig) -> Embedder:
    """Find what is wrong while it is cheap: reading all images can take minutes."""
    check_place(run)
    check_inputs(request.source, settings)
    if request.cache:
        check_store()
    return Embedder.open(
        settings.encoder, cache=request.cache, progress=request.progress, device=request.device
    )


def _learn(
    run: RunFolder,
    task: Task,
    embeddings: TaskEmbeddings,
    settings: FitConfig,
    embedder: Embedder,
    say: Callable[[str], None],
) -> Learned:
    """Boost, keeping the rounds so far in a file; the file alone is enough to go on."""
    from tqdm import tqdm

    hidden = None if embedder.progress else True
    # One round has nothing to count: the words alone say what is going on.
    one = settings.rounds == 1
    with tqdm(
        total=settings.rounds,
        desc="composing" if one else "boosting",
        unit=" rounds",
        bar_format="{desc} …" if one else None,
        disable=hidden,
        leave=False,
    ) as bar:

        def keep(so_far: PromptEnsemble) -> None:
            so_far.save(run.partial_path, sample_weights=True)
            bar.update()

        if not run.partial_path.exists():
            return learn(task, embeddings, settings, embedder, on_round=keep)
        try:
            before = PromptEnsemble.load(run.partial_path)
            say(f"going on after round {len(before)}")
            bar.update(len(before))
            return learn(task, embeddings, settings, embedder, resume=before, on_round=keep)
        except InputError as error:
            raise RunError(
                f"the run in {run.path} cannot go on: {error}; add --overwrite instead of --resume "
                "to start again"
            ) from error


def _about(task: Task, embedder: Embedder) -> dict[str, dict[str, Any]]:
    encoder = embedder.encoder
    return {
        "data": {
            "source": lasting_source(task.source),
            "learn_fingerprint": task.learn.fingerprint,
            "classes": list(task.class_names),
            "learn_images": len(task.learn),
            "held_out_images": len(task.held_out),
        },
        "encoder": {"id": encoder.id, "fingerprint": encoder.fingerprint, "dim": encoder.dim},
        "versions": {
            "promptboost": promptboost.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }


def _check_apart(source: str, run: RunFolder) -> None:
    """Raise for a place among the images, where the next fit would take the run for a class."""
    benchmark = benchmark_source(source)
    data = Path(source if benchmark is None else benchmark.folder).resolve()
    if data.is_dir() and run.path.resolve().is_relative_to(data):
        raise RunError(
            f"{run.path} is inside {source}, where it would be taken for a class of images; "
            "choose a place outside"
        )


def _timing(embedder: Embedder, learned: Learned, start: float) -> dict[str, float]:
    return {
        "images_s": round(embedder.seconds["images"], 3),
        "texts_s": round(embedder.seconds["texts"], 3),
        "boost_s": round(learned.boost_seconds, 3),
        "total_s": round(time.perf_counter() - start, 3),
    }


def embed_data(
    source: str,
    encoder: str,
    *,
    views: int = 0,
    progress: bool = True,
    device: str | None = None,
) -> dict[str, Any]:
    """Embed all images of a source, and some crops of each, into the store."""
    check_store()
    embedder = Embedder.open(encoder, progress=progress, device=device)
    data = load_data(source, progress=progress)
    rows = embedder.images(data, views=views)
    record = {
        "encoder": embedder.encoder.id,
        "images": len(data),
        "rows": rows.shape[0] * rows.shape[1],
        "seconds": round(embedder.seconds["images"], 3),
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in data.bad],
    }
    return old_names(record, {"images": "pictures", "bad_images": "bad_pictures"})
