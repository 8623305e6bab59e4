"""A task of real embeddings: emoji on conse:lite0, with every template put before every sentence.

Needs the extra ``offline``. The first run embeds about 90,000 texts; later ones read the store.
"""

import numpy as np

from benchmarks.task import Task
from promptboost.boosting.grid import to_grid, weights_to_grid
from promptboost.data import draw_shots, load_data
from promptboost.encoders import load_encoder
from promptboost.encoders.embedder import embed_images
from promptboost.encoders.store import EmbeddingStore, StoredEncoder
from promptboost.pool import build_pool, emoji_descriptions


def make_emoji_task(shots: int = 16, views: int = 4) -> Task:
    """Embed images and prompts, and put them on the grid."""
    store = EmbeddingStore()
    encoder = StoredEncoder(load_encoder("conse:lite0"), store)
    data = load_data("emoji").of_split("train")
    learn = data.subset(draw_shots(data.labels, shots, seed=1))
    rows = embed_images(learn, encoder, views=range(1, views + 1), store=store)
    n = len(learn) * views
    pool = build_pool(data.class_names, descriptions=emoji_descriptions(), concatenate="all")
    return Task(
        to_grid(rows).reshape(n, -1),
        np.repeat(learn.labels, views),
        weights_to_grid(np.ones(n), n),
        to_grid(np.stack([encoder.encode_texts(texts) for texts in pool.template_texts()])),
        [to_grid(encoder.encode_texts(pool.texts(name))) for name in data.class_names],
    )
