"""Bench: the held-out images of a run, ready to measure any edit of its text at once."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.measures import Count, Share
from promptboost.data.dataset import Dataset
from promptboost.data.shots import image_ids, load_task
from promptboost.errors import DataError, RunError, command_name
from promptboost.model import PromptClassifier, PromptEnsemble
from promptboost.model.change import Change, apply_changes, original_names
from promptboost.model.scores import SentenceScores
from promptboost.progress import Progress, no_progress
from promptboost.run.lineage import Lineage
from promptboost.run.predict import open_classifier
from promptboost.run.run_folder import RunFolder

#: One held-out image in so many is kept back until the final figure is asked for.
KEPT_BACK = 3


class ClassChange(msgspec.Struct, frozen=True):
    """How many images of one class are right before an edit and after it."""

    class_name: str = msgspec.field(name="class")
    count: Count
    before: Share
    after: Share


class Flip(msgspec.Struct, frozen=True):
    """An image that gets another answer."""

    image: str
    label: str
    before: str
    after: str
    becomes: Literal["right", "wrong", "other"]  # other: wrong before, and wrong after


class Effect(msgspec.Struct, frozen=True):
    """What an edit does to the answers for held-out images."""

    images: Count
    before: Share | None  # accuracy; None without images
    after: Share | None
    flips: tuple[Flip, ...]
    classes: tuple[ClassChange, ...]
    left_out: Count = 0  # images of classes that were dropped
    changed: Count = 0  # images that get another answer
    mended: Count = 0  # of which so many become right
    broken: Count = 0  # and so many become wrong

    @property
    def paying(self) -> tuple[ClassChange, ...]:
        """The classes that are worse off, the largest loss first."""
        worse = [item for item in self.classes if item.after < item.before]
        return tuple(sorted(worse, key=lambda item: item.after - item.before))


@dataclass(eq=False)
class Bench:
    """Held-out images of a run with what they score on its sentences.

    Attributes
    ----------
    ensemble : PromptEnsemble
        The text of the run.
    scores : SentenceScores
        What the images score.
    images : list of str
        Their names.
    labels : array of shape (n,)
        Their classes, numbers of `class_names`.
    class_names : tuple of str
        The classes as the images call them, whatever an edit called them since.
    lineage : Lineage
        The edits since the fit.
    held_out : Dataset, optional
        The images themselves.
    """

    ensemble: PromptEnsemble
    scores: SentenceScores
    images: list[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    lineage: Lineage
    held_out: Dataset | None = None

    def originals(self, changes: Iterable[Change] = ()) -> dict[str, str]:
        """Return what the images call the classes of the text after `changes`."""
        return original_names(self.class_names, (*self.lineage.changes, *changes))

    def known_names(self, originals: Mapping[str, str]) -> dict[str, str]:
        """Return the names that classes have in the run, by those in a text: the residual knows these."""
        back = {old: new for new, old in self.originals().items()}
        return {name: back[old] for name, old in originals.items() if old in back}

    def labels_in(
        self, ensemble: PromptEnsemble, changes: Iterable[Change] = ()
    ) -> NDArray[np.int64]:
        """Return each image's class as a number of a text's classes; −1 where the text lacks it."""
        places = {name: k for k, name in enumerate(ensemble.class_names)}
        back = {old: places[new] for new, old in self.originals(changes).items()}
        numbers = np.array([back.get(name, -1) for name in self.class_names], dtype=np.int64)
        return numbers[self.labels]

    def answers(
        self, ensemble: PromptEnsemble, originals: Mapping[str, str]
    ) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Return the answer for each image as a number of `class_names`, −1 for a class new to it.

        Then also as a number of the text's own classes.
        """
        chosen = self.scores.answers(ensemble, self.known_names(originals))
        places = {name: k for k, name in enumerate(self.class_names)}
        numbers = [places.get(originals.get(name, ""), -1) for name in ensemble.class_names]
        return np.array(numbers, dtype=np.int64)[chosen], chosen

    def accuracy(self, ensemble: PromptEnsemble, changes: Iterable[Change] = ()) -> float | None:
        """Return the share of images that a text is right about, `changes` after that of the run."""
        answers, _ = self.answers(ensemble, self.originals(changes))
        return float(np.mean(answers == self.labels)) if len(self.labels) else None

    def effect(self, changes: Iterable[Change]) -> Effect:
        """Measure what edits of the run's text do, on the images of classes that remain."""
        changes = tuple(changes)
        return self.between((self.ensemble, ()), (apply_changes(self.ensemble, changes), changes))

    def between(
        self,
        one: tuple[PromptEnsemble, tuple[Change, ...]],
        other: tuple[PromptEnsemble, tuple[Change, ...]],
        most: int | None = None,
    ) -> Effect:
        """Compare two texts, each with the changes that made it of the run's.

        With `most`, no more images of each kind are named than that; all are counted.
        """
        found = []
        remain = np.ones(len(self.labels), dtype=bool)
        for ensemble, changes in (one, other):
            originals = self.originals(changes)
            found.append((ensemble, *self.answers(ensemble, originals)))
            there = set(originals.values())
            remain &= np.array([name in there for name in self.class_names])[self.labels]
        (before_text, before, before_place), (after_text, after, after_place) = found
        # A class that was only renamed is the same answer; two that are new to the images are not.
        same = (before == after) & ((before >= 0) | (before_place == after_place))
        flipped = np.flatnonzero(remain & ~same)
        right = [(guess == self.labels) & remain for guess in (before, after)]
        kinds = [
            flipped[right[1][flipped]],
            flipped[right[0][flipped]],
            flipped[~(right[0] | right[1])[flipped]],
        ]
        flipped = np.sort(np.concatenate([kind[:most] for kind in kinds]))
        counts, *shares = (
            np.bincount(self.labels[those], minlength=len(self.class_names)).tolist()
            for those in (remain, *right)
        )
        of_classes = zip(self.class_names, counts, *shares, strict=True)
        images = int(remain.sum())
        rows = (self.labels, before_place, after_place, right[0], right[1])
        accuracies = [float(one.sum() / images) if images else None for one in right]
        return Effect(
            images,
            before=accuracies[0],
            after=accuracies[1],
            flips=tuple(
                Flip(
                    self.images[i],
                    self.class_names[label],
                    before_text.class_names[one],
                    after_text.class_names[other],
                    "right" if now else "wrong" if was else "other",
                )
                for i, label, one, other, was, now in zip(
                    flipped.tolist(), *(row[flipped].tolist() for row in rows), strict=True
                )
            ),
            classes=tuple(
                ClassChange(name, count, was / count, now / count)
                for name, count, was, now in of_classes
                if count
            ),
            left_out=len(self.labels) - images,
            changed=sum(map(len, kinds)),
            mended=len(kinds[0]),
            broken=len(kinds[1]),
        )


