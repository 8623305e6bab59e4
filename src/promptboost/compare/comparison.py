"""Images, draws, pool and encoders of a comparison, shared by its methods."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.compare.cells import CompareRequest
from promptboost.data import Dataset
from promptboost.data.shots import Task, divide, load_classes, uneven_classes
from promptboost.data.source import DataSource
from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError
from promptboost.methods import FewShotSet
from promptboost.methods.base import FileImages, Images
from promptboost.pool import PromptPool
from promptboost.progress import stage
from promptboost.run.fit import pool_for
from promptboost.run.overlap import Inspection, among, inspect, near_images

if TYPE_CHECKING:
    from promptboost.encoders.store import EmbeddingStore


@dataclass(frozen=True)
class FewShotTask:
    """One few-shot task: training and test images."""

    learn: FewShotSet
    held_out: Images
    labels: NDArray[np.int64]


class Comparison:
    """Images, pool and encoders of a comparison, each read when first needed."""

    def __init__(self, request: CompareRequest, encoder: Encoder | None = None) -> None:
        self._request = request
        self._source = DataSource.parse(request.source)
        # Several comparisons may share an encoder.
        self.encoder = self._open(request.encoder) if encoder is None else encoder
        self.targets = [self._open(name) for name in request.transfers]
        self.encoders = [self.encoder, *self.targets]  # that methods are measured on

    @property
    def target_weights(self) -> dict[str, str]:
        """The fingerprints of the targets, by name."""
        return {target.id: target.fingerprint for target in self.targets}

    @cached_property
    def data(self) -> Dataset:
        """All images."""
        return load_classes(self._source, progress=self._request.progress)

    @cached_property
    def pool(self) -> PromptPool:
        """All prompts."""
        return pool_for(self._request.words, self._source, self.data.class_names)

    @property
    def template(self) -> str | None:
        """The template that comes with a benchmark."""
        benchmark = self._source.benchmark
        return None if benchmark is None else benchmark.template

    def draw(self, shots: int, seed: int) -> FewShotTask:
        """Return one few-shot task."""
        task = self.tasks[shots, seed]
        learn, held_out = self._positions(shots, seed)
        return FewShotTask(
            FewShotSet(
                self._learned.subset(learn),
                task.learn.labels,
                self.data.class_names,
                self.template,
                task.learn.groups,
            ),
            self._measured.subset(held_out),
            task.held_out.labels,
        )

    @cached_property
    def inspections(self) -> dict[tuple[int, int], Inspection]:
        """The duplicates among the images of each draw, by shots and seed."""
        learned, measured = self._learned.data.images, self._measured.data.images
        # All images of all draws are compared once.
        pairs = list(near_images((*learned, *measured), progress=self._request.progress))
        inspections = {}
        for draw, task in self.tasks.items():
            learn, held_out = self._positions(*draw)
            positions = np.concatenate([learn, len(learned) + held_out])
            near = among(pairs, positions, len(learned) + len(measured))
            inspections[draw] = inspect(task.learn, task.held_out, near)
        return inspections

    def few(self, count: int) -> FileImages:
        """Return some images, without cached embeddings, to measure time with."""
        task = next(iter(self.tasks.values()))
        return FileImages(task.held_out.subset(range(min(count, len(task.held_out)))))

    @cached_property
    def tasks(self) -> dict[tuple[int, int], Task]:
        """Training and test images of each draw, by shots and seed."""
        request = self._request
        tasks = {
            (shots, seed): divide(self._source, self.data, shots, seed)
            for shots in request.shots
            for seed in request.seeds
        }
        if request.uneven:
            tasks = {
                (shots, seed): replace(task, learn=uneven_classes(task.learn, shots, seed))
                for (shots, seed), task in tasks.items()
            }
        for (shots, _), task in tasks.items():
            if not len(task.held_out):
                raise DataError(
                    f"{request.source}: no test image is left at {shots} shots; use fewer shots, or "
                    "give images in train/ and test/"
                )
        return tasks

    @cached_property
    def _learned(self) -> FileImages:
        return self._together([t.learn for t in self.tasks.values()], self._request.words.crops(0))

    @cached_property
    def _measured(self) -> FileImages:
        return self._together([task.held_out for task in self.tasks.values()], 0)

    def _together(self, subsets: Sequence[Dataset], views: int) -> FileImages:
        wanted = {image.id for subset in subsets for image in subset.images}
        images = tuple(p for p in self.data.images if p.id in wanted)
        whole = Dataset(images, self.data.class_names)
        request = self._request
        return FileImages(
            whole, views, request.words.view_scale, self._store, progress=request.progress
        )

    def _positions(self, shots: int, seed: int) -> list[NDArray[np.intp]]:
        """Return the positions of training and test images among those that are embedded."""
        task = self.tasks[shots, seed]
        positions = []
        for subset, whole in (
            (task.learn, self._learned.data),
            (task.held_out, self._measured.data),
        ):
            position = {image.id: i for i, image in enumerate(whole.images)}
            positions.append(
                np.array([position[image.id] for image in subset.images], dtype=np.intp)
            )
        return positions

    @cached_property
    def _store(self) -> "EmbeddingStore | None":
        from promptboost.encoders.store import EmbeddingStore

        return EmbeddingStore() if self._request.cache else None

    def _open(self, name: str) -> Encoder:
        with stage(self._request.progress, f"loading {name}"):
            encoder = load_encoder(name, device=self._request.device)
        return Embedder(encoder, self._store)
