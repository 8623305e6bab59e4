"""Labels in the workbench: relabel, drop and add training images, and refit."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from promptboost.baselines import OURS
from promptboost.data import LabeledImage
from promptboost.data.shots import Task, load_task
from promptboost.data.source import find_images
from promptboost.errors import SettingError
from promptboost.io import write_text
from promptboost.quality.issues import inspect_issues
from promptboost.run.findings import Finding, Issues
from promptboost.run.fit import thumbnail
from promptboost.run.holdout import HeldOutSet
from promptboost.run.predict import open_classifier
from promptboost.run.refit import refit_run
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder
from promptboost.run.suggestion import suggest_images
from promptboost.run.versions import free_name, version_folder

#: Images that are suggested at a time.
SUGGESTED = 12


class TrainingLabels:
    """The labels of a run's images, changed one at a time.

    Each change is written to a manifest next to the run, RUN-v2-labels.csv, and the residual is fitted
    again in a new run, RUN-v2, which later changes replace. The run itself and its sentences stay.
    Images are named by their paths. `unlabeled` are images and folders to choose from, `source` is where
    the images of the run are now, and `options` are those for opening encoders.
    """

    def __init__(
        self,
        run: Path,
        held_out: HeldOutSet,
        unlabeled: Sequence[str] = (),
        *,
        source: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.run = run
        self.saved: Path | None = None
        self._held_out, self._unlabeled, self._source = held_out, tuple(unlabeled), source
        self._options = dict(options or {})
        self._images: dict[str, LabeledImage] = {}  # all that are shown
        self._labels: dict[str, LabeledImage] = {}  # those of the run
        self._skipped: set[str] = set()  # suggested, and of no class
        self._findings: list[Finding] | None = None
        self._suggestions: list[dict[str, Any]] | None = None
        self._changes = 0

    def review(self, *, search: bool = False) -> dict[str, Any]:
        """Return what there is to label; `search` for suspicious images, if `issues` did not."""
        self._read()
        if search:
            self._findings = _of_training(*inspect_issues(*self._latest, **self._options))
        if self._suggestions is None and self._unlabeled:
            self._suggestions = self._suggest()
        saved = self.saved
        return {
            "classes": list(self._held_out.base.labels),
            "findings": None if self._findings is None else msgspec.to_builtins(self._findings),
            "suggestions": self._suggestions,
            "changes": self._changes,
            "saved": None if saved is None else saved.name,
            "fit": None if saved is None else accuracy_record(RunFolder(saved).results),
        }

    def label(self, image: str, label: str | None = None) -> dict[str, Any]:
        """Change the label of an image, or drop it from the training images; fit the residual again.

        Without a label, a suggested image is not suggested again.
        """
        self._read()
        if image not in self._images:
            raise SettingError(f"there is no image {image!r} to label")
        labels, names = dict(self._labels), self._held_out.base.labels
        if image in labels and labels[image].split != "train":
            raise SettingError(f"{image!r} is held out: only training images can be changed")
        if label is not None and label not in names:
            raise SettingError(f"there is no class {label!r}")
        self._suggestions = None
        if label is not None:
            labels[image] = replace(self._images[image], label=names[label], split="train")
        elif image in labels:
            del labels[image]
        else:
            self._skipped.add(image)
            return self.review()
        self._refit(labels)
        self._labels, self._changes = labels, self._changes + 1
        if self._findings is not None:
            self._findings = [each for each in self._findings if each.image != image]
        return self.review()

    def thumbnail(self, image: str) -> str | None:
        """Return a small JPEG as a data URL; None if the image is not among these."""
        self._read()
        return thumbnail(self._images[image]) if image in self._images else None

    @property
    def _latest(self) -> tuple[Path, str | None]:
        """The run with all changes, and where its images are now, if not where it says."""
        return (self.run, self._source) if self.saved is None else (self.saved, None)

    def _read(self) -> None:
        """List the images of the run, and what `issues` found, once."""
        if self._images:
            return
        folder = RunFolder(self.run)
        task = load_task(self._source or folder.source, folder.settings)
        for split, data in (("train", task.learn), ("test", task.held_out)):
            if not all(isinstance(image.source, Path) for image in data.images):
                raise SettingError(
                    "the images of this run are not files, so their labels cannot be changed"
                )
            self._labels |= {_path(image): replace(image, split=split) for image in data.images}
        self._images |= self._labels
        if folder.issues_path.exists():
            self._findings = _of_training(Issues.read(folder.issues_path), task)

    def _suggest(self) -> list[dict[str, Any]]:
        run, source = self._latest
        number = SUGGESTED + len(self._skipped)
        classifier = open_classifier(run, **self._options)
        chosen = suggest_images(RunFolder(run), classifier, self._unlabeled, number, source=source)
        images = {image.id: image for image in find_images(self._unlabeled).images}
        records = [{**each.record(), "image": _path(images[each.image])} for each in chosen]
        self._images |= {_path(image): image for image in images.values()}
        return [each for each in records if each["image"] not in self._skipped][:SUGGESTED]

    def _refit(self, labels: Mapping[str, LabeledImage]) -> None:
        """Write the manifest, and fit with all its training images."""
        target = self.saved or version_folder(self.run, free_name(self.run))
        table = io.StringIO()
        rows = [(path, each.label, each.split, each.group) for path, each in labels.items()]
        csv.writer(table).writerows([("path", "label", "split", "group"), *rows])
        manifest = target.with_name(f"{target.name}-labels.csv")
        write_text(manifest, table.getvalue())
        try:
            refit_run(
                self.saved or self.run,
                None if self.saved else target,
                str(manifest),
                every_image=True,
                **self._options,
            )
        except BaseException:
            if self.saved is None:
                manifest.unlink()
            raise
        self.saved = target


def _path(image: LabeledImage) -> str:
    return str(Path(str(image.source)).resolve())


def _of_training(issues: Issues, task: Task) -> list[Finding]:
    """Return the findings of training images, named by their paths."""
    paths = {image.id: _path(image) for image in task.learn.images}
    return [
        msgspec.structs.replace(finding, image=paths[finding.image])
        for finding in issues.first(None)
        if finding.image in paths
    ]


def accuracy_record(results: Results) -> dict[str, Any]:
    """Return the accuracy on held-out images or, without any, on cross-validated training images."""
    accuracy, images = results.measured(OURS), results.task.held_out_images
    if not results.held_out:
        limits = results.thresholds
        accuracy, images = (None, 0) if limits is None else (limits.accuracy, limits.images)
    return {"accuracy": accuracy, "images": images, "held_out": results.held_out}
