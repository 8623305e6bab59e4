"""Fit and measure a classifier, and write the run folder."""

import base64
import io
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET

import promptboost
from promptboost.baselines import text_shares
from promptboost.config import IMAGENET_ROUNDS, PRESETS, FitConfig
from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import ImageError
from promptboost.data.shots import Task, load_task
from promptboost.data.source import DataSource
from promptboost.encoders.embedder import Embedder, members_of, open_embedder
from promptboost.errors import InputError, PoolError, RunError, SettingError
from promptboost.io import POOL_ROWS, json_text, tidy, write_bytes
from promptboost.model import PromptEnsemble
from promptboost.model.head import check_head_file, write_head
from promptboost.model.prediction import TERMS, Prediction, csv_text, explain_rows
from promptboost.pool import PromptPool, build_pool, read_pool
from promptboost.pool.io import is_saved_pool, saved_templates
from promptboost.pool.readers import emoji_descriptions, read_sources
from promptboost.pool.templates import clip_templates
from promptboost.pool.text import is_wnid
from promptboost.progress import Progress, no_progress, stage
from promptboost.report.page import write_pages
from promptboost.run.overlap import inspect
from promptboost.run.results import EmbeddedTask, Results, measure
from promptboost.run.run_folder import (
    START_AGAIN,
    RunFolder,
    check_place,
    check_same_content,
    check_same_request,
    lasting_settings,
    usable_store,
)
from promptboost.run.tracker import FILES, Tracker, Tracking, result_figures
from promptboost.training.pool_rows import Executor

if TYPE_CHECKING:
    from promptboost.boosting import BoostRound
    from promptboost.training import Fitted

_PAIRS_SHOWN = 12


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
    if resume and home.unfinished is None and home.is_complete:
        tidy(home.path)
        check_same_request(home, data, settings)
        say(f"the run in {run} is already finished")
        return home.results
    check_place(home)
    with home.writing("fit", fit=True):
        # Again, under the lock: another fit may have started or ended.
        home.check_free(overwrite=overwrite, resume=resume)
        folder = (home.unfinished or home) if resume else home
        resuming = resume and folder.state != "missing"
        if resuming:
            check_same_request(folder, data, settings)
            if folder.is_complete:  # killed before it replaced another run, or finished meanwhile
                folder.end()
                say(f"the run in {run} is already finished")
                return home.results
        for name in settings.encoders:
            check_head_file(name, run)
        check_inputs(data, settings)
        opening: dict[str, Any] = {"cache": usable_store(cache, say), "device": device}
        encoder = open_embedder(settings.encoders, progress=progress, **opening)
        task = load_task(data, settings, progress=progress)
        task = replace(task, source=source)  # results have the source as typed
        inspection = inspect(task.learn, task.held_out, progress=progress)
        for line in (*task_remarks(task, settings.shots), *inspection.overlap.lines()):
            say(line)
        pool = pool_for(settings, data, task.class_names)
        for line in (*prompts_remarks(settings), *pool_remarks(pool)):
            say(line)
        embedders = members_of(encoder)
        if resuming:
            check_same_content(folder, task, embedders[0])
            folder.metrics_path.unlink(missing_ok=True)  # of a run that lost its ensemble
        else:
            folder = folder.begin(settings, about(data, task, embedders[0]))
        tracking = Tracking(trackers, say)
        tracking.call("begin", home.home.resolve().name, settings.to_table())
        try:
            rows = folder.path / POOL_ROWS
            embedded = EmbeddedTask.embed(
                task, pool, settings, encoder, executor=executor, folder=rows, progress=progress
            )
            _say_where(embedded, executor, say)
            begin = time.perf_counter()
            fitted = _train(folder, task, embedded, settings, say, tracking, progress)
            seconds = time.perf_counter() - begin
            results = measure(task, embedded, fitted, settings, inspection, progress)
            embedded.pool_rows.release()
            results = msgspec.structs.replace(results, timing=timing(embedders, seconds, start))
            write_run(folder, task, embedded, fitted, results, progress=progress)
        except BaseException:
            tracking.call("end", {}, ())
            raise
        files = [home.path / name for name in FILES if (home.path / name).is_file()]
        tracking.call("end", result_figures(results), files)
        return results


