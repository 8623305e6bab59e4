"""Embed images, texts or both ahead of time, into the store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.config import FitConfig
from promptboost.data import Dataset, load_data
from promptboost.distributed.engine import Placement, Say
from promptboost.distributed.images import SHARD_TEXTS, cut, list_items
from promptboost.distributed.shard_embeddings import (
    StoreCount,
    add_images_to_store,
    add_texts_to_store,
    map_images,
    map_texts,
    shard_storage,
)
from promptboost.distributed.storage import is_url
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import PoolError, SettingError, count
from promptboost.io import read_text
from promptboost.pool import PromptPool
from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.readers import read_sources
from promptboost.pool.text import clean
from promptboost.progress import Progress, no_progress
from promptboost.run.run_folder import check_store


def embed_data(
    source: str | None,
    encoder: str,
    *,
    texts: str | None = None,
    settings: FitConfig | None = None,
    views: int = 0,
    progress: Progress = no_progress,
    device: str | None = None,
    placement: Placement | None = None,
    class_names: tuple[str, ...] | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Embed all images of a source, `views` crops of each, and texts, into the store; return a summary.

    `texts` is a file with one text per line, or with sentences about classes: of the latter, everything is
    embedded that a fit with these `settings` reads, for the `class_names`, by default those of the
    source, else of the file. If the `placement` uses shards, each becomes one file in its storage, only
    missing ones are computed, and they are added to the store once all exist. `say` is called with
    status messages.
    """
    if source is None and texts is None:
        raise SettingError("there is nothing to embed: give images, or a file of texts by --texts")
    check_store()
    lines = None if texts is None else _read_lines(Path(texts))
    embedder = Embedder.open(encoder, progress=progress, device=device)
    in_shards = placement is not None and placement.in_shards
    data = None if source is None or in_shards else load_data(source, progress=progress)
    pool = None
    if texts is not None and lines is None:
        from promptboost.run.fit import pool_for  # loads numba, which images do without

        names = class_names or _class_names(source, data, texts)
        local = "" if source is None or is_url(source) else source
        pool = pool_for((settings or FitConfig()).merged({"prompts": texts}), local, names)
    if placement is not None and in_shards:
        return _embed_in_shards(source, lines, pool, embedder, views, placement, progress, say)
    rows = 0 if data is None else embedder.images(data, views=views)[..., 0].size
    text_count = 0
    if lines is not None:
        text_count = len(embedder.texts(lines).matrix)
    elif pool is not None:
        from promptboost.training.pool_rows import encode_by

        encode = encode_by(embedder)
        text_count = sum(np.shape(encode(texts))[0] for texts in _texts_by_class(pool))
        text_count += _embed_zero_shot(pool, embedder)
    return {
        "encoder": embedder.id,
        "images": 0 if data is None else len(data),
        "rows": rows,
        "new_rows": embedder.computed["images"],
        "texts": text_count,
        "new_texts": embedder.computed["texts"],
        "seconds": round(sum(embedder.seconds.values()), 3),
        "bad_images": [
            {"path": bad.path, "reason": bad.reason} for bad in (data.bad if data else ())
        ],
    }


