"""Embed images, texts or both ahead of time, into the store."""

import os
from collections.abc import Iterator
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
from promptboost.run.preflight import check_store, pool_for

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
    place: Placement | None = None,
    class_names: tuple[str, ...] | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Embed all images of a source and some crops of each, and texts, into the store.

    `texts` is a file with one text per line, or one of sentences about classes. Of the latter, everything
    is embedded that a fit with these `settings` reads, for the classes of the source, or those of the file
    if there are neither source nor `class_names`.

    With a `place` for shards, each shard of images or texts becomes one file in the storage, under a name
    made of its list and of the encoder; finished ones are not done again. They are added to the store when
    all are there. `say` is called with a line for people now and then.
    """
    if source is None and texts is None:
        raise SettingError("there is nothing to embed: give images, or a file of texts by --texts")
    check_store()
    settings = settings or FitConfig()
    if place is not None and place.in_shards:
        embedder = Embedder.open(encoder, progress=progress, device=device)
        return _embed_in_shards(
            source, texts, settings, embedder, views, place, class_names, progress, say
        )
    lines = None if texts is None else read_lines(Path(texts))
    own_names = () if texts is None or lines is not None else own_names_of(texts)
    embedder = Embedder.open(encoder, progress=progress, device=device)
    data = None if source is None else load_data(source, progress=progress)
    rows = 0 if data is None else embedder.images(data, views=views)[..., 0].size
    text_count = 0
    if lines is not None:
        text_count = len(embedder.texts(lines).matrix)
    elif texts is not None:
        config = settings.merged({"prompts": texts})
        names = class_names or (own_names if data is None else data.class_names)
        text_count = _embed_pool(pool_for(config, source or "", names), embedder)
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
    texts: str | None,
    settings: FitConfig,
    embedder: Embedder,
    views: int,
    place: Placement,
    class_names: tuple[str, ...] | None,
    progress: Progress,
    say: Say,
) -> dict[str, Any]:
    plans: dict[str, ShardPlan] = {}
    names: tuple[str, ...] | None = None
    lists: Iterator[list[str]] | None = None
    if texts is not None:
        size = place.per_shard or SHARD_TEXTS
        lists, names = _text_lists(source, texts, settings, size, class_names)
    if source is not None:
        plans["images"] = map_images(
            source, embedder, place, views=views, progress=progress, say=say
        )
    out = shard_storage(place)
    if lists is not None:
        arguments = {"out": out, "encoder": embedder.id, "device": embedder.device}
        plans["texts"] = map_shards(
            lists,
            Job(f"{_WORKERS}:TextShardWorker", arguments, out, device=embedder.device),
            [embedder.fingerprint],
            place,
            of="texts",
            ending=".texts.safetensors",
            title="embedding texts",
            progress=progress,
            say=say,
        )
    seconds = sum(plan.outcome.seconds for plan in plans.values() if plan.outcome)
    record: dict[str, Any] = {
        "encoder": embedder.id,
        "storage": out,
        "shards": sum(len(plan.units) for plan in plans.values()),
        "new_shards": sum(plan.new for plan in plans.values()),
        "share": None,
        "seconds": round(seconds, 3),
    }
    if place.share is not None:
        return {**record, "share": str(place.share), "images": 0, "texts": 0}
    store = embedder.store or EmbeddingStore()
    images = text_count = StoreCount()
    if "images" in plans:
        images = add_images_to_store(store, embedder, plans["images"].results())
    if "texts" in plans:
        text_count = add_texts_to_store(store, embedder, plans["texts"].results())
    if names is not None:
        from promptboost.baselines.baselines import zero_shot_head

        zero_shot_head(names, embedder)  # one more text per class, which a fit compares with
    return {
        **record,
        "images": images.items,
        "rows": images.rows,
        "new_rows": images.new,
        "texts": text_count.items,
        "new_texts": text_count.new,
        "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in images.bad],
    }


def shard_storage(place: Placement) -> str:
    """Return where the results of shards are kept; by default next to the store."""
    out = place.storage or str(cache_folder() / "shards")
    return out if is_url(out) else os.path.abspath(out)


def map_images(
    source: str,
    embedder: Embedder,
    place: Placement,
    *,
    views: int = 0,
    labeled: bool = False,
    progress: Progress,
    say: Say,
) -> ShardPlan:
    """Embed the images of a source in shards; `labeled` ones with labels and thumbnails."""
    out, size = shard_storage(place), place.per_shard or SHARD_IMAGES
    arguments = {
        "out": out,
        "encoder": embedder.id,
        "device": embedder.device,
        "views": views,
        "labeled": labeled,
    }
    plan = map_shards(
        cut(list_items(source, labeled=labeled, table_rows=size), size),
        Job(f"{_WORKERS}:ImageShardWorker", arguments, out, device=embedder.device),
        [embedder.fingerprint, f"views {views}", f"labeled {labeled}"],
        place,
        of="images",
        ending=".images.safetensors",
        title="embedding images",
        progress=progress,
        say=say,
    )
    if not plan.units and place.share is None:
        raise DataError(f"there are no images in {source}")
    return plan


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
        names = tuple(sorted({item.label for item in list_items(source, labeled=True)} - {""}))
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
    """Return whether a file has one text per line, rather than sentences about classes."""
    if file.suffix.lower() != ".txt":
        return False
    if not file.exists() or file.stat().st_size < 1 << 20:
        return read_lines(file) is not None  # read fully, so that all faults are found
    with open(file, encoding="utf-8-sig") as lines:
        return "\t" not in next(lines, "")


def _lines(file: Path) -> Iterator[str]:
    """Return the texts of a file one after the other."""
    with open(file, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield clean(line.rstrip("\n"), where=f"line {number} of {file}")


def read_lines(file: Path) -> list[str] | None:
    """Read a file of one text per line; None for files of sentences about classes."""
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


def own_names_of(file: str) -> tuple[str, ...]:
    """Return the classes that a file of sentences names; it is read fully, so that faults are found."""
    if is_saved_pool(file):
        return load_pool(file).class_names
    names = dict.fromkeys(name for source in read_sources(file) for name in source.sentences)
    if not names:
        raise PoolError(f"{file} names no classes: give their images too, as in embed DATA --texts")
    return tuple(names)


def texts_of(pool: PromptPool) -> "PoolTexts":
    """Return the texts of a pool; unlike for a fit, it need not have templates."""
    from promptboost.training.pool_rows import PoolTexts

    names = pool.class_names
    filled = tuple(map(tuple, pool.template_texts()))
    return PoolTexts(names, pool.templates, filled, tuple(pool.texts(name) for name in names))


def _embed_pool(pool: PromptPool, embedder: Embedder) -> int:
    """Embed the texts of a pool class by class, as a fit does; return how many they are."""
    from promptboost.baselines.baselines import zero_shot_head
    from promptboost.training.pool_rows import encode_by

    texts = texts_of(pool)
    total = len(texts.class_names)
    encode = encode_by(embedder)

    def counted(wanted: list[str]) -> Any:
        nonlocal total
        total += len(wanted)
        return encode(wanted)

    for _ in texts.blocks(counted):
        pass
    zero_shot_head(
        texts.class_names, embedder
    )  # one more text per class, which a fit compares with
    return total


def embedded(record: dict[str, Any]) -> str:
    """Return in one line what was embedded, and how much of it was new."""
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
    """Return in one line what a part of a job has done, and what comes next."""
    done = (
        f"part {record['share']}: {count(record['shards'], 'shard')} done, in {record['storage']}"
    )
    return f"{done}; when all parts are, type the same with --merge in place of --shard"


def _shares(total: int, new: int) -> str:
    return f"{new:,} new, {total - new:,} in the store already"
