"""Filling the store ahead of time."""

from typing import Any

from promptboost.data import load_data
from promptboost.runs.checks import check_store
from promptboost.runs.embedding import Embedder

__all__ = ["embed_data"]


def embed_data(
    source: str,
    encoder: str,
    *,
    views: int = 0,
    progress: bool = True,
    device: str | None = None,
) -> dict[str, Any]:
    """Embed all pictures of a source, and some crops of each, into the store.

    Returns
    -------
    dict
        Number of pictures and of rows, the seconds it took, and the pictures that were left out.
    """
    check_store()
    embedder = Embedder.open(encoder, progress=progress, device=device)
    data = load_data(source, progress=progress)
    rows = embedder.pictures(data, views=views)
    return {
        "encoder": embedder.encoder.id,
        "pictures": len(data),
        "rows": rows.shape[0] * rows.shape[1],
        "seconds": round(embedder.seconds["pictures"], 3),
        "bad_pictures": [{"path": bad.path, "reason": bad.reason} for bad in data.bad],
    }
