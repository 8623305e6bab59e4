"""Embeddings by shard: images and texts embedded by many processes, and put into the store of one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.config import FitConfig
from promptboost.distributed.embed import own_names_of, read_lines, texts_of
from promptboost.distributed.engine import Placement, Say
from promptboost.distributed.items import is_url, list_items
from promptboost.distributed.shard_embeddings import (
    StoreCount,
    add_images_to_store,
    add_texts_to_store,
)
from promptboost.distributed.shards import (
    SHARD_IMAGES,
    SHARD_TEXTS,
    ShardPlan,
    carry_out_plan,
    cut,
)
from promptboost.distributed.unit import Job
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import DataError
from promptboost.io import cache_folder
from promptboost.pool.sources import pool_for
from promptboost.pool.text import clean
from promptboost.progress import Progress

if TYPE_CHECKING:
    from promptboost.training.pool_rows import PoolTexts

_WORKERS = "promptboost.distributed.shard_embeddings"
_ENDING = ".safetensors"


def embed_in_shards(
    source: str | None,
    encoder: str,
    texts: str | None,
    *,
    settings: FitConfig,
    views: int,
    progress: Progress,
    device: str | None,
    place: Placement,
    class_names: tuple[str, ...] | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Embed images and texts in shards, and put them into the store when all are there.

    A shard is a list of images or texts; its result is one file in the storage, under a name made of the
    list and of the encoder. What is there is not done again. With a share, only files are written; to
    merge them, all must be there.
    """
    embedder = Embedder.open(encoder, progress=progress, device=device)
    out = shard_storage(place)
    plans: list[tuple[ShardPlan, str]] = []
    if source is not None:
        plan = image_plan(source, encoder, embedder, out, place, device=device, views=views)
        plans.append((plan, "images"))
    names: tuple[str, ...] | None = None
    if texts is not None:
        size = place.per_shard or SHARD_TEXTS
        lists, names = _text_lists(source, texts, settings, size, class_names)
        plans.append((text_plan(lists, encoder, embedder, out, place, device=device), "texts"))
    outcomes = [
        carry_out_plan(plan, place, progress, f"embedding {what}", what=what, say=say)
        for plan, what in plans
    ]
    record: dict[str, Any] = {
        "encoder": embedder.id,
        "storage": out,
        "shards": sum(len(plan.units) for plan, _ in plans),
        "new_shards": sum(outcome.units - outcome.done_before for outcome in outcomes),
        "share": None,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 3),
    }
    share = place.share
    if share is not None:
        return {**record, "share": f"{share.number}/{share.of}", "images": 0, "texts": 0}
    store = embedder.store or EmbeddingStore()
    counts = {"images": StoreCount(), "texts": StoreCount()}
    for plan, what in plans:
        add = add_images_to_store if what == "images" else add_texts_to_store
        counts[what] = add(store, embedder, plan.results())
    if names is not None:
        from promptboost.baselines.baselines import zero_shot_head

        zero_shot_head(names, embedder)  # one more text a class, which a fit compares with
    return {
        **record,
        "images": counts["images"].items,
        "rows": counts["images"].rows,
        "new_rows": counts["images"].new,
        "texts": counts["texts"].items,
        "new_texts": counts["texts"].new,
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in counts["images"].bad],
        "bad_texts": [{"text": bad.path, "reason": bad.reason} for bad in counts["texts"].bad],
    }


def shard_storage(place: Placement) -> str:
    """Return where the results of shards are kept: as was asked, or beside the store."""
    out = place.storage or str(cache_folder() / "shards")
    return out if is_url(out) else os.path.abspath(out)


def image_plan(
    source: str,
    encoder: str,
    embedder: Embedder,
    out: str,
    place: Placement,
    *,
    device: str | None,
    views: int = 0,
    labelled: bool = False,
) -> ShardPlan:
    """Return the shards of the images of a source; labels and thumbnails go with `labelled` ones."""
    size = place.per_shard or SHARD_IMAGES
    settings = {
        "out": out,
        "encoder": encoder,
        "device": device,
        "views": views,
        "thumbnails": labelled,
        "labelled": labelled,
    }
    job = Job(f"{_WORKERS}:ImageShardWorker", settings, out, device=device)
    plan = ShardPlan.of(
        job,
        cut(list_items(source, labelled=labelled, table_rows=size), size),
        [embedder.fingerprint, f"views {views}", f"labelled {labelled}"],
        of="images",
        ending=".images" + _ENDING,
        share=place.share,
        write=not place.merge,
    )
    if not plan.units and place.share is None:
        raise DataError(f"there are no images in {source}")
    return plan


def text_plan(
    lists: Iterator[list[str]],
    encoder: str,
    embedder: Embedder,
    out: str,
    place: Placement,
    *,
    device: str | None,
) -> ShardPlan:
    """Return the shards of texts."""
    settings = {"out": out, "encoder": encoder, "device": device}
    return ShardPlan.of(
        Job(f"{_WORKERS}:TextShardWorker", settings, out, device=device),
        lists,
        [embedder.fingerprint],
        of="texts",
        ending=".texts" + _ENDING,
        share=place.share,
        write=not place.merge,
    )


def _text_lists(
    source: str | None,
    texts: str,
    settings: FitConfig,
    size: int,
    names: tuple[str, ...] | None,
) -> tuple[Iterator[list[str]], tuple[str, ...] | None]:
    """Return shards of texts: lines, or what a fit reads of a pool, and the classes of that."""
    file = Path(texts)
    if _is_lines(file):
        return cut(_lines(file), size), None
    if names is None and source is None:
        names = own_names_of(texts)
    elif names is None and source is not None:
        names = tuple(sorted({item.label for item in list_items(source, labelled=True)} - {""}))
    assert names is not None
    pool = pool_for(
        settings.merged({"prompts": texts}),
        "" if source is None or is_url(source) else source,
        names,
    )
    return _pool_lists(texts_of(pool), size), names


def _pool_lists(texts: "PoolTexts", size: int) -> Iterator[list[str]]:
    """Cut the texts of each class where a fit cuts them, so that the same texts are embedded together."""
    for k in range(len(texts.class_names)):
        distinct = texts.distinct(k)
        for start in range(0, len(distinct), size):
            yield distinct[start : start + size]


def _is_lines(file: Path) -> bool:
    """Tell a file of one text a line from one of sentences about classes, by its first lines."""
    if file.suffix.lower() != ".txt":
        return False
    if not file.exists() or file.stat().st_size < 1 << 20:
        return read_lines(file) is not None  # read whole, so that all faults are found
    with open(file, encoding="utf-8-sig") as lines:
        return "\t" not in next(lines, "")


def _lines(file: Path) -> Iterator[str]:
    """Return the texts of a file one after the other; it is never held as a whole."""
    with open(file, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield clean(line.rstrip("\n"), where=f"line {number} of {file}")
