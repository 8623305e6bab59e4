"""Embed images, texts or both ahead of time, into the store."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.distributed.engine import Job, Placement, Say
from promptboost.distributed.images import list_items
from promptboost.distributed.shard_embeddings import (
    StoreCount,
    add_images_to_store,
    add_texts_to_store,
)
from promptboost.distributed.shards import SHARD_IMAGES, SHARD_TEXTS, ShardPlan, cut, map_shards
from promptboost.distributed.storage import is_url
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.store import EmbeddingStore
from promptboost.errors import DataError, PoolError, SettingError, count
from promptboost.io import cache_folder, read_text
from promptboost.pool import PromptPool
from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.readers import read_sources
from promptboost.pool.text import clean
from promptboost.progress import Progress, no_progress
from promptboost.run.run_folder import check_store

if TYPE_CHECKING:
    from promptboost.training.pool_rows import PoolTexts

_WORKERS = "promptboost.distributed.shard_embeddings"


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
    names = class_names or ()
    if texts is not None and lines is None and source is None and not names:
        names = _classes_in(texts)
    embedder = Embedder.open(encoder, progress=progress, device=device)

    def pool_of(names: tuple[str, ...]) -> PromptPool:
        from promptboost.run.fit import pool_for  # loads numba, which images do without

        data = "" if source is None or is_url(source) else source
        return pool_for((settings or FitConfig()).merged({"prompts": texts}), data, names)

    if placement is not None and placement.in_shards:
        pool = None
        if texts is not None and lines is None:
            if source is not None and not names:
                labels = {image.label for image in list_items(source, labeled=True)}
                names = tuple(sorted(labels - {""}))
            pool = pool_of(names)
        return _embed_in_shards(source, lines, pool, embedder, views, placement, progress, say)
    data = None if source is None else load_data(source, progress=progress)
    rows = 0 if data is None else embedder.images(data, views=views)[..., 0].size
    text_count = 0
    if lines is not None:
        text_count = len(embedder.texts(lines).matrix)
    elif texts is not None:
        if data is not None and not names:
            names = data.class_names
        text_count = _embed_pool(pool_of(names), embedder)
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
    lists = None if lines is None else cut(lines, size)
    if pool is not None:
        # Cut within each class, as in a fit, so that the same texts are embedded together.
        lists = (
            texts[start : start + size]
            for texts in map(_pool_texts(pool).distinct, range(len(pool.class_names)))
            for start in range(0, len(texts), size)
        )
    image_plan = text_plan = None
    if source is not None:
        image_plan = map_images(
            source, embedder, placement, views=views, progress=progress, say=say
        )
    out = shard_storage(placement)
    if lists is not None:
        arguments = {"encoder": embedder.id, "device": embedder.device}
        text_plan = map_shards(
            lists,
            Job(f"{_WORKERS}:TextShardWorker", arguments, out, device=embedder.device),
            [embedder.fingerprint],
            placement,
            of="texts",
            ending=".texts.safetensors",
            title="embedding texts",
            progress=progress,
            say=say,
        )
    plans = [plan for plan in (image_plan, text_plan) if plan is not None]
    record: dict[str, Any] = {
        "encoder": embedder.id,
        "storage": out,
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
        from promptboost.baselines import zero_shot_head

        # One more text per class, for the baseline of a fit.
        zero_shot_head(pool.class_names, embedder, pool)
    return {
        **record,
        "images": images.items,
        "rows": images.rows,
        "new_rows": images.new,
        "texts": text_count.items,
        "new_texts": text_count.new,
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in images.bad],
    }


def shard_storage(placement: Placement) -> str:
    """Return the folder or URL of shard results; by default next to the store."""
    out = placement.storage or str(cache_folder() / "shards")
    return out if is_url(out) else os.path.abspath(out)


def map_images(
    source: str,
    embedder: Embedder,
    placement: Placement,
    *,
    views: int = 0,
    labeled: bool = False,
    progress: Progress,
    say: Say,
) -> ShardPlan:
    """Embed the images of a source in shards; `labeled` ones with labels and thumbnails."""
    size = placement.per_shard or SHARD_IMAGES
    arguments = {
        "encoder": embedder.id,
        "device": embedder.device,
        "views": views,
        "labeled": labeled,
    }
    plan = map_shards(
        cut(list_items(source, labeled=labeled, table_rows=size), size),
        Job(
            f"{_WORKERS}:ImageShardWorker",
            arguments,
            shard_storage(placement),
            device=embedder.device,
        ),
        [embedder.fingerprint, f"views {views}", f"labeled {labeled}"],
        placement,
        of="images",
        ending=".images.safetensors",
        title="embedding images",
        progress=progress,
        say=say,
    )
    if not plan.units and placement.share is None:
        raise DataError(f"there are no images in {source}")
    return plan


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


def _classes_in(file: str) -> tuple[str, ...]:
    """Return the class names in a file of sentences."""
    if is_saved_pool(file):
        return load_pool(file).class_names
    names = dict.fromkeys(name for source in read_sources(file) for name in source.sentences)
    if not names:
        raise PoolError(f"{file} names no classes: give their images too, as in embed DATA --texts")
    return tuple(names)


def _pool_texts(pool: PromptPool) -> "PoolTexts":
    """Return the texts of a pool; unlike for a fit, it may have no templates."""
    from promptboost.training.pool_rows import PoolTexts

    names = pool.class_names
    filled = tuple(map(tuple, pool.template_texts()))
    return PoolTexts(names, pool.templates, filled, tuple(pool.texts(name) for name in names))


def _embed_pool(pool: PromptPool, embedder: Embedder) -> int:
    """Embed the texts of a pool class by class, as a fit does; return their number."""
    from promptboost.baselines import zero_shot_head
    from promptboost.training.pool_rows import encode_by

    texts = _pool_texts(pool)
    for _ in texts.blocks(encode_by(embedder)):
        pass
    # One more text per class, for the baseline of a fit.
    zero_shot_head(texts.class_names, embedder, pool)
    number = len(texts.class_names)
    return number + sum(len(texts.distinct(k)) for k in range(number))


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
