"""Synthetic few-shot tasks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, unit_rows


@dataclass(frozen=True)
class SyntheticTask:
    """Unit embeddings of a synthetic few-shot task."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    views: NDArray[np.float32]
    templates: NDArray[np.float32]
    prompts: list[NDArray[np.float32]]


def clip_like(
    n_classes: int,
    shots: int,
    *,
    views: int = 4,
    prompts: int = 100,
    templates: int = 8,
    dim: int = 64,
    confusion: float = 2.0,
    seed: int = 0,
) -> SyntheticTask:
    """Return embeddings that resemble those of a contrastive model.

    Images and texts are around two distant points (the modality gap). Classes differ in a few shared
    attribute directions and come in families; names, prompts and images each have errors of their own.

    Parameters
    ----------
    n_classes, shots, views, prompts, templates, dim, seed : int
        Numbers of classes, images per class, crops per image, prompts per class, and so on.
    confusion : float
        Spread of the images of a class; at 2 templates are wrong on about a fifth of them.

    Examples
    --------
    >>> task = clip_like(n_classes=3, shots=2, views=4, prompts=10)
    >>> task.images.shape, task.views.shape, task.templates.shape
    ((6, 64), (6, 4, 64), (3, 8, 64))
    """
    rng = np.random.default_rng(seed)
    rank = min(96, dim // 2)
    directions = np.linalg.qr(rng.standard_normal((dim, rank)))[0].T.astype(np.float32)
    spread = (np.linspace(1.5, 0.4, rank) / np.sqrt(rank)).astype(np.float32)
    text_side, image_side = unit_rows(rng.standard_normal((2, dim)))

    def attributes(*shape: int) -> NDArray[np.float32]:
        return np.asarray(rng.standard_normal((*shape, rank), dtype=np.float32) * spread)

    def place(z: NDArray[np.float32], side: UnitRows, noise: float) -> UnitRows:
        flat = z.reshape(-1, rank)
        blur = unit_rows(rng.standard_normal((len(flat), dim), dtype=np.float32))
        rows = unit_rows(1.2 * side + flat @ directions + noise * blur)
        return rows.reshape(*z.shape[:-1], dim)

    family = np.arange(n_classes) % max(2, n_classes // 6)
    center = attributes(max(2, n_classes // 6))[family] + 0.75 * attributes(n_classes)
    name = center + 0.6 * attributes(n_classes)
    filled = name[:, None] + 0.4 * attributes(templates) + 0.15 * attributes(n_classes, templates)
    labels = np.repeat(np.arange(n_classes), shots)
    image = center[labels] + confusion * attributes(len(labels))
    return SyntheticTask(
        images=place(image, image_side, 0.5),
        labels=labels,
        views=place(
            image[:, None] + 0.4 * confusion * attributes(len(labels), views), image_side, 0.5
        ),
        templates=place(filled, text_side, 0.2),
        prompts=[place(0.8 * c + 0.7 * attributes(prompts), text_side, 0.3) for c in center],
    )
