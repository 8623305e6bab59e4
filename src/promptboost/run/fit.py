"""Fit and measure a classifier, and write the run folder."""

import base64
import io
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

import promptboost
from promptboost.baselines.measures import text_shares
from promptboost.boosting import BoostRound
from promptboost.config import FitConfig
from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import ImageError
from promptboost.data.shots import Task, load_task
from promptboost.data.source import DataSource
from promptboost.encoders.base import members_of
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.group import EncoderGroup, open_embedder
from promptboost.errors import InputError, RunError
from promptboost.io import POOL_ROWS, json_text, tidy, write_bytes
from promptboost.model import PromptEnsemble
from promptboost.model.explanation import SHOWN, explain_rows
from promptboost.model.head_files import check_head_file, write_head
from promptboost.model.prediction import Prediction, csv_text
from promptboost.progress import Progress, no_progress, stage
from promptboost.run.measurement import EmbeddedTask, measure
from promptboost.run.overlap import inspect
from promptboost.run.preflight import (
    START_AGAIN,
    check_inputs,
    check_place,
    check_same_content,
    check_same_request,
    lasting_settings,
    pool_for,
    pool_remarks,
    prompts_remarks,
    task_remarks,
    usable_store,
)
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from promptboost.run.tracker import Tracker, Tracking
from promptboost.training import Fitted, Trainer
from promptboost.training.pool_rows import Executor

_THUMBNAIL_SIDE = 96
_PAIRS_SHOWN = 12

#: Called with the folder before a run counts as finished, such as to write the report.
Finish = Callable[[Path], object]


def fit_run(
    source: str,
    run: Path,
    settings: FitConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    cache: bool = True,
    device: str | None = None,
    progress: Progress = no_progress,
    finish: Sequence[Finish] = (),
    trackers: Sequence[Tracker] = (),
    executor: Executor | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Results:
    """Fit, measure, and write a run folder.

    Invalid input raises before anything is written. After that the folder holds an unfinished run
    until the last file is written, and the same call with `resume` continues it. An `executor` embeds
    pools too large for memory.
    """
    start = time.perf_counter()
    home, data = RunFolder(run), DataSource.parse(source)
    home.check_free(overwrite=overwrite, resume=resume)
    check_apart(data, home)
    settings = lasting_settings(settings)
    if resume and home.unfinished is None and _is_complete(home):
        tidy(home.path)
        return _finished_already(home, data, settings, say)
    check_place(home)
    with home.writing("fit", fit=True):
        # Another fit may have begun or ended before this one became the only writer.
        home.check_free(overwrite=overwrite, resume=resume)
        folder = (home.unfinished or home) if resume else home
        resuming = resume and folder.state != "missing"
        if resuming and _is_complete(folder):
            check_same_request(folder, data, settings)
            folder.end()  # stopped before it replaced another run, or finished meanwhile
            return _finished_already(home, data, settings, say)
        if resuming:
            check_same_request(folder, data, settings)
        for name in settings.encoders:
            check_head_file(name, run)
        check_inputs(data, settings)
        encoder = open_encoders(settings, say, cache=cache, progress=progress, device=device)
        task = load_task(data, settings, progress=progress)
        task = replace(task, source=source)  # results name it as it was typed
        inspection = inspect(task.learn, task.held_out, progress=progress)
        for line in (*task_remarks(task, settings.shots), *inspection.overlap.lines()):
            say(line)
        pool = pool_for(settings, data, task.class_names)
        for line in (*prompts_remarks(settings), *pool_remarks(pool)):
            say(line)
        embedders = members_of(encoder)
        if resuming:
            check_same_content(folder, task, embedders[0])
            folder.metrics_path.unlink(missing_ok=True)  # of a run without its ensemble
        else:
            folder = folder.begin(settings, about(data, task, embedders[0]))
        tracking = Tracking(trackers, say) if trackers else None
        if tracking:
            tracking.begin(home.home.resolve().name, settings.to_table())
        try:
            rows = folder.path / POOL_ROWS
            embedded = EmbeddedTask.embed(
                task, pool, settings, encoder, executor=executor, folder=rows, progress=progress
            )
            begin = time.perf_counter()
            fitted = _train(folder, task, embedded, settings, say, tracking, progress)
            seconds = time.perf_counter() - begin
            results = measure(task, embedded, fitted, settings, inspection, progress)
            embedded.pool_rows.release()
            results = msgspec.structs.replace(results, timing=timing(embedders, seconds, start))
            write_run(folder, task, embedded, fitted, results, finish, progress=progress)
        except BaseException:
            if tracking:
                tracking.fail()
            raise
        if tracking:
            tracking.end(results, home.path)
        return results


def _is_complete(run: RunFolder) -> bool:
    """Return whether a run is finished and has its ensemble."""
    return run.state == "finished" and run.ensemble_path.exists()


def _finished_already(
    run: RunFolder, source: DataSource, settings: FitConfig, say: Callable[[str], None]
) -> Results:
    check_same_request(run, source, settings)
    say(f"the run in {run.home} is finished already")
    return run.results


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
    tracking: Tracking | None,
    progress: Progress,
) -> Fitted:
    """Fit, and write each round to a file from which the fit can be resumed."""

    def write(ensemble: PromptEnsemble, _: BoostRound) -> None:
        run.write(run.partial_path, ensemble.to_json(sample_weights=True))
        if tracking:
            tracking.round(len(ensemble), ensemble.rounds[-1].error)

    resume = None
    try:
        if run.partial_path.exists():
            resume = PromptEnsemble.load(run.partial_path)
            say(f"resuming after round {len(resume)}")
        return Trainer(settings, progress=progress).fit(
            embedded.examples(task),
            embedded.pool_rows,
            embedded.members,
            notes={"view_scale": settings.view_scale, "shots": settings.shots},
            resume=resume,
            on_round=write,
        )
    except InputError as error:
        if not run.partial_path.exists():
            raise
        raise RunError(f"cannot resume {run.home}: {error}; {START_AGAIN}") from error


