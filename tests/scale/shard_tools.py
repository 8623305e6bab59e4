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


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """A server on this machine that speaks S3, with one bucket; it keeps all in memory."""
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
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield f"s3://{bucket}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        server.stop()
