"""Images of a run that somebody should look at: wrong labels, copies, outliers; the most suspicious first.

Learned and held-out images are judged alike, each without its own label: by the words of the run's pool,
which have seen no image, and by the other images, see :mod:`promptboost.quality.suspects`.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.baselines import pool_heads, zero_shot_head
from promptboost.data import Dataset
from promptboost.data.shots import Task, load_task
from promptboost.errors import DataError, RunError, command_name, count, percent, place
from promptboost.io import write_json
from promptboost.progress import Progress, no_progress
from promptboost.quality.suspects import (
    LabelErrors,
    Outliers,
    find_outliers,
    label_errors,
    set_aside_probabilities,
)
from promptboost.run.evaluate import as_called_now, with_classes
from promptboost.run.findings import KINDS, SHOWN, Finding, Issues, Kind
from promptboost.run.fit import images_shown, write_thumbnails
from promptboost.run.overlap import LEAST_COSINE, Copy, CopyCount, inspect
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.transfer import run_pool


@dataclass(frozen=True)
class Inspected:
    """What was found, and the images it was found in."""

    issues: Issues
    task: Task


def find_issues(
    run: str | Path,
    source: str | None = None,
    *,
    limit: int | None = None,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
) -> Issues:
    """Find images of a run that somebody should look at; nothing is written.

    Parameters
    ----------
    run : path-like
        A run folder. Its images are embedded anew only if the store does not have them.
    source : str, optional
        Where the run's images are now, if they were moved.
    limit : int, optional
        Rank so many wrong labels and outliers at least, also beyond those that should be looked at.
    cache, progress, device, allow_download
        As for :func:`promptboost.load`.

    Raises
    ------
    RunError
        If the images are gone, or are not those the run learned from.

    Examples
    --------
    >>> find_issues("no-such-run")
    Traceback (most recent call last):
    promptboost.errors.RunError: no-such-run does not exist; to make one, type: \
promptboost fit DATA -o no-such-run
    """
    return inspect_issues(
        run,
        source,
        limit=limit,
        cache=cache,
        progress=progress,
        device=device,
        allow_download=allow_download,
    ).issues


def inspect_issues(
    run: str | Path,
    source: str | None = None,
    *,
    limit: int | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> Inspected:
    """Find them as :func:`find_issues` does, and return the images too."""
    folder = RunFolder(Path(run))
    folder.check_finished()
    classifier = folder.steady(lambda: open_classifier(folder.path, progress=progress, **options))
    task = _images(folder, source, progress)
    learn, held_out = (
        with_classes(as_called_now(part, folder), classifier.class_names)
        for part in (task.learn, task.held_out)
    )
    embedder, names = classifier.embedder, classifier.class_names
    parts = [part for part in (learn, held_out) if len(part)]
    rows = np.concatenate([embedder.originals(part) for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    pool = run_pool(folder, classifier.ensemble)
    words = (
        zero_shot_head(names, embedder) if pool is None else pool_heads(pool, embedder)["pool-mean"]
    )
    chances = set_aside_probabilities(rows, labels, words.weights, progress)
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
            **{kind: sum(item.kind == kind for item in findings) for kind in KINDS},
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
    shown = [item.image for item in issues.findings[:SHOWN]]
    with folder.writing("issues"):
        write_json(folder.issues_path, msgspec.to_builtins(issues), follow=False)
        write_thumbnails(
            folder, [*images_shown(folder.results), *shown], (task.held_out, task.learn)
        )
        for write in finish:
            write(folder.path)


def _images(folder: RunFolder, source: str | None, progress: Progress) -> Task:
    """Read the images of a run, and check that they are those it learned from."""
    moved = f"{command_name()} issues {shlex.quote(place(folder.home))} DATA"
    try:
        task = load_task(source or folder.source, folder.settings, progress=progress)
    except DataError as error:
        raise RunError(
            f"the images of the run in {folder.home} cannot be read: {error}; if they were moved, "
            f"name the place they are at now: {moved}"
        ) from error
    known = folder.learn_fingerprint
    if known is not None and task.learn.fingerprint != known:
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
    """The images of a run with what was asked about each."""

    def __init__(self, learn: Dataset, held_out: Dataset, chances: NDArray[np.float64]) -> None:
        self._names, self._chances = learn.class_names, chances
        self._ids = [*learn.ids, *held_out.ids]
        self._labels = np.concatenate([learn.labels, held_out.labels])
        self._learned = len(learn)
        self._place = {name: i for i, name in enumerate(self._ids)}

    def wrong_labels(self, found: LabelErrors, least: int) -> Iterator[Finding]:
        """Yield images whose label is probably wrong, and perhaps some more."""
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
        """Yield images that are far from every class, and perhaps some more."""
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
        """Return which of the labels of two copies is more probable."""
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
    """Return what was looked at, as a line."""
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
