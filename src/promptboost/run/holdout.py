"""The held-out images of a run, ready to measure any edit of its ensemble."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import Count, Share
from promptboost.data.dataset import Dataset
from promptboost.data.shots import load_task
from promptboost.errors import DataError, RunError, command_name
from promptboost.model import PromptClassifier, PromptEnsemble
from promptboost.model.edits import Change, apply_changes, original_names
from promptboost.model.scores import ClassKey, SentenceScores
from promptboost.progress import Progress, no_progress
from promptboost.run.predict import LoadOptions, open_classifier
from promptboost.run.run_folder import RunFolder
from promptboost.run.versions import Lineage

#: One in this many held-out images is reserved for the final measurement.
RESERVED = 3


class ClassChange(msgspec.Struct, frozen=True):
    """Accuracy on the images of one class before an edit and after it."""

    class_name: str = msgspec.field(name="class")
    count: Count
    before: Share
    after: Share


class Flip(msgspec.Struct, frozen=True):
    """An image whose prediction changes."""

    image: str
    label: str
    before: str
    after: str
    becomes: Literal["right", "wrong", "other"]  # other: wrong before, and wrong after


class Effect(msgspec.Struct, frozen=True):
    """The effect of an edit on the predictions for held-out images."""

    images: Count
    before: Share | None  # accuracy; None without images
    after: Share | None
    flips: tuple[Flip, ...]
    classes: tuple[ClassChange, ...]
    left_out: Count = 0  # images of classes that were dropped
    changed: Count = 0  # images whose prediction changes
    mended: Count = 0  # of these, images that become right
    broken: Count = 0  # and images that become wrong

    @property
    def worse(self) -> tuple[ClassChange, ...]:
        """The classes that lose accuracy, the largest loss first."""
        worse = [change for change in self.classes if change.after < change.before]
        return tuple(sorted(worse, key=lambda change: change.after - change.before))


class Candidate(NamedTuple):
    """An edited ensemble to measure."""

    ensemble: PromptEnsemble  # the ensemble after the changes
    changes: tuple[Change, ...]  # the changes since the run's own ensemble
    labels: Mapping[str, str]  # its class names to those of the images, without added classes
    originals: Mapping[str, str]  # its class names to those in the run, which the residual has

    @property
    def names(self) -> dict[str, str]:
        """Class names of the images to those of the ensemble."""
        return {label: name for name, label in self.labels.items()}


@dataclass(eq=False)
class HeldOutSet:
    """Held-out images of a run with their scores on its sentences."""

    ensemble: PromptEnsemble  # the ensemble of the run
    scores: SentenceScores  # the scores of the images
    images: list[str]  # their names
    labels: NDArray[np.int64]  # (n,): their classes, as indices into `class_names`
    class_names: tuple[str, ...]  # the class names in the data, before any renaming
    lineage: Lineage  # the edits since the fit
    data: Dataset | None = None  # the images themselves

    def __post_init__(self) -> None:
        self._run_names = original_names(self.class_names, self.lineage.changes)
        self.base = self.candidate((), self.ensemble)

    def candidate(
        self, changes: Iterable[Change], ensemble: PromptEnsemble | None = None
    ) -> Candidate:
        """Apply changes to the ensemble of the run, unless the result is given."""
        changes = tuple(changes)
        if ensemble is None:
            ensemble = apply_changes(self.ensemble, changes)
        labels = original_names(self.class_names, (*self.lineage.changes, *changes))
        run_names = {label: name for name, label in self._run_names.items()}
        originals = {name: run_names[label] for name, label in labels.items() if label in run_names}
        return Candidate(ensemble, changes, labels, originals)

    def keys(self, candidate: Candidate) -> tuple[ClassKey, ...]:
        """Return the keys of a candidate's classes; equal keys mean equal predictions."""
        return self.scores.class_keys(candidate.ensemble, candidate.originals)

    def labels_in(self, candidate: Candidate) -> NDArray[np.int64]:
        """Return the class of each image as an index into the candidate's classes; −1 if it has none."""
        names, classes = candidate.names, candidate.ensemble.class_names
        numbers = [
            classes.index(names[label]) if label in names else -1 for label in self.class_names
        ]
        return np.array(numbers, dtype=np.int64)[self.labels]

    def answers(self, candidate: Candidate) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Return predictions as indices into `class_names`, −1 for an added class.

        The second array has the indices into the candidate's own classes.
        """
        chosen = self.scores.answers(candidate.ensemble, candidate.originals)
        indices = {name: k for k, name in enumerate(self.class_names)}
        labels = candidate.labels
        numbers = [indices.get(labels.get(name, ""), -1) for name in candidate.ensemble.class_names]
        return np.array(numbers, dtype=np.int64)[chosen], chosen

    def effect(self, changes: Iterable[Change]) -> Effect:
        """Measure edits of the run's ensemble on the images of classes that remain."""
        return self.compare(self.base, self.candidate(changes))

    def compare(self, before: Candidate, after: Candidate, most: int | None = None) -> Effect:
        """Compare two candidates; at most `most` flips of each kind are listed, all are counted."""
        remain = np.ones(len(self.labels), dtype=bool)
        for candidate in (before, after):
            names = candidate.names
            remain &= np.array([name in names for name in self.class_names])[self.labels]
        (old, old_own), (new, new_own) = self.answers(before), self.answers(after)
        # A renamed class is the same prediction; two different added classes are not.
        same = (old == new) & ((old >= 0) | (old_own == new_own))
        flipped = np.flatnonzero(remain & ~same)
        was_right, is_right = (old == self.labels) & remain, (new == self.labels) & remain
        mended, broken = flipped[is_right[flipped]], flipped[was_right[flipped]]
        other = flipped[~(was_right | is_right)[flipped]]
        images = int(remain.sum())
        flips = tuple(
            Flip(
                self.images[i],
                self.class_names[self.labels[i]],
                before.ensemble.class_names[old_own[i]],
                after.ensemble.class_names[new_own[i]],
                "right" if is_right[i] else "wrong" if was_right[i] else "other",
            )
            for i in sorted(i for kind in (mended, broken, other) for i in kind[:most].tolist())
        )
        counts, before_counts, after_counts = (
            np.bincount(self.labels[chosen], minlength=len(self.class_names)).tolist()
            for chosen in (remain, was_right, is_right)
        )
        return Effect(
            images,
            before=float(was_right.sum() / images) if images else None,
            after=float(is_right.sum() / images) if images else None,
            flips=flips,
            classes=tuple(
                ClassChange(name, n, a / n, b / n)
                for name, n, a, b in zip(
                    self.class_names, counts, before_counts, after_counts, strict=True
                )
                if n
            ),
            left_out=len(self.labels) - images,
            changed=len(flipped),
            mended=len(mended),
            broken=len(broken),
        )


