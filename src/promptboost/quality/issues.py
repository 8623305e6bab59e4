"""Suspicious images of a run: wrong labels, copies and outliers, the most suspicious first.

Training and held-out images are classified without their own labels, by the sentences of the pool and by
the other images; see :mod:`promptboost.quality.suspects`.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import pool_heads, zero_shot_head
from promptboost.data import Dataset
from promptboost.data.shots import Task, load_task
from promptboost.errors import DataError, RunError, command_name, count, percent, place
from promptboost.io import write_json
from promptboost.progress import Progress, no_progress
from promptboost.quality.suspects import (
    Suspects,
    find_outliers,
    held_out_probabilities,
    label_errors,
)
from promptboost.report.page import write_pages
from promptboost.run.evaluate import as_called_now
from promptboost.run.findings import KINDS, SHOWN, Finding, Issues, Kind
from promptboost.run.fit import images_shown, write_thumbnails
from promptboost.run.overlap import LEAST_COSINE, CopyCount, inspect
from promptboost.run.predict import LoadOptions, open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import run_pool


def find_issues(
    run: str | Path, source: str | None = None, *, limit: int | None = None, **options: Any
) -> Issues:
    """Find suspicious images of a run: wrong labels, copies and outliers.

    `source` is the new path of the run's images, if they were moved. At least `limit` wrong labels and
    outliers are listed. Raise a RunError if images are missing, or the training images changed.
    """
    return inspect_issues(run, source, limit=limit, **options)[0]


def inspect_issues(
    run: str | Path,
    source: str | None = None,
    *,
    limit: int | None = None,
    progress: Progress = no_progress,
    **options: Unpack[LoadOptions],
) -> tuple[Issues, Task]:
    """Find issues as :func:`find_issues` does, and return the images of the run, too."""
    folder = RunFolder(Path(run))
    folder.check_finished()
    classifier = folder.steady(lambda: open_classifier(folder.path, progress=progress, **options))
    task = _images(folder, source, progress)
    learn, held_out = (
        as_called_now(split, folder, classifier.class_names)
        for split in (task.learn, task.held_out)
    )
    embedder = classifier.embedder
    splits = [split for split in (learn, held_out) if len(split)]
    rows = np.concatenate([embedder.originals(split) for split in splits])
    labels = np.concatenate([split.labels for split in splits])
    pool = run_pool(folder, classifier.ensemble)
    if pool is None:
        words = zero_shot_head(classifier.class_names, embedder)
    else:
        words = pool_heads(pool, embedder)["pool-mean"]
    chances = held_out_probabilities(rows, labels, words.weights, progress)
    errors, outliers = label_errors(chances, labels), find_outliers(rows, labels)
    overlap = inspect(learn, held_out, most=None, progress=progress).overlap
    images = _Images(learn, held_out, chances)
    findings = (
        *images.suspects("label", errors, limit or 0),
        *images.copies("two-labels", overlap.contradictions),
        *images.copies("leak", overlap.leaks),
        *images.suspects("outlier", outliers, limit or 0),
        *images.copies("repeat", overlap.repeats),
    )
    sizes = np.bincount(labels)
    issues = Issues(
        learned_images=len(learn),
        held_out_images=len(held_out),
        only_words=int((sizes == 1).sum()),
        to_look_at={
            **{kind: sum(finding.kind == kind for finding in findings) for kind in KINDS},
            "label": errors.count,
            "outlier": outliers.count,
        },
        findings=findings,
    )
    return issues, task


def write_issues(run: str | Path, issues: Issues, task: Task) -> None:
    """Write ``issues.json`` into the run, thumbnails of the first findings, report and card."""
    folder = RunFolder(Path(run))
    issues = msgspec.structs.replace(issues, findings=issues.first(None))
    shown = [finding.image for finding in issues.findings[:SHOWN]]
    with folder.writing("issues"):
        write_json(folder.issues_path, msgspec.to_builtins(issues), follow=False)
        write_thumbnails(
            folder, [*images_shown(folder.results), *shown], (task.held_out, task.learn)
        )
        write_pages(folder.path)


def _images(folder: RunFolder, source: str | None, progress: Progress) -> Task:
    """Read the images of a run; raise RunError if its training images changed."""
    moved = f"{command_name()} issues {shlex.quote(place(folder.home))} DATA"
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        raise RunError(
            f"the images of the run in {folder.home} cannot be read: {error}; if they were moved, "
            f"give their new path: {moved}"
        ) from error
    fingerprint = folder.learn_fingerprint
    if fingerprint is not None and task.learn.fingerprint != fingerprint:
        again = folder.fit_command()
        if source:
            again = f"{command_name()} fit {shlex.quote(place(source))}"
        raise RunError(
            f"the images in {source or folder.source} are not those that the run in {folder.home} "
            "learned from: some were changed, added, removed or labeled anew since. To check them "
            f"as they are now, fit again: {again} -o NEW, then {command_name()} issues NEW"
        )
    return task


class _Images:
    """The images of a run with their class probabilities."""

    def __init__(self, learn: Dataset, held_out: Dataset, chances: NDArray[np.float64]) -> None:
        self._names, self._chances = learn.class_names, chances
        self._ids = [*learn.ids, *held_out.ids]
        self._labels = np.concatenate([learn.labels, held_out.labels])
        self._learned = len(learn)
        self._place = {name: i for i, name in enumerate(self._ids)}

    def suspects(self, kind: Kind, found: Suspects, least: int) -> Iterator[Finding]:
        """Yield wrong labels or outliers, at least `least`."""
        for i in found.order[: max(found.count, least)].tolist():
            better, label, score = found.suggested[i], self._labels[i], float(found.scores[i])
            chance, name = float(self._chances[i, better]), self._names[better]
            why = f"far from all classes, {score:.1f} deviations; the nearest is {name}"
            if kind == "label":
                why = (
                    f"looks like {name} ({percent(chance, 0)}) rather than "
                    f"{self._names[label]} ({percent(self._chances[i, label], 0)})"
                )
            yield self._finding(kind, i, score, why, suggested=name, probability=chance)

    def copies(self, kind: Kind, copies: CopyCount) -> Iterator[Finding]:
        """Yield images that are copies of others, the same files first."""
        for copy in sorted(copies.first, key=lambda copy: not copy.exact):
            i, fields = self._place[copy.image], dict[str, Any]()
            what = ", of the same class" if kind == "repeat" else ", a training image"
            if kind == "two-labels":
                what = f", whose label is {copy.of_label}"
                chances = {
                    name: float(self._chances[i, self._names.index(name)])
                    for name in (copy.label, copy.of_label)
                }
                better = max(chances, key=chances.__getitem__)
                fields = {"suggested": better, "probability": chances[better]}
            same = "the same file as" if copy.exact else "looks the same as"
            score = 1.0 if copy.exact else LEAST_COSINE
            yield self._finding(kind, i, score, f"{same} {copy.of}{what}", other=copy.of, **fields)

    def _finding(self, kind: Kind, i: int, score: float, why: str, **fields: Any) -> Finding:
        return Finding(
            kind=kind,
            image=self._ids[i],
            split="learned" if i < self._learned else "held-out",
            label=self._names[int(self._labels[i])],
            score=score,
            why=why,
            **fields,
        )


def summary_line(issues: Issues) -> str:
    """Return a one-line summary of the images checked."""
    line = (
        f"{count(issues.learned_images, 'training image')} and "
        f"{count(issues.held_out_images, 'held-out image')}, each checked with the text and other images"
    )
    total = issues.learned_images + issues.held_out_images
    if issues.only_words == total:
        return line.replace("the text and other images", "the text alone: no class has two")
    if issues.only_words:
        line += f"; {issues.only_words:,} with the text alone, as the only one of their class"
    return line
