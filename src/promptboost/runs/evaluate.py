"""How good a run is on other labelled images, and its text on another encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.config import FitConfig
from promptboost.data import Dataset, load_data
from promptboost.data.shots import Task, divide, image_ids, load_task
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError, PromptBoostError, RunError, SettingError, without_place
from promptboost.evaluation.baselines import TEXT_BASELINES, pool_heads, zero_shot_head
from promptboost.evaluation.measures import (
    OURS,
    TEXT,
    Guesses,
    accuracy,
    confusions,
    coverage,
    per_class,
)
from promptboost.evaluation.overlap import Inspection, inspect, inspect_known
from promptboost.evaluation.world import pool_for
from promptboost.model import LinearHead, PromptEnsemble
from promptboost.model.average import AveragedClassifier, AveragedHead
from promptboost.model.balance import with_images
from promptboost.model.change import original_names
from promptboost.model.classifier import check_share
from promptboost.model.head_files import (
    AnyHead,
    check_head_file,
    embed_ensemble,
    keep_residual,
    write_head,
)
from promptboost.pool import PromptPool
from promptboost.runs.answer_shards import check_output, write_records
from promptboost.runs.bench import add_looks, held_out_images, shown_part
from promptboost.runs.labelled_shards import SeenImages, see_in_shards
from promptboost.runs.lineage import Lineage
from promptboost.runs.predict import Predictor
from promptboost.runs.results import TransferResult, flat_answer, method_answer, old_names
from promptboost.runs.run_folder import RunFolder
from promptboost.scale.shards import ShardPlace


def evaluate_run(
    run: Path,
    source: str | None,
    *,
    held_out: bool = False,
    final: bool = False,
    encoder: str | Sequence[str] | None = None,
    average: bool = False,
    text_only: bool = False,
    min_probability: float | None = None,
    cache: bool = True,
    progress: bool = True,
    device: str | None = None,
    allow_download: bool = False,
    place: ShardPlace | None = None,
    output: str | None = None,
) -> dict[str, Any]:
    """Measure a run on labelled images: the split ``test`` if there is one, else all.

    With `held_out`, those that the run held out are measured on: the part that edits are measured on too
    or, with `final`, the one kept back until the end. `source` may say where they are now. Each look is
    counted.

    It sees with the encoders that :meth:`Predictor.open` is told; the probabilities of several are
    averaged, those of zero-shot too. With `min_probability`, measure also what is left if less probable
    answers are not given.

    With a `place` for shards, images are read and embedded there, without the store. `output` is a file
    for the answer of each image, ``.jsonl`` or ``.parquet``.
    """
    if min_probability is not None:
        check_share("min_probability", min_probability)
    if output is not None:
        check_output(output)
    folder = RunFolder(run)

    def read() -> Predictor:
        opened = Predictor.open(
            run,
            encoder=encoder,
            average=average,
            text_only=text_only,
            cache=cache,
            progress=progress,
            device=device,
            allow_download=allow_download,
        )
        _ = folder.metrics_path.exists() and folder.results  # of the same run
        return opened

    classifier = folder.steady(read).classifier
    names = classifier.class_names
    members = classifier.members if isinstance(classifier, AveragedClassifier) else (classifier,)
    lineage = None
    seen: SeenImages | None = None
    if place is not None and place.in_shards:
        if held_out or source is None:
            raise SettingError(
                "images held out are few: measure on them without --on and --storage"
            )
        told = see_in_shards(source, members, place, progress=progress, device=device)
        if isinstance(told, dict):
            return told
        seen = told
        data = with_classes(seen.measured, names)
    elif held_out:
        data = with_classes(_part(folder, source, final=final, progress=progress), names)
        lineage = add_looks(run, **{"final_looks" if final else "looks": 1})
    else:
        data = load_data(source or str(folder.source), progress=progress)
        if "test" in data.splits:
            data = data.of_split("test")
        data = with_classes(data, names)
    inspection = inspect_run(folder, data)
    leaked = None if inspection is None else inspection.leaked
    labels = data.labels
    rows = [one.embedder.originals(data) for one in members] if seen is None else seen.rows(data)
    zero_shot = AveragedHead(tuple(zero_shot_head(names, one.embedder) for one in members))
    ours = AveragedHead(tuple(one.head for one in members))
    chances = ours.predict_proba(rows)
    guesses = [
        Guesses("zero-shot", "zero-shot", zero_shot.predict_index(rows)),
        Guesses(OURS, "boosted", ours.predict_index(rows), probabilities=chances),
    ]
    mixed = confusions(names, labels, guesses[-1].held_out, image_ids(data))
    by_class = per_class(names, labels, {guess.name: guess.held_out for guess in guesses})
    record = {
        "encoder": " + ".join(one.embedder.id for one in members),
        "images": len(data),
        "learnt_from": None if leaked is None else int(leaked.sum()),
        "overlap": None if inspection is None else msgspec.to_builtins(inspection.overlap),
        "remarks": [] if inspection is None else inspection.overlap.lines(run=True),
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in data.bad],
        "methods": [method_answer(guess.result(labels, leaked=leaked)) for guess in guesses],
        "per_class": [flat_answer(item) for item in by_class],
        "confusions": [old_names(pair) for pair in msgspec.to_builtins(mixed)],
    }
    if lineage is not None:
        counts = {"looks": lineage.looks, "final_looks": lineage.final_looks}
        record["held_out"] = {"part": "final" if final else "shown", **counts}
    if output is not None:
        write_records(
            output,
            ("picture", "label", "predicted", "probability", "zero_shot", "problem"),
            [_lines(data, guesses, chances)],
        )
    if min_probability is not None:
        record["sure"] = msgspec.to_builtins(coverage(chances, labels, min_probability))
    return old_names(record)


def _lines(
    data: Dataset, guesses: Sequence[Guesses], chances: NDArray[np.floating[Any]]
) -> list[dict[str, Any]]:
    """Return a record for each image, those that could not be read last."""
    zero_shot, ours = (guess.held_out for guess in guesses)
    names = data.class_names
    answered = [
        {
            "picture": name,
            "label": image.label,
            "predicted": names[ours[i]],
            "probability": float(chances[i, ours[i]]),
            "zero_shot": names[zero_shot[i]],
            "problem": None,
        }
        for i, (name, image) in enumerate(zip(image_ids(data), data.images, strict=True))
    ]
    nothing = dict.fromkeys(("label", "predicted", "probability", "zero_shot"))
    bad = [{"picture": bad.path, **nothing, "problem": bad.reason} for bad in data.bad]
    return [*answered, *bad]


def _part(folder: RunFolder, source: str | None, *, final: bool, progress: bool) -> Dataset:
    """Return the part of a run's held-out images that is shown, or kept back, as the run calls them now."""
    return as_called_now(shown_part(held_out_images(folder, source, progress), final=final), folder)