def open_held_out(
    run: Path,
    *,
    data: str | None = None,
    final: bool = False,
    needed: bool = True,
    progress: Progress = no_progress,
    **options: Unpack[LoadOptions],
) -> HeldOutSet:
    """Embed the held-out images of a run: those for edits or, if `final`, the reserved ones.

    `data` is where the images are, if they were moved. Unless they are `needed`, there may be none.
    """
    folder = RunFolder(run)
    folder.check_finished()

    def read() -> tuple[PromptClassifier, Lineage]:
        classifier = open_classifier(run, progress=progress, **options)
        _ = folder.settings, folder.source
        return classifier, Lineage.read(run)

    classifier, lineage = folder.steady(read)
    held_out = shown_part(held_out_images(folder, data, progress, needed=needed), final=final)
    rows = classifier.embedder.originals(held_out)
    return HeldOutSet(
        classifier.ensemble,
        SentenceScores(rows, classifier.embedder, classifier.head),
        list(held_out.ids),
        held_out.labels,
        held_out.class_names,
        lineage,
        held_out,
    )


def held_out_images(
    folder: RunFolder, data: str | None, progress: Progress, *, needed: bool = True
) -> Dataset:
    """Return the images that a run held out; raise if they have moved or changed, or there are none."""
    evaluate = f"{command_name()} evaluate {shlex.quote(str(folder.path))} DATA"
    again = f"{evaluate} measures on other images"
    try:
        task = load_task(data or folder.source, folder.settings, progress=progress)
    except DataError as error:
        raise RunError(
            f"the held-out images of {folder.path} cannot be read: {error}; if they were moved, add "
            f"--data DATA, or type {evaluate} --held-out; {again}"
        ) from error
    if task.learn.fingerprint != folder.learn_fingerprint:
        raise RunError(
            f"the images in {data or folder.source} are not those that {folder.path} was fitted on, so "
            f"the held-out ones are unknown; {again}"
        )
    if needed and not len(task.held_out):
        raise RunError(f"{folder.path} has no held-out images; {again}")
    return task.held_out


def shown_part(held_out: Dataset, *, final: bool) -> Dataset:
    """Return the images for measuring edits or, if `final`, the reserved ones.

    The split depends only on the content of each image.
    """
    hidden = [image.digest()[0] % RESERVED == 0 for image in held_out.images]
    return held_out.subset(np.flatnonzero(np.array(hidden, dtype=bool) == final))


def add_looks(run: Path, looks: int = 0, final_looks: int = 0) -> Lineage:
    """Count measurements on the held-out images of a run, and write the number into its folder."""
    folder = RunFolder(run)
    with folder.writing("count a measurement"):
        lineage = Lineage.read(run)
        lineage = msgspec.structs.replace(
            lineage, looks=lineage.looks + looks, final_looks=lineage.final_looks + final_looks
        )
        lineage.write(run)
    return lineage
