"""The whole way from images to a run folder, and the files of a finished fit."""

import base64
import csv
import io
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import promptboost
from promptboost.config import FitConfig
from promptboost.data import Dataset, DataSource, ImageError, LabelledImage
from promptboost.data.shots import Task, image_ids, load_task
from promptboost.distributed.engine import Engine, Placement
from promptboost.encoders.embedder import Embedder
from promptboost.errors import InputError, RunError
from promptboost.files import json_text, write_bytes
from promptboost.folders import POOL_ROWS, tidy
from promptboost.model import PromptEnsemble
from promptboost.model.head_files import check_head_file, write_head
from promptboost.pool import PromptPool
from promptboost.pool.sources import pool_for
from promptboost.progress import progress_bar
from promptboost.run.explain import write_explanations
from promptboost.run.learned import (
    Learned,
    TaskEmbeddings,
    embed_task,
    learn,
    measure,
    measured_rows,
    shares_of_words,
)
from promptboost.run.overlap import inspect
from promptboost.run.preflight import (
    START_AGAIN,
    check_inputs,
    check_place,
    check_same_content,
    check_same_request,
    lasting_settings,
    pool_remarks,
    prompts_remarks,
    task_remarks,
    usable_store,
)
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from promptboost.trackers import Tracker, Tracking
from promptboost.training.pool_rows import PoolTexts, fits_memory

_THUMBNAIL_SIDE = 96
_PAIRS_SHOWN = 12

Finish = Callable[[Path], object]


@dataclass(frozen=True)
class FitRequest:
    """A fit as it is asked for.

    `finish` is called with the folder once everything is measured, before the run counts as
    finished: what writes the report and the card.
    """

    source: str  # images, as DataSource reads them
    run: Path  # folder to write
    settings: FitConfig  # to resume, they must be those of the run
    overwrite: bool = False
    resume: bool = False
    cache: bool = True
    progress: bool = True
    device: str | None = None
    finish: tuple[Finish, ...] = ()
    trackers: tuple[Tracker, ...] = ()
    # Who embeds a pool that is too large for memory and composes on it; the text does not depend on it.
    placement: Placement = field(default_factory=Placement)


def fit_run(request: FitRequest, say: Callable[[str], None] = lambda _: None) -> Results:
    """Fit, measure, and write a run folder.

    Bad input is found before anything is written. After that the folder holds an unfinished run
    until the last file is there, and the same request with ``resume`` continues it, whatever
    happened in between.
    """
    start = time.perf_counter()
    run, source = RunFolder(request.run), DataSource.parse(request.source)
    run.check_free(overwrite=request.overwrite, resume=request.resume)
    check_apart(source, run)
    if request.resume and run.unfinished is None and _has_all(run):
        tidy(run.path)
        return _finished_already(run, source, request, say)
    check_place(run)
    with run.writing("fit", fit=True):
        # Again, as the only writer: another fit may have begun or ended meanwhile.
        run.check_free(overwrite=request.overwrite, resume=request.resume)
        return _fit(request, source, run, start, say)


def _has_all(run: RunFolder) -> bool:
    """Tell whether a run is finished, and its text is there."""
    return run.state == "finished" and run.ensemble_path.exists()


def _finished_already(
    run: RunFolder, source: DataSource, request: FitRequest, say: Callable[[str], None]
) -> Results:
    check_same_request(run, source, lasting_settings(request.settings))
    say(f"the run in {run.home} is finished already")
    return run.results


