"""Suspicious images of a run: wrong labels, copies and outliers, the most suspicious first.

Training and held-out images are classified without their own labels, by the sentences of the pool and by
the other images; see :mod:`promptboost.quality.suspects`.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    LabelErrors,
    Outliers,
    find_outliers,
    held_out_probabilities,
    label_errors,
)
from promptboost.run.evaluate import as_called_now, with_classes
from promptboost.run.findings import KINDS, SHOWN, Finding, Issues, Kind
from promptboost.run.fit import images_shown, write_thumbnails
from promptboost.run.overlap import LEAST_COSINE, Copy, CopyCount, inspect
from promptboost.run.predict import LoadOptions, open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import run_pool


@dataclass(frozen=True)
class Inspected:
    """Issues, and the images of the run."""

    issues: Issues
    task: Task


def find_issues(
    run: str | Path, source: str | None = None, *, limit: int | None = None, **options: Any
) -> Issues:
    """Find suspicious images of a run: wrong labels, copies and outliers.

    `source` is the new path of the run's images, if they were moved. At least `limit` wrong labels and
    outliers are listed. Raise a RunError if images are missing, or the training images changed.
    """
    return inspect_issues(run, source, limit=limit, **options).issues


def inspect_issues(
    run: str | Path,
    source: str | None = None,
    *,
    limit: int | None = None,
    progress: Progress = no_progress,
    **options: Unpack[LoadOptions],
) -> Inspected:
    """Find issues as :func:`find_issues` does, and return the images too."""
    folder = RunFolder(Path(run))
    folder.check_finished()
    classifier = folder.steady(lambda: open_classifier(folder.path, progress=progress, **options))
    task = _images(folder, source, progress)
    learn, held_out = (
        with_classes(as_called_now(split, folder), classifier.class_names)
        for split in (task.learn, task.held_out)
    )
    embedder, names = classifier.embedder, classifier.class_names
    splits = [split for split in (learn, held_out) if len(split)]
    rows = np.concatenate([embedder.originals(split) for split in splits])
    labels = np.concatenate([split.labels for split in splits])
    pool = run_pool(folder, classifier.ensemble)
    words = (
        zero_shot_head(names, embedder) if pool is None else pool_heads(pool, embedder)["pool-mean"]
    )
    chances = held_out_probabilities(rows, labels, words.weights, progress)
    errors, outliers = label_errors(chances, labels), find_outliers(rows, labels)
    overlap = inspect(learn, held_out, most=None, progress=progress).overlap
    images = _Images(learn, held_out, chances)
    findings = (
        *images.wrong_labels(errors, limit or 0),
        *images.copies("two-labels", overlap.contradictions),
        *images.copies("leak", overlap.leaks),
        *images.outliers(outliers, limit or 0),
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
    return Inspected(issues, task)


def write_issues(
    run: str | Path, inspected: Inspected, finish: tuple[Callable[[Path], object], ...] = ()
) -> None:
    """Write ``issues.json`` into the run, thumbnails of the first findings, and what `finish` writes."""
    folder, issues, task = RunFolder(Path(run)), inspected.issues, inspected.task
    issues = msgspec.structs.replace(issues, findings=issues.first(None))
    shown = [finding.image for finding in issues.findings[:SHOWN]]
    with folder.writing("issues"):
        write_json(folder.issues_path, msgspec.to_builtins(issues), follow=False)
        write_thumbnails(
            folder, [*images_shown(folder.results), *shown], (task.held_out, task.learn)
        )
        for write in finish:
            write(folder.path)


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
            "learned from: some were changed, added, removed or labeled anew since. To look at them "
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

    def wrong_labels(self, found: LabelErrors, least: int) -> Iterator[Finding]:
        """Yield images whose label is probably wrong, at least `least`."""
        for i in found.order[: max(found.count, least)].tolist():
            better, label = int(found.suggested[i]), int(self._labels[i])
            chance = float(self._chances[i, better])
            yield self._finding(
                "label",
                i,
                suggested=self._names[better],
                probability=chance,
                score=float(found.scores[i]),
                why=f"looks like {self._names[better]} ({percent(chance, 0)}) rather than "
                f"{self._names[label]} ({percent(self._chances[i, label], 0)})",
            )

    def outliers(self, found: Outliers, least: int) -> Iterator[Finding]:
        """Yield images that are far from every class, at least `least`."""
        for i in found.order[: max(found.count, least)].tolist():
            nearest = int(found.nearest[i])
            yield self._finding(
                "outlier",
                i,
                suggested=self._names[nearest],
                probability=float(self._chances[i, nearest]),
                score=float(found.scores[i]),
                why=f"far from all classes, {found.scores[i]:.1f} deviations; the nearest is "
                f"{self._names[nearest]}",
            )

    def copies(self, kind: Kind, copies: CopyCount) -> Iterator[Finding]:
        """Yield images that are copies of others, the same files first."""
        for copy in sorted(copies.first, key=lambda copy: not copy.exact):
            i = self._place[copy.image]
            better = self._better(copy) if kind == "two-labels" else None
            yield self._finding(
                kind,
                i,
                suggested=None if better is None else self._names[better],
                probability=None if better is None else float(self._chances[i, better]),
                score=1.0 if copy.exact else LEAST_COSINE,
                other=copy.of,
                why=_why(kind, copy),
            )

    def _better(self, copy: Copy) -> int:
        """Return the more probable label of two copies."""
        i = self._place[copy.image]
        both = [self._names.index(name) for name in (copy.label, copy.of_label)]
        return max(both, key=lambda label: float(self._chances[i, label]))

    def _finding(self, kind: Kind, i: int, **fields: Any) -> Finding:
        return Finding(
            kind=kind,
            image=self._ids[i],
            split="learned" if i < self._learned else "held-out",
            label=self._names[int(self._labels[i])],
            **fields,
        )


def _why(kind: Kind, copy: Copy) -> str:
    same = "the same file as" if copy.exact else "looks the same as"
    if kind == "two-labels":
        return f"{same} {copy.of}, whose label is {copy.of_label}"
    if kind == "leak":
        return f"{same} {copy.of}, which was learned from"
    return f"{same} {copy.of}, of the same class"


def summary_line(issues: Issues) -> str:
    """Return a one-line summary of the images checked."""
    line = (
        f"{count(issues.learned_images, 'learned image')} and "
        f"{count(issues.held_out_images, 'held-out image')}, each judged by the words and by other images"
    )
    total = issues.learned_images + issues.held_out_images
    if issues.only_words == total:
        return line.replace("the words and by other images", "the words alone: no class has two")
    if issues.only_words:
        line += f"; {issues.only_words:,} by the words alone, being the only one of their class"
    return line
