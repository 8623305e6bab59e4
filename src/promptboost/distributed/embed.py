"""Embeddings ahead of time: images, texts or both, into the store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptboost.config import FitConfig
from promptboost.data import load_data
from promptboost.distributed.engine import Placement, Say
from promptboost.encoders.embedder import Embedder
from promptboost.errors import PoolError, SettingError, count
from promptboost.io import read_text
from promptboost.pool import PromptPool, is_saved_pool, load_pool, read_sources
from promptboost.pool.sources import pool_for
from promptboost.pool.text import clean
from promptboost.progress import Progress, no_progress
from promptboost.run.preflight import check_store

if TYPE_CHECKING:
    from promptboost.training.pool_rows import PoolTexts


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

    `texts` is a file with one text a line, or one of sentences about classes: then everything is
    embedded that a fit with these `settings` reads of it, for the classes of the source, or those of the
    file where there is no source and no `class_names`.

    With a `place` for shards, they may be done elsewhere: see
    :func:`~promptboost.distributed.embed_shards.embed_in_shards`. `say` is called with
    a line for people now and then.
    """
    if source is None and texts is None:
        raise SettingError("there is nothing to embed: give images, or a file of texts by --texts")
    check_store()
    if place is not None and place.in_shards:
        from promptboost.distributed.embed_shards import embed_in_shards

        return embed_in_shards(
            source,
            encoder,
            texts,
            settings=settings or FitConfig(),
            views=views,
            progress=progress,
            device=device,
            place=place,
            class_names=class_names,
            say=say,
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
        config = (settings or FitConfig()).merged({"prompts": texts})
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


def read_lines(file: Path) -> list[str] | None:
    """Read a file of one text a line; None for files of sentences about classes."""
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
    """Return the classes that a file of sentences names; it is read whole, so that faults are found."""
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
    zero_shot_head(texts.class_names, embedder)  # one more text a class, which a fit compares with
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