def _fit(
    request: FitRequest,
    source: DataSource,
    home: RunFolder,
    start: float,
    say: Callable[[str], None],
) -> Results:
    """Fit as the only writer of the folder."""
    settings = lasting_settings(request.settings)
    run = (home.unfinished or home) if request.resume else home
    continuing = request.resume and run.state != "missing"
    if continuing:
        check_same_request(run, source, settings)
    if continuing and _has_all(run):
        run.end()  # stopped before it took the place of another, or finished meanwhile
        return _finished_already(home, source, request, say)
    embedder, *further = _prepare(request, source, settings, say)
    task = load_task(source, settings, progress=request.progress)
    task = replace(task, source=request.source)  # figures name it as it was typed
    inspection = inspect(task.learn, task.held_out, progress=request.progress)
    for line in (*task_remarks(task, settings.shots), *inspection.overlap.lines()):
        say(line)
    pool = pool_for(settings, source, task.class_names)
    for line in (*prompts_remarks(settings), *pool_remarks(pool)):
        say(line)
    if continuing:
        check_same_content(run, task, embedder)
        run.metrics_path.unlink(missing_ok=True)  # of a run whose text is gone
    else:
        run = run.begin(settings, about(source, task, embedder))
    tracking = Tracking(request.trackers, say)
    tracking.begin(home.home.resolve().name, settings.to_table())
    try:
        with engine_for(request.placement, pool, [embedder, *further], say) as engine:
            embeddings = embed_task(
                task, pool, settings, embedder, run.path / POOL_ROWS, further, engine
            )
            learned = _learn(run, task, embeddings, settings, embedder, say, tracking)
        results = msgspec.structs.replace(
            measure(task, embeddings, learned, settings, embedder, inspection),
            timing=timing([embedder, *further], learned, start),
        )
        write_run(run, task, embeddings, learned, results, embedder, request.finish)
    except BaseException:
        tracking.fail()
        raise
    tracking.end(results, home.path)
    return results


@contextmanager
def engine_for(
    placement: Placement,
    pool: PromptPool,
    embedders: Sequence[Embedder],
    say: Callable[[str], None],
) -> Iterator[Engine | None]:
    """Open the engine that composes on a large pool; None if nobody asked for one, or the pool is small."""
    if not placement.elsewhere:
        yield None
        return
    if fits_memory(PoolTexts.of(pool), embedders):
        say(f"the pool fits into memory: it is read in this process, not on {placement.on}")
        yield None
        return
    engine = placement.engine(say)
    try:
        yield engine
    finally:
        engine.close()


def _prepare(
    request: FitRequest, source: DataSource, settings: FitConfig, say: Callable[[str], None]
) -> list[Embedder]:
    """Find what is wrong while it is cheap: reading all images can take minutes."""
    for name in settings.encoders:
        check_head_file(name, request.run)
    check_inputs(source, settings)
    return open_embedders(
        settings, say, cache=request.cache, progress=request.progress, device=request.device
    )


def open_embedders(
    settings: FitConfig,
    say: Callable[[str], None],
    *,
    cache: bool,
    progress: bool,
    device: str | None,
) -> list[Embedder]:
    """Open all encoders of a fit, without the store if nothing can be kept in it."""
    cache = usable_store(cache, say)
    return [
        Embedder.open(name, cache=cache, progress=progress, device=device)
        for name in settings.encoders
    ]


def _learn(
    run: RunFolder,
    task: Task,
    embeddings: TaskEmbeddings,
    settings: FitConfig,
    embedder: Embedder,
    say: Callable[[str], None],
    tracking: Tracking,
) -> Learned:
    """Boost, keeping the rounds so far in a file; the file alone is enough to go on."""

    def keep(so_far: PromptEnsemble) -> None:
        run.write(run.partial_path, so_far.to_json(sample_weights=True))
        tracking.round(len(so_far), so_far.rounds[-1].error)

    if not run.partial_path.exists():
        return learn(task, embeddings, settings, embedder, on_round=keep)
    try:
        before = PromptEnsemble.load(run.partial_path)
        say(f"going on after round {len(before)}")
        return learn(task, embeddings, settings, embedder, resume=before, on_round=keep)
    except InputError as error:
        raise RunError(f"the run in {run.home} cannot go on: {error}; {START_AGAIN}") from error