def _say_where(
    embedded: EmbeddedTask, executor: Executor | None, say: Callable[[str], None]
) -> None:
    """Report if a pool is not embedded where it was to be."""
    placement = getattr(executor, "placement", None)
    if placement is not None and placement.on != "local" and embedded.pool_rows.cleanup is None:
        say(f"the pool fits into memory: it is read in this process, not on {placement.on}")


def _train(
    run: RunFolder,
    task: Task,
    embedded: EmbeddedTask,
    settings: FitConfig,
    say: Callable[[str], None],
    tracking: Tracking,
    progress: Progress,
) -> "Fitted":
    """Fit, and write each round to a file from which the fit can be resumed."""
    # Compiled code, which other uses of this module do not need.
    from promptboost.training.trainer import Trainer

    def write(ensemble: PromptEnsemble, _: "BoostRound") -> None:
        run.write(run.partial_path, ensemble.to_json(sample_weights=True))
        tracking.call("round", len(ensemble), {"round_error": ensemble.rounds[-1].error})

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
    """Raise if the run is inside the folder of images, where a fit would read it as a class."""
    if source.folder and run.path.resolve().is_relative_to(source.folder.resolve()):
        raise RunError(
            f"{run.path} is inside {source}, where it would be read as a class of images; "
            "choose a folder outside"
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


def thumbnail(image: LabeledImage, side: int = 96) -> str:
    """Return a small JPEG of an image as a data URL, without the metadata of the image."""
    small = image.open()
    small.thumbnail((side, side))
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
    fitted: "Fitted",
    results: Results,
    text: bytes | None = None,
    *,
    progress: Progress = no_progress,
) -> None:
    """Write all files, then mark the run as finished.

    The ensemble file is `text`, if given, byte for byte.
    """
    shown = images_shown(results)
    with stage(progress, "writing the run", 6) as advance:
        run.write_ensemble(fitted.ensemble)
        if text is not None:
            write_bytes(run.ensemble_path, text, follow=False)
        for head in fitted.heads:
            write_head(run.path, head)
        advance()
        run.write(run.predictions_path, _predictions(task, embedded, fitted))
        advance()
        examples = [name for each in results.examples.values() for name in each.values()]
        write_thumbnails(run, [*shown, *examples], (task.measured, task.learn))
        advance()
        _write_explanations(run, task, embedded, fitted, shown)
        advance()
        results.write(run.metrics_path)
        advance()
        write_pages(run.path)
        advance()
    run.end()


