"""The words of a run: its pool, and the pool's rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.fitting import PoolTexts
from promptboost.pool import (
    PromptPool,
    build_pool,
    clip_templates,
    emoji_descriptions,
    fill,
    read_descriptions,
)
from promptboost.runs.embedding import Embedder, TextRows
from promptboost.runs.settings import FitSettings

__all__ = ["PLAIN_TEMPLATE", "Words", "pool_for"]

#: The one template of plain zero-shot classification.
PLAIN_TEMPLATE = "a photo of a {}."


def pool_for(settings: FitSettings, source: str, class_names: Sequence[str]) -> PromptPool:
    """Make the pool that settings ask for; the emoji come with sentences of their own.

    Examples
    --------
    >>> pool_for(FitSettings(), "my-pictures", ["owl", "bat"])
    <PromptPool: 2 classes, 160 prompts>
    """
    templates = clip_templates() if settings.templates == "clip" else None
    descriptions, origin = None, "descriptions"
    if settings.prompts is not None:
        descriptions = read_descriptions(settings.prompts)
        origin = f"descriptions:{Path(settings.prompts).name}"
    elif source == "emoji":
        descriptions, origin = emoji_descriptions(), "descriptions:emoji"
    return build_pool(
        class_names,
        templates=templates,
        descriptions=descriptions,
        concatenate=settings.concatenate,
        source=origin,
    )


@dataclass(frozen=True)
class Words:
    """A pool and the rows one encoder gives its texts.

    The three baselines that need no picture are here, each as one row a class of length one.
    """

    pool: PromptPool
    rows: TextRows

    @classmethod
    def embed(cls, pool: PromptPool, embedder: Embedder) -> "Words":
        """Embed every text of a pool."""
        texts = [fill(PLAIN_TEMPLATE, name) for name in pool.class_names]
        for name, filled in zip(pool.class_names, pool.template_texts(), strict=True):
            texts += [*filled, *pool.texts(name)]
        return cls(pool, embedder.texts(texts))

    @property
    def texts(self) -> PoolTexts:
        """The texts as boosting wants them."""
        return PoolTexts.of(self.pool)

    def zero_shot(self) -> NDArray[np.float32]:
        """Give the rows of the class names in the plain template."""
        return self.rows([fill(PLAIN_TEMPLATE, name) for name in self.pool.class_names])

    def template_mean(self) -> NDArray[np.float32]:
        """Give the mean of the filled templates of each class."""
        return _means([self.rows(texts) for texts in self.pool.template_texts()])

    def pool_mean(self) -> NDArray[np.float32]:
        """Give the mean of all prompts of each class."""
        return _means([self.rows(self.pool.texts(name)) for name in self.pool.class_names])


def _means(blocks: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    # Scaled to length one, as CLIP's own scripts do: else a class whose prompts differ more would
    # have a shorter mean, and lose for it.
    means = np.stack([block.mean(axis=0, dtype=np.float64) for block in blocks])
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True), dtype=np.float32)