def about(source: DataSource, task: Task, embedder: Embedder) -> dict[str, dict[str, Any]]:
    """Return what ``run.toml`` says beside the settings."""
    encoder = embedder.encoder
    return {
        "data": {
            "source": str(source.lasting),
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


def check_apart(source: DataSource, run: RunFolder) -> None:
    """Raise for a place among the images, where the next fit would take the run for a class."""
    if source.folder and run.path.resolve().is_relative_to(source.folder.resolve()):
        raise RunError(
            f"{run.path} is inside {source}, where it would be taken for a class of images; "
            "choose a place outside"
        )


def timing(embedders: list[Embedder], learned: Learned, start: float) -> dict[str, float]:
    """Return the seconds that were spent, by step."""
    return {
        "images_s": round(sum(one.seconds["images"] for one in embedders), 3),
        "texts_s": round(sum(one.seconds["texts"] for one in embedders), 3),
        "boost_s": round(learned.boost_seconds, 3),
        "total_s": round(time.perf_counter() - start, 3),
    }


def images_shown(results: Results) -> list[str]:
    """Name the images a report shows: of the most frequent confusions, and the hardest."""
    mixed = [name for pair in results.confusions[:_PAIRS_SHOWN] for name in pair.images]
    return list(dict.fromkeys([*mixed, *(item.image for item in results.hardest)]))


def thumbnail(image: LabelledImage) -> str:
    """Make a small JPEG of an image, as an address that holds the data itself."""
    small = image.open()
    small.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def write_thumbnails(run: RunFolder, names: Iterable[str], datasets: Iterable[Dataset]) -> None:
    """Write thumbnails of the named images; one that is gone by now is left out."""
    wanted = set(names)
    found: dict[str, str] = {}
    for data in datasets:
        for name, image in zip(image_ids(data), data.images, strict=True):
            if name in wanted and name not in found:
                try:
                    found[name] = thumbnail(image)
                except ImageError:
                    continue
    run.write(run.thumbnails_path, json_text(found, indent=None))


def write_run(
    run: RunFolder,
    task: Task,
    embeddings: TaskEmbeddings,
    learned: Learned,
    results: Results,
    embedder: Embedder,
    finish: Iterable[Finish] = (),
    text: bytes | None = None,
) -> None:
    """Write everything, and only then let the run count as finished; a given `text` as it is."""
    finish, shown = tuple(finish), images_shown(results)
    parts = 5 + len(finish)
    with progress_bar(parts, "writing the run", "files", shown=embedder.progress) as bar:
        run.write_ensemble(learned.ensemble)
        if text is not None:
            write_bytes(run.ensemble_path, text, follow=False)
        for head in (learned.head, *learned.further_heads):
            write_head(run.path, head)
        bar.update()
        run.write(run.predictions_path, _predictions(task, embeddings, learned))
        bar.update()
        write_thumbnails(run, shown, (task.measured, task.learn))
        bar.update()
        write_explanations(run, task, embeddings, learned, shown, embedder)
        bar.update()
        results.write(run.metrics_path)
        bar.update()
        for write in finish:
            write(run.path)
            bar.update()
    run.end()


def _predictions(task: Task, embeddings: TaskEmbeddings, learned: Learned) -> str:
    """Return the table of ``predictions.csv``."""
    rows = measured_rows(task, embeddings)
    chances = learned.head.predict_proba(rows)
    best = learned.head.predict_index(rows)
    words = shares_of_words(learned.head, rows)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    # Read by other programs, so a column more is the last.
    table.writerow(
        ["picture", "label", "predicted", "probability", *(["words"] if words is not None else [])]
    )
    labels = [image.label for image in task.measured.images]
    for i, (name, label) in enumerate(zip(image_ids(task.measured), labels, strict=True)):
        guess = int(best[i])
        share = [] if words is None else [f"{words[i]:.3f}"]
        table.writerow([name, label, task.class_names[guess], f"{chances[i, guess]:.6f}", *share])
    return text.getvalue()
