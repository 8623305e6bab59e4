"""A task of real embeddings: emoji on conse:lite0, with every template put before every sentence.

Needs the extra ``offline``. The first run embeds about 90,000 texts; later ones read the store.
"""

import numpy as np

from benchmarks.task import Task
from promptboost.boosting.grid import to_grid, weights_to_grid
from promptboost.data import load_data
from promptboost.data.shots import draw_shots
from promptboost.encoders.embedder import Embedder
from promptboost.pool import build_pool
from promptboost.pool.readers import emoji_descriptions


def make_emoji_task(shots: int = 16, views: int = 4) -> Task:
    """Embed images and prompts, and put them on the grid."""
    embedder = Embedder.open("conse:lite0")
    data = load_data("emoji").of_split("train")
    learn = data.subset(draw_shots(data.labels, shots, seed=1))
    rows = embedder.images(learn, views=views)[:, 1:]
    n = len(learn) * views
    pool = build_pool(data.class_names, descriptions=emoji_descriptions(), concatenate="all")
    return Task(
        to_grid(rows).reshape(n, -1),
        np.repeat(learn.labels, views),
        weights_to_grid(np.ones(n), n),
        to_grid(np.stack([embedder.encode_texts(texts) for texts in pool.template_texts()])),
        [to_grid(embedder.encode_texts(pool.texts(name))) for name in data.class_names],
    )
