"""Evaluation on labeled images that are read and embedded in shards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from promptboost.data import Dataset, LabeledImage
from promptboost.data.decode import BadImage
from promptboost.data.manifest import MANIFEST_ENDINGS
from promptboost.data.source import without_bad
from promptboost.distributed.engine import Placement, Say
from promptboost.distributed.shard_embeddings import EmbeddedShard, map_images, shard_storage
from promptboost.distributed.shards import ShardPlan
from promptboost.distributed.storage import is_url
from promptboost.encoders.base import UnitRows
from promptboost.errors import DataError
from promptboost.progress import Progress, no_progress
from promptboost.run.evaluate import Write, evaluate_images, open_run, with_classes
from promptboost.run.predict import LoadOptions


def evaluate_in_shards(
    run: Path,
    source: str,
    placement: Placement,
    *,
    min_probability: float | None = None,
    write: Write | None = None,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
    **options: Unpack[LoadOptions],
) -> dict[str, Any]:
    """Evaluate a run on labeled images that are read and embedded in shards, without the store.

    The results are those of :func:`~promptboost.run.evaluate.evaluate_run`. A share of the work returns a
    summary of its shards. `say` is called with status messages.
    """
    folder, classifier = open_run(run, min_probability, progress, **options)
    plans = [
        map_images(source, embedder, placement, labeled=True, progress=progress, say=say)
        for embedder in classifier.embedders
    ]
    if placement.share is not None:
        shards = sum(len(plan.units) for plan in plans)
        return {
            "share": str(placement.share),
            "shards": shards,
            "storage": shard_storage(placement),
        }
    data, position, rows = _read(source, plans)
    measured = data.of_split("test") if "test" in data.splits else data
    measured = with_classes(measured, classifier.class_names)
    matrices = [matrix[[position[image.id] for image in measured.images]] for matrix in rows]
    return evaluate_images(
        folder, classifier, measured, matrices, min_probability, write=write, progress=progress
    )


def _read(
    source: str, plans: Sequence[ShardPlan]
) -> tuple[Dataset, dict[str, int], list[UnitRows]]:
    """Return the readable images, the row of each, and the embeddings by each encoder."""
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
    images, unreadable, listing_bad = [], [], []
    for index, image in enumerate(listed):
        path = _path(source, image.name)
        if image.problem and not image.label:
            listing_bad.append(BadImage(image.name, image.problem))
            continue
        if not image.label:
            raise DataError(f"{image.name} has no label")
        labeled = LabeledImage(image.name, image.label, path or b"", image.split or None)
        if image.problem:
            unreadable.append(BadImage(labeled.name, image.problem))
        small = None if image.no_thumbnail else thumbnails[index].tobytes()
        images.append(labeled.with_known(digests[index].tobytes(), small))
    listing = Dataset.unchecked(images, listing_bad)
    data = without_bad(listing, unreadable, "skip")
    rows = [np.concatenate([shard.rows[:, 0] for shard in shards]) for shards in (first, *others)]
    return data, {image.name: i for i, image in enumerate(listed)}, rows


def _path(source: str, name: str) -> Path | None:
    """Return the path of a local image; None for one at a URL or inside a file."""
    if is_url(source):
        return None
    path = Path(source)
    if path.is_dir():
        return path / name
    return path.parent / name if path.suffix.lower() in MANIFEST_ENDINGS else None