def open_bench(
    run: Path,
    *,
    data: str | None = None,
    final: bool = False,
    cache: bool = True,
    progress: Progress = no_progress,
    device: str | None = None,
    allow_download: bool = False,
) -> Bench:
    """Embed the held-out images of a run: the part that is shown or, at last, the one kept back.

    `data` is where the images are now, if they were moved.
    """
    folder = RunFolder(run)
    folder.check_finished()

    def read() -> tuple[PromptClassifier, Lineage]:
        classifier = open_classifier(
            run, cache=cache, progress=progress, device=device, allow_download=allow_download
        )
        _ = folder.settings, folder.source
        return classifier, Lineage.read(run)

    classifier, lineage = folder.steady(read)
    head = classifier.head
    held_out = shown_part(held_out_images(folder, data, progress), final=final)
    rows = classifier.embedder.originals(held_out)
    return Bench(
        classifier.ensemble,
        SentenceScores(rows, classifier.embedder, head),
        image_ids(held_out),
        held_out.labels,
        held_out.class_names,
        lineage,
        held_out,
    )


def held_out_images(folder: RunFolder, data: str | None, progress: Progress) -> Dataset:
    """Return the images that a run held out, where they are still as they were."""
    evaluate = f"{command_name()} evaluate {shlex.quote(str(folder.path))} DATA"
    again = f"{evaluate} measures on other images"
    try:
        task = load_task(data or folder.source, folder.settings, progress=progress)
    except DataError as error:
        raise RunError(
            f"the held-out images of {folder.path} cannot be read: {error}; if they were moved, say where "
            f"with --data DATA, or as in {evaluate} --held-out; {again}"
        ) from error
    if task.learn.fingerprint != folder.learn_fingerprint:
        raise RunError(
            f"the images in {data or folder.source} are not those that {folder.path} was fitted on, so "
            f"it is not known which were held out; {again}"
        )
    if not len(task.held_out):
        raise RunError(f"{folder.path} held no images out: it learnt from all; {again}")
    return task.held_out


def shown_part(held_out: Dataset, *, final: bool) -> Dataset:
    """Return the images that edits are measured on, or those kept back for the end.

    Which is which depends on the content of an image alone: it stays so under another name, and when
    images come and go.
    """
    kept = np.array([image.digest()[0] % KEPT_BACK == 0 for image in held_out.images], dtype=bool)
    return held_out.subset(np.flatnonzero(kept == final))


def add_looks(run: Path, looks: int = 0, final_looks: int = 0) -> Lineage:
    """Count looks at the held-out images of a run, and write the number into its folder."""
    folder = RunFolder(run)
    with folder.writing("count a look"):
        before = Lineage.read(run)
        after = msgspec.structs.replace(
            before, looks=before.looks + looks, final_looks=before.final_looks + final_looks
        )
        after.write(run)
    return after
