"""What tests of shards compare, and a server that speaks S3 on this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptboost.encoders.registry import load_encoder
from promptboost.encoders.store import EmbeddingStore


def files_below(folder: Path) -> dict[str, bytes]:
    """All files, by their place."""
    files = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def stored(encoder: str) -> dict[bytes, bytes]:
    """All that the store of this test has of an encoder."""
    loaded = load_encoder(encoder)
    rows = EmbeddingStore().rows(loaded.fingerprint, dim=loaded.dim)
    return {key: row.tobytes() for key, row in rows}


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Another, empty store."""
    before = os.environ["PROMPTBOOST_CACHE"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conse").symlink_to(Path(before) / "conse", target_is_directory=True)
    os.environ["PROMPTBOOST_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ["PROMPTBOOST_CACHE"] = before
