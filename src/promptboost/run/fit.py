"""The whole way from images to a run folder, and the files of a finished fit."""

import base64
import io
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

import promptboost
from promptboost.boosting import BoostRound
from promptboost.config import FitConfig
from promptboost.data import Dataset, DataSource, ImageError, LabeledImage
from promptboost.data.shots import Task, load_task
from promptboost.encoders.base import members_of
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.group import EncoderGroup, open_embedder
from promptboost.errors import InputError, RunError
from promptboost.io import POOL_ROWS, json_text, tidy, write_bytes
from promptboost.model import PromptEnsemble
from promptboost.model.head_files import check_head_file, write_head
from promptboost.model.prediction import Prediction, csv_text
from promptboost.pool.sources import pool_for
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.explain import write_explanations
from promptboost.run.measurement import EmbeddedTask, measure, shares_of_words
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
from promptboost.run.tracker import Tracker, Tracking
from promptboost.training import Executor, Fitted, Trainer

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
    progress: Progress = no_progress
    device: str | None = None
    finish: tuple[Finish, ...] = ()
    trackers: tuple[Tracker, ...] = ()
    executor: Executor | None = None  # embeds a pool too large for memory; without, it must fit


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
    encoder = _prepare(request, source, settings, say)
    embedder = members_of(encoder)[0]
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
        progress = request.progress
        embedded = EmbeddedTask.embed(
            task,
            pool,
            settings,
            encoder,
            executor=request.executor,
            folder=run.path / POOL_ROWS,
            progress=progress,
        )
        begin = time.perf_counter()
        fitted = _train(run, task, embedded, settings, say, tracking, progress)
        seconds = time.perf_counter() - begin
        results = measure(task, embedded, fitted, settings, inspection, progress)
        embedded.pool_rows.release()
        results = msgspec.structs.replace(
            results, timing=timing(members_of(encoder), seconds, start)
        )
        write_run(run, task, embedded, fitted, results, request.finish, progress=progress)
    except BaseException:
        tracking.fail()
        raise
    tracking.end(results, home.path)
    return results


def _prepare(
    request: FitRequest, source: DataSource, settings: FitConfig, say: Callable[[str], None]
) -> Embedder | EncoderGroup:
    """Check the inputs before anything slow, such as reading all images; open the encoders."""
    for name in settings.encoders:
        check_head_file(name, request.run)
    check_inputs(source, settings)
    return open_encoders(
        settings, say, cache=request.cache, progress=request.progress, device=request.device
    )


def open_encoders(
    settings: FitConfig,
    say: Callable[[str], None],
    *,
    cache: bool,
    progress: Progress,
    device: str | None,
) -> Embedder | EncoderGroup:
    """Open the encoders of a fit, without the cache if it cannot be written."""
    cache = usable_store(cache, say)
    return open_embedder(settings.encoders, cache=cache, progress=progress, device=device)


def _train(
    run: RunFolder,
    task: Task,
    embedded: EmbeddedTask,
    settings: FitConfig,
    say: Callable[[str], None],
    tracking: Tracking,
    progress: Progress,
) -> Fitted:
    """Fit, and write the rounds so far to a file, from which the fit can be resumed."""

    def write(ensemble: PromptEnsemble, _: BoostRound) -> None:
        run.write(run.partial_path, ensemble.to_json(sample_weights=True))
        tracking.round(len(ensemble), ensemble.rounds[-1].error)

    trainer, notes = (
        Trainer(settings, progress=progress),
        {"view_scale": settings.view_scale, "shots": settings.shots},
    )
    examples, pool = embedded.examples(task), embedded.pool_rows
    resume = None
    try:
        if run.partial_path.exists():
            resume = PromptEnsemble.load(run.partial_path)
            say(f"resuming after round {len(resume)}")
        return trainer.fit(
            examples, pool, embedded.members, notes=notes, resume=resume, on_round=write
        )
    except InputError as error:
        if not run.partial_path.exists():
            raise
        raise RunError(f"cannot resume {run.home}: {error}; {START_AGAIN}") from error


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


def timing(embedders: Sequence[Embedder], fit_seconds: float, start: float) -> dict[str, float]:
    """Return the seconds that were spent, by step."""
    return {
        "images_s": round(sum(one.seconds["images"] for one in embedders), 3),
        "texts_s": round(sum(one.seconds["texts"] for one in embedders), 3),
        "boost_s": round(fit_seconds, 3),
        "total_s": round(time.perf_counter() - start, 3),
    }


def images_shown(results: Results) -> list[str]:
    """Name the images a report shows: of the most frequent confusions, and the hardest."""
    mixed = [name for pair in results.confusions[:_PAIRS_SHOWN] for name in pair.images]
    return list(dict.fromkeys([*mixed, *(item.image for item in results.hardest)]))


def thumbnail(image: LabeledImage) -> str:
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
        for name, image in zip(data.ids, data.images, strict=True):
            if name in wanted and name not in found:
                try:
                    found[name] = thumbnail(image)
                except ImageError:
                    continue
    run.write(run.thumbnails_path, json_text(found, indent=None))


def write_run(
    run: RunFolder,
    task: Task,
    embedded: EmbeddedTask,
    fitted: Fitted,
    results: Results,
    finish: Iterable[Finish] = (),
    text: bytes | None = None,
    *,
    progress: Progress = no_progress,
) -> None:
    """Write everything, and only then let the run count as finished; a given `text` as it is."""
    finish, shown = tuple(finish), images_shown(results)
    with stage(progress, "writing the run", 5 + len(finish)) as advance:
        run.write_ensemble(fitted.ensemble)
        if text is not None:
            write_bytes(run.ensemble_path, text, follow=False)
        for head in fitted.heads:
            write_head(run.path, head)
        advance()
        run.write(run.predictions_path, _predictions(task, embedded, fitted))
        advance()
        write_thumbnails(run, shown, (task.measured, task.learn))
        advance()
        write_explanations(run, task, embedded, fitted, shown)
        advance()
        results.write(run.metrics_path)
        advance()
        for write in finish:
            write(run.path)
            advance()
    run.end()


def _predictions(task: Task, embedded: EmbeddedTask, fitted: Fitted) -> str:
    """Return the table of ``predictions.csv``."""
    rows = embedded.measured(task)
    chances = fitted.head.predict_proba(rows)
    best = fitted.head.predict_index(rows).tolist()
    shares = shares_of_words(fitted.head, rows)
    predictions = [
        Prediction.of(
            *(name, task.class_names, chances[i]),
            best=best[i],
            label=image.label,
            text_share=UNSET if shares is None else float(shares[i]),
        )
        for i, (name, image) in enumerate(zip(task.measured.ids, task.measured.images, strict=True))
    ]
    columns = ["image", "label", "predicted", "probability", "text_share"]
    return csv_text(predictions, columns[: 4 if shares is None else 5])