def _embed_in_shards(
    source: str | None,
    lines: list[str] | None,
    pool: PromptPool | None,
    embedder: Embedder,
    views: int,
    placement: Placement,
    progress: Progress,
    say: Say,
) -> dict[str, Any]:
    size = placement.per_shard or SHARD_TEXTS
    image_plan = text_plan = None
    if source is not None:
        image_plan = map_images(
            source, embedder, placement, views=views, progress=progress, say=say
        )
    lists = None if lines is None else cut(lines, size)
    if pool is not None:  # cut within each class, as in a fit, which embeds these texts together
        lists = _texts_by_class(pool, size)
    if lists is not None:
        text_plan = map_texts(lists, embedder, placement, progress=progress, say=say)
    plans = [plan for plan in (image_plan, text_plan) if plan is not None]
    record: dict[str, Any] = {
        "encoder": embedder.id,
        "storage": shard_storage(placement),
        "shards": sum(len(plan.units) for plan in plans),
        "new_shards": sum(plan.new for plan in plans),
        "share": None,
        "seconds": round(sum(plan.seconds for plan in plans), 3),
    }
    if placement.share is not None:
        return {**record, "share": str(placement.share), "images": 0, "texts": 0}
    store = embedder.store or EmbeddingStore()
    images = text_count = StoreCount()
    if image_plan is not None:
        images = add_images_to_store(store, embedder, image_plan.results())
    if text_plan is not None:
        text_count = add_texts_to_store(store, embedder, text_plan.results())
    if pool is not None:
        _embed_zero_shot(pool, embedder)
    return {
        **record,
        "images": images.items,
        "rows": images.rows,
        "new_rows": images.new,
        "texts": text_count.items,
        "new_texts": text_count.new,
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in images.bad],
    }


def _read_lines(file: Path) -> list[str] | None:
    """Read a file of one text per line; return None for a file of sentences about classes."""
    if file.suffix.lower() != ".txt":
        return None
    content = read_text(file)
    if "\t" in content:  # a class and a sentence in each line
        return None
    lines = enumerate(content.splitlines(), start=1)
    texts = [clean(line, where=f"line {n} of {file}") for n, line in lines if line.strip()]
    if not texts:
        raise PoolError(f"{file} holds no texts: write one in each line")
    return texts


def _class_names(source: str | None, data: Dataset | None, file: str) -> tuple[str, ...]:
    """Return the class names of the images, or without images of a file of sentences."""
    if data is not None:
        return data.class_names
    if source is not None:
        labels = {image.label for image in list_items(source, labeled=True)}
        return tuple(sorted(labels - {""}))
    if is_saved_pool(file):
        return load_pool(file).class_names
    names = dict.fromkeys(name for source in read_sources(file) for name in source.sentences)
    if not names:
        raise PoolError(f"{file} names no classes: give their images too, as in embed DATA --texts")
    return tuple(names)


def _texts_by_class(pool: PromptPool, most: int | None = None) -> Iterator[list[str]]:
    """Yield the distinct texts of each class as a fit embeds them, at most `most` at a time."""
    for name, filled in zip(pool.class_names, pool.template_texts(), strict=True):
        texts = list(dict.fromkeys([*filled, *pool.texts(name)]))
        for start in range(0, len(texts), most or len(texts)):
            yield texts[start : start + (most or len(texts))]


def _embed_zero_shot(pool: PromptPool, embedder: Embedder) -> int:
    """Embed one more text per class, for the baseline of a fit; return their number."""
    from promptboost.baselines import zero_shot_head

    return len(zero_shot_head(pool.class_names, embedder, pool).class_names)


def embedded(record: dict[str, Any]) -> str:
    """Return one line with what was embedded, and how much of it was new."""
    if "shards" in record and record.get("share"):
        return part_done(record)
    parts = []
    if record["images"]:
        vectors = f"{count(record['images'], 'image')}, {count(record['rows'], 'vector')}"
        parts.append(f"{vectors} ({_shares(record['rows'], record['new_rows'])})")
    if record["texts"]:
        shares = _shares(record["texts"], record["new_texts"])
        parts.append(f"{count(record['texts'], 'text')} ({shares})")
    return ", ".join([*parts, f"{record['seconds']:.1f} s"])


def part_done(record: dict[str, Any]) -> str:
    """Return one line with what a share of a job has done, and the next step."""
    done = (
        f"part {record['share']}: {count(record['shards'], 'shard')} done, in {record['storage']}"
    )
    return f"{done}; when all parts are done, run the same command with --merge instead of --shard"


def _shares(total: int, new: int) -> str:
    return f"{new:,} new, {total - new:,} in the store already"