def _write_explanations(
    run: RunFolder, task: Task, embedded: EmbeddedTask, fitted: "Fitted", names: Iterable[str]
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
            records[name] = explanation.record(most=TERMS)
    run.write(run.explanations_path, json_text(records, indent=None))


def _predictions(task: Task, embedded: EmbeddedTask, fitted: "Fitted") -> str:
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


def check_inputs(source: DataSource, settings: FitConfig) -> None:
    """Raise if the images or the sentences are missing; class names are matched later."""
    missing = source.path is not None and not source.path.exists()
    if missing or source.benchmark is not None:
        source.load(check=False)  # raises a detailed error, and decodes no image
    file = settings.prompts
    if file is not None and not is_saved_pool(file):
        read_sources(file)
    elif file is not None and not saved_templates(file):
        raise PoolError(
            f"the pool {file} has no templates, and boosting starts from one; make it again with: "
            f"promptboost pool build {quote(file)} --classes DATA -o with-templates.jsonl"
        )


def pool_for(settings: FitConfig, source: object, class_names: Sequence[str]) -> PromptPool:
    """Make the pool of a fit; the emoji data set has its own sentences.

    A saved pool has its own templates and concatenations.
    """
    if settings.prompts is not None and is_saved_pool(settings.prompts):
        for name, default in (("templates", "own"), ("concatenate", "none")):
            if (value := getattr(settings, name)) != default:
                raise SettingError(
                    f"{name} is {value!r}, but {settings.prompts} is a saved pool with its own {name}; "
                    f"remove {name}, or make the pool again with: promptboost pool build … "
                    f"--{name} {value} -o {Path(settings.prompts).name}"
                )
        return read_pool(settings.prompts, class_names)
    templates = clip_templates() if settings.templates == "clip" else None
    if settings.prompts is not None:
        return read_pool(
            settings.prompts, class_names, templates=templates, concatenate=settings.concatenate
        )
    return build_pool(
        class_names,
        templates=templates,
        descriptions=emoji_descriptions() if str(source) == "emoji" else None,
        concatenate=settings.concatenate,
        source="descriptions:emoji",
    )


def paper_pool(prompts: str | None, source: object) -> dict[str, str]:
    """Return the settings of the paper's pool; those of a saved pool are in its file."""
    if prompts is not None and is_saved_pool(prompts):
        return {}
    described = prompts is not None or str(source) == "emoji"
    return {"templates": "clip", "concatenate": "one" if described else "none"}


def preset_settings(
    preset: str, source: DataSource, given: Mapping[str, Any], *, describe: bool = False
) -> dict[str, Any]:
    """Return the settings of a preset, with the given ones in their place.

    The paper's has 30 rounds on ImageNet, and new crops in each round. Its pool has concatenations if
    there are sentences to concatenate, in a file or, with `describe`, of a language model.
    """
    settings = dict(PRESETS[preset])
    if preset != "paper":
        return {**settings, **given}
    if not describe:
        for name in ("templates", "concatenate"):
            del settings[name]
        settings |= paper_pool(given.get("prompts"), source)
    if source.benchmark is not None and source.benchmark.name == "imagenet":
        settings["rounds"] = IMAGENET_ROUNDS
    settings |= given
    if "views" not in given and settings["views_per_round"] not in (None, "all"):
        settings["views"] = settings["rounds"] * settings["views_per_round"]
    return settings


_BAD_SHOWN = 10
_NAMES_SHOWN = 5


def task_remarks(task: Task, shots: int | None) -> list[str]:
    """Return remarks on unreadable files, classes with few images, and missing test images."""
    bad = task.learn.bad
    lines = [f"left out {image}" for image in bad[:_BAD_SHOWN]]
    if len(bad) > _BAD_SHOWN:
        lines.append(f"… and {len(bad) - _BAD_SHOWN} more that cannot be read")
    bare = sorted(set(task.class_names) - {image.label for image in task.learn.images})
    if bare:
        lines.append(
            f"classes without training images, predicted by their sentences alone: {_some(bare)}"
        )
    if short := task.classes_short_of(shots):
        classes = _some([f"{name} ({count})" for name, count in short.items()])
        lines.append(f"fewer than {shots} training images: {classes}")
    if task.kind is None:
        # Half of the smallest class leaves test images of every class; half of the largest, of some.
        counts = Counter(task.learn.labels.tolist()).values()
        half = (min(counts) if min(counts) > 1 else max(counts)) // 2
        lines.append(
            "no image is held out: accuracy is measured on the training images, and too high; "
            + (
                f"--shots {half} would leave some for testing"
                if half
                else "each class has one image, add some for testing"
            )
        )
    return lines


def prompts_remarks(settings: FitConfig) -> list[str]:
    """Return remarks on sentences that cannot be used; a saved pool has none."""
    if settings.prompts is None or is_saved_pool(settings.prompts):
        return []
    lines = []
    for source in read_sources(settings.prompts):
        counts = {"blank": sum(source.blank.values()), "damaged": len(source.skipped)}
        if reasons := ", ".join(f"{count} {reason}" for reason, count in counts.items() if count):
            lines.append(f"sentences left out of {source.path}: {reasons}")
    return lines


def pool_remarks(pool: PromptPool) -> list[str]:
    """Return remarks on class names without letters, and on missing or unused sentences."""
    lines = []
    # The estimator rejects numbers as names; a folder may be named 0 on purpose.
    wordless = [n for n in pool.class_names if is_wnid(n) or not any(map(str.isalpha, n))]
    if wordless:
        lines.append(
            f"class names without words make poor prompts such as “a photo of a {wordless[0]}.”: "
            f"{_some(wordless)}; rename the folders or labels"
        )
    if set(pool.prompts_by_source) == {"template"}:
        lines.append(
            "the pool has templates only; sentences that describe the classes help: give a file "
            "(--prompts FILE), or let a language model write them (--describe --model NAME)"
        )
    if pool.missing:
        classes = "class" if len(pool.missing) == 1 else "classes"
        lines.append(f"no sentences for the {classes} {_some(pool.missing)}")
    if pool.unused:
        lines.append(f"sentences for unknown classes: {_some(pool.unused)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN)