def as_called_now(data: Dataset, folder: RunFolder) -> Dataset:
    """Return images of a fit by the names that edits gave their classes, without those of dropped ones."""
    names = original_names(data.class_names, Lineage.read(folder.path).changes)
    now = {old: new for new, old in names.items()}
    kept = [replace(image, label=now[image.label]) for image in data.images if image.label in now]
    return Dataset(tuple(kept), tuple(names), data.bad)


def with_classes(data: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """Return images with the class numbers of a run, which may have classes they lack."""
    present = {image.label for image in data.images}
    if strange := sorted(present - set(class_names)):
        raise DataError(
            f"the run does not know the class {strange[0]!r}; it knows "
            f"{', '.join(class_names[:10])}{', …' if len(class_names) > 10 else ''}"
        )
    return Dataset(data.images, tuple(class_names), data.bad)


def inspect_run(run: RunFolder, data: Dataset) -> Inspection | None:
    """Look for images that a run learnt from, and for copies among the others.

    Where the images that taught the run are still there, one that was saved anew is recognised, too;
    else those that are the same byte for byte. None if the run does not say: its figures are gone, or
    an older promptboost wrote them.
    """
    if not run.metrics_path.exists() or (digests := run.results.task.learn_digests) is None:
        return None
    learn = _learnt_images(run)
    if learn is not None and learn.class_names == data.class_names:
        return inspect(learn, data)
    return inspect_known([bytes.fromhex(digest) for digest in digests], data)


def _learnt_images(run: RunFolder) -> Dataset | None:
    """Find the images that taught a run, or None if they are gone or have changed."""
    settings = run.settings
    try:
        # Drawn from all files, so that only those that taught are read.
        data = run.source.load(check=False, progress=False)
        learn = divide(run.source, data, settings.shots, settings.seed).learn
        known = run.tables.get("data", {}).get("learn_fingerprint")
        return learn if learn.fingerprint == known else None
    except (PromptBoostError, OSError):
        return None


@dataclass(frozen=True)
class _Measured:
    """The images to measure on, and what is known about them."""

    data: Dataset
    are: str = "held out"
    note: str = ""
    left_out: int = 0
    learn: Dataset | None = None  # those the run learnt from, where they are the same still


def transfer_run(
    run: Path,
    encoder: str,
    source: str | None = None,
    *,
    cache: bool = True,
    progress: bool = True,
    device: str | None = None,
    finish: tuple[Callable[[Path], object], ...] = (),
) -> dict[str, Any]:
    """Embed the text of a run with another encoder, and measure it on held-out images.

    `source` is where the run's images are now. Other images can be given too: all of them, or their
    split ``test``, are measured on, but for those the run learnt from.

    Where the images that the run learnt from are still the same, a residual is learnt from them anew;
    else the text answers alone, and the note says so.

    Writes the new head beside the text, and the figures into ``metrics.json``, replacing those of
    an earlier transfer to the same encoder; if nothing can be measured now, those are kept. `finish`
    is called with the folder then: what writes the report and the card.
    """
    folder = RunFolder(run)
    folder.check_finished()
    ensemble = folder.steady(lambda: _read(folder))
    check_head_file(encoder, run)
    embedder = Embedder.open(encoder, cache=cache, progress=progress, device=device)
    measured = _held_out(folder, ensemble, source, progress)
    pool, head = run_pool(folder, ensemble), embed_ensemble(ensemble, embedder)
    if folder.settings.residual and isinstance(head, LinearHead):
        head = _with_residual(head, pool, measured.learn, folder.settings, embedder)
    head_path = folder.head_path(embedder.encoder.id)
    figures = _measure(head, pool, measured.data, embedder)
    note = measured.note
    if folder.settings.residual and measured.learn is None:
        note += "; " * bool(note) + "without a residual, which is learnt from the images of the fit"
    learnt_on = embedder.encoder.id in [item.id for item in ensemble.encoders[1:]]
    moved = TransferResult(embedder.encoder.id, figures, note, learnt_on)
    with folder.writing("transfer"):
        # Others may have written since: what is added to is what is there now.
        if _read(folder).fingerprint != ensemble.fingerprint:
            raise RunError(f"the text in {run} was changed meanwhile; type the same again")
        write_head(folder.path, head)
        note += _add_transfer(folder, moved)
        for write in finish:
            write(folder.path)
    record = {
        **flat_answer(moved),
        "head": str(head_path),
        "images": len(measured.data),
        "images_are": measured.are,
        "left_out": measured.left_out,
        "note": note,
    }
    return old_names(record)


def _with_residual(
    head: LinearHead,
    pool: PromptPool | None,
    learn: Dataset | None,
    settings: FitConfig,
    embedder: Embedder,
) -> LinearHead:
    """Learn the residual anew from the images of the fit, where they are at hand: it cannot move."""
    if learn is None:
        return head
    unseen = zero_shot_head(head.class_names, embedder)
    if pool is not None:
        unseen = pool_heads(pool, embedder)["zero-shot-80"]
    rows = embedder.images(learn, views=settings.views, view_scale=settings.view_scale)
    head = with_images(head, rows, learn.labels, unseen.weights)
    keep_residual(head, embedder)
    return head


def _read(folder: RunFolder) -> PromptEnsemble:
    """Read all that a transfer needs of a run."""
    _ = folder.results, folder.tables
    return PromptEnsemble.load(folder.ensemble_path)


def _add_transfer(folder: RunFolder, moved: TransferResult) -> str:
    """Write figures beside those of other encoders; return what to say of those before."""
    results = folder.results
    before = [old for old in results.transfers if old.encoder == moved.encoder]
    if moved.of(OURS) is None and any(old.of(OURS) is not None for old in before):
        return "; the figures measured before are kept"
    others = [old for old in results.transfers if old.encoder != moved.encoder]
    results = msgspec.structs.replace(results, transfers=(*others, moved))
    results.write(folder.metrics_path)
    return ""


def _measure(
    head: AnyHead, pool: PromptPool | None, held_out: Dataset, embedder: Embedder
) -> dict[str, float | None]:
    """Compare a head with what its encoder does without having learnt; None where nothing can be."""
    figures: dict[str, float | None] = dict.fromkeys((*TEXT_BASELINES, OURS))
    if not len(held_out):
        return figures
    rows, names = embedder.originals(held_out), head.class_names
    if pool is None:
        heads: dict[str, AnyHead] = {"zero-shot": zero_shot_head(names, embedder)}
    else:
        heads = {**pool_heads(pool, embedder)}
    if isinstance(head, LinearHead) and head.residual is not None:
        heads[TEXT] = head.without_residual()
    for name, one in {**heads, OURS: head}.items():
        figures[name] = accuracy(one.predict_index(rows), held_out.labels)
    return figures


def _held_out(
    folder: RunFolder, ensemble: PromptEnsemble, source: str | None, progress: bool
) -> _Measured:
    """Find the images that the run did not learn from, and what is known about them."""
    empty = Dataset((), ensemble.class_names)
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        if source is not None:
            raise
        # The note goes into the figures, which are passed on: without the folders above the images.
        where = str(folder.source.path)
        return _Measured(
            empty, note=f"not measured: {str(error).replace(where, without_place(where))}"
        )
    if task.learn.fingerprint == folder.tables.get("data", {}).get("learn_fingerprint"):
        learn, kept = (
            with_classes(as_called_now(part, folder), ensemble.class_names)
            for part in (task.learn, task.held_out)
        )
        note = "" if len(kept) else "not measured: no image was held out"
        return _Measured(kept, note=note, learn=learn)
    if source is None:
        shown = without_place(str(folder.source))
        return _Measured(empty, note=f"not measured: the images in {shown} have changed")
    return _others(folder, with_classes(_all_or_test(task), ensemble.class_names))


def _others(folder: RunFolder, data: Dataset) -> _Measured:
    """Leave out the images that the run learnt from, as far as it says which they are."""
    inspection = inspect_run(folder, data)
    if inspection is None:
        note = "measured on other images; the run does not say whether it learnt from some"
        return _Measured(data, "perhaps learnt from", note)
    learnt = int(inspection.leaked.sum())
    rest = data.subset(np.flatnonzero(~inspection.leaked))
    if not len(rest):
        note = "not measured: the run learnt from all these images"
    elif learnt:
        note = f"measured on other images; left out, as the run learnt from them: {learnt}"
    else:
        note = "measured on other images"
    return _Measured(rest, "none the same as one learnt from", note, learnt)


def _all_or_test(task: Task) -> Dataset:
    if task.kind in ("test", "val"):
        return task.held_out
    images = (*task.learn.images, *task.held_out.images)
    return Dataset(images, task.class_names, task.learn.bad)


def run_pool(folder: RunFolder, ensemble: PromptEnsemble) -> PromptPool | None:
    """Make the run's pool again, or None if its sentences are gone or have changed."""
    try:
        pool = pool_for(folder.settings, folder.source, ensemble.class_names)
    except PromptBoostError:
        return None
    return pool if pool.fingerprint == ensemble.pool_fingerprint else None
