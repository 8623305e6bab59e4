"""Helpers for tests of shards, and a local S3 server."""

import ctypes
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

from promptboost.encoders.fake import FakeEncoder
from promptboost.encoders.registry import load_encoder
from promptboost.encoders.store import EmbeddingStore

#: As it is spelled to have workers load it.
FATAL = "tests.distributed.shard_tools:FatalEncoder"


class FatalEncoder(FakeEncoder):
    """An encoder that ends its process on images of one size."""

    kills = (33, 7)

    def __init__(self) -> None:
        super().__init__(32, 0)
        self.id = FATAL

    def _image(self, image):
        if image.size == self.kills:
            ctypes.string_at(0)
        return super()._image(image)


def poison(folder: Path) -> dict[str, str]:
    """Write unusable images into a folder; return their names and a part of the error."""
    sound = next(iter(sorted(folder.glob("*.png")))).read_bytes()
    (folder / "cut.png").write_bytes(sound[: len(sound) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "nonsense.png").write_bytes(b"poison")
    # A few hundred bytes that say they are 40 gigabytes.
    size = (200_000).to_bytes(4, "big")
    header = b"IHDR" + size + size + bytes([8, 2, 0, 0, 0])
    start, stop = sound[:12], sound[33:]
    checksum = zlib.crc32(header).to_bytes(4, "big")
    (folder / "bomb.png").write_bytes(start + header + checksum + stop)
    return {
        "cut.png": "cut off",
        "empty.png": "empty",
        "nonsense.png": "not an image",
        "bomb.png": "too large",
    }


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the content of all files by path."""
    files = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def stored(encoder: str) -> dict[bytes, bytes]:
    """Return the rows of an encoder in the store."""
    fingerprint = load_encoder(encoder).fingerprint.encode()
    path = next(EmbeddingStore().root.glob("*.sqlite"), None)
    if path is None:
        return {}
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT id FROM encoders WHERE fingerprint = ?"
        [number] = connection.execute(query, (fingerprint,)).fetchone() or [0]
        rows = connection.execute("SELECT key, data FROM rows ORDER BY key").fetchall()
    return {key[4:]: data for key, data in rows if key[:4] == number.to_bytes(4, "big")}


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Use an empty store."""
    before = os.environ["PROMPTBOOST_CACHE"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conse").symlink_to(Path(before) / "conse", target_is_directory=True)
    os.environ["PROMPTBOOST_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ["PROMPTBOOST_CACHE"] = before


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Start a local S3 server with one bucket, in memory."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        # Nobody is asked for credentials over a network that a test machine may not have.
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with patch.dict(os.environ, settings):
        try:
            boto3.client("s3").create_bucket(Bucket=bucket)
            yield f"s3://{bucket}"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.stop()