def about(source: DataSource, task: Task, embedder: Embedder) -> dict[str, dict[str, Any]]:
    """Return the tables of ``run.toml`` next to the settings."""
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
    """Raise for a run inside the folder of images, where the next fit would read it as a class."""
    if source.folder and run.path.resolve().is_relative_to(source.folder.resolve()):
        raise RunError(
            f"{run.path} is inside {source}, where it would be taken for a class of images; "
            "choose a place outside"
        )


def timing(embedders: Sequence[Embedder], fit_seconds: float, start: float) -> dict[str, float]:
    """Return the seconds of each step."""
    return {
        "images_s": round(sum(e.seconds["images"] for e in embedders), 3),
        "texts_s": round(sum(e.seconds["texts"] for e in embedders), 3),
        "boost_s": round(fit_seconds, 3),
        "total_s": round(time.perf_counter() - start, 3),
    }


def images_shown(results: Results) -> list[str]:
    """Name the images of a report: of the most frequent confusions, and the hardest."""
    confused = [name for pair in results.confusions[:_PAIRS_SHOWN] for name in pair.images]
    return list(dict.fromkeys([*confused, *(image.image for image in results.hardest)]))


def thumbnail(image: LabeledImage) -> str:
    """Return a small JPEG of an image as a data URL."""
    small = image.open()
    small.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def write_thumbnails(run: RunFolder, names: Iterable[str], datasets: Iterable[Dataset]) -> None:
    """Write thumbnails of the named images, except of those that can no longer be read."""
    wanted = set(names)
    urls: dict[str, str] = {}
    for data in datasets:
        for name, image in zip(data.ids, data.images, strict=True):
            if name in wanted and name not in urls:
                with suppress(ImageError):
                    urls[name] = thumbnail(image)
    run.write(run.thumbnails_path, json_text(urls, indent=None))


def write_run(
    run: RunFolder,
    task: Task,
    embedded: EmbeddedTask,
    fitted: Fitted,
    results: Results,
    finish: Sequence[Finish] = (),
    text: bytes | None = None,
    *,
    progress: Progress = no_progress,
) -> None:
    """Write all files, then mark the run as finished.

    The ensemble file is `text`, if given, byte for byte.
    """
    shown = images_shown(results)
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
        _write_explanations(run, task, embedded, fitted, shown)
        advance()
        results.write(run.metrics_path)
        advance()
        for write in finish:
            write(run.path)
            advance()
    run.end()


def _write_explanations(
    run: RunFolder, task: Task, embedded: EmbeddedTask, fitted: Fitted, names: Iterable[str]
) -> None:
    """Explain the predictions of the named images; wrong answers against the right class."""
    ensemble, head, wanted = fitted.ensemble, fitted.head, set(names)
    texts = ensemble.texts()
    vectors = np.asarray(embedded.members[0].encode_texts(texts))
    by_text = dict(zip(texts, vectors, strict=True))
    train = embedded.split(embedded.train[:, 0])[0]
    records: dict[str, Any] = {}
    for data, rows in ((task.measured, embedded.measured(task)), (task.learn, train)):
        for name, image, row in zip(data.ids, data.images, rows, strict=True):
            if name not in wanted or name in records:
                continue
            answer = str(head.predict(row[None])[0])
            against = None if answer == image.label else image.label
            (explanation,) = explain_rows(
                ensemble, head, by_text, row[None], [name], answer=answer, against=against
            )
            records[name] = explanation.record(most=SHOWN)
    run.write(run.explanations_path, json_text(records, indent=None))


def _predictions(task: Task, embedded: EmbeddedTask, fitted: Fitted) -> str:
    """Return the table of ``predictions.csv``."""
    rows = embedded.measured(task)
    chances = fitted.head.predict_proba(rows)
    best = fitted.head.predict_index(rows).tolist()
    shares = text_shares(fitted.head, rows)
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
