"""Evaluation in shards: many processes read, check and embed labeled images, one measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import BadImage
from promptboost.data.manifest import MANIFEST_ENDINGS
from promptboost.data.source import without_bad
from promptboost.distributed.embed_shards import image_plan, shard_storage
from promptboost.distributed.engine import Placement, Say
from promptboost.distributed.items import is_url
from promptboost.distributed.shard_embeddings import EmbeddedShard
from promptboost.distributed.shards import carry_out_plan
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.errors import DataError
from promptboost.progress import Progress, no_progress
from promptboost.run.evaluate import Write, evaluate_images, open_run, with_classes


@dataclass(frozen=True)
class EmbeddedImages:
    """Labeled images and their embeddings by each of several encoders.

    Attributes
    ----------
    data : Dataset
        Those that could be read; the others are in its ``bad``.
    """

    data: Dataset
    matrices: tuple[UnitRows, ...]
    position: dict[str, int]  # the row of an image, by its id

    @property
    def measured(self) -> Dataset:
        """The split ``test`` if there is one, else all."""
        return self.data.of_split("test") if "test" in self.data.splits else self.data

    def rows(self, data: Dataset) -> list[UnitRows]:
        """Return the embeddings of some of the images, by each encoder."""
        positions = [self.position[image.id] for image in data.images]
        return [matrix[positions] for matrix in self.matrices]


def evaluate_in_shards(
    run: Path,
    source: str,
    place: Placement,
    *,
    min_probability: float | None = None,
    write: Write | None = None,
    progress: Progress = no_progress,
    device: str | None = None,
    say: Say = lambda _: None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate a run on labeled images that are read and embedded in shards, without the store.

    Without shards, :func:`~promptboost.run.evaluate.evaluate_run` returns the same. A share of the work
    returns a record of what it has done. `say` is called with a line for people now and then; other
    options are those of :func:`~promptboost.run.predict.open_classifier`.
    """
    options |= {"progress": progress, "device": device}
    folder, classifier = open_run(run, min_probability, **options)
    embedded = embed_labeled(
        source, classifier.embedders, place, progress=progress, device=device, say=say
    )
    if isinstance(embedded, dict):
        return embedded
    data = with_classes(embedded.measured, classifier.class_names)
    rows = embedded.rows(data)
    return evaluate_images(
        folder, classifier, data, rows, min_probability, write=write, progress=progress
    )


def embed_labeled(
    source: str,
    embedders: Sequence[Embedder],
    place: Placement,
    *,
    progress: Progress,
    device: str | None,
    say: Say = lambda _: None,
) -> EmbeddedImages | dict[str, Any]:
    """Read, check and embed labeled images in shards; return a record of the work for a share of it.

    The embeddings, one for each image and encoder, are in memory.
    """
    out = shard_storage(place)
    plans = []
    for embedder in embedders:
        plan = image_plan(source, embedder.id, embedder, out, place, device=device, labelled=True)
        carry_out_plan(plan, place, progress, "embedding images", what="images", say=say)
        plans.append(plan)
    if (share := place.share) is not None:
        shards = sum(len(plan.units) for plan in plans)
        return {"share": f"{share.number}/{share.of}", "shards": shards, "storage": out}
    first, *others = ([EmbeddedShard.from_bytes(c) for c in plan.results()] for plan in plans)
    lists = [[image for shard in shards for image in shard.images] for shards in (first, *others)]
    if len({tuple(image.name for image in images) for images in lists}) > 1:
        raise DataError(f"the images of {source} changed while they were read; run it again")
    # An image that one of several encoders could not embed has no prediction.
    listed = [
        next((image for image in same if image.problem), same[0])
        for same in zip(*lists, strict=True)
    ]
    digests = np.concatenate([shard.digests for shard in first])
    thumbnails = np.concatenate([s.thumbnails for s in first if s.thumbnails is not None])
    images, bad_ones, listing_bad = [], [], []
    for index, image in enumerate(listed):
        where = _place(source, image.name)
        if image.problem and not image.label:
            listing_bad.append(BadImage(image.name, image.problem))
            continue
        if not image.label:
            raise DataError(f"{image.name} has no label, and cannot be measured")
        labeled = LabeledImage(image.name, image.label, where or b"", image.split or None)
        if image.problem:
            bad_ones.append(BadImage(labeled.name, image.problem))
        small = None if image.no_thumbnail else thumbnails[index].tobytes()
        images.append(labeled.with_known(digests[index].tobytes(), small))
    listing = Dataset.unchecked(images, listing_bad)
    if not listing.class_names:
        raise DataError("there are no images; give at least one for each class")
    data = without_bad(listing, bad_ones, "skip")
    matrices = tuple(
        np.concatenate([shard.rows[:, 0] for shard in shards]) for shards in (first, *others)
    )
    return EmbeddedImages(data, matrices, {image.name: i for i, image in enumerate(listed)})


def _place(source: str, name: str) -> Path | None:
    """Return the path of an image on this machine; None for one at a URL or inside a file."""
    if is_url(source):
        return None
    path = Path(source)
    if path.is_dir():
        return path / name
    return path.parent / name if path.suffix.lower() in MANIFEST_ENDINGS else None
