"""The words of a run: its pool, and what an encoder makes of it without a picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.ensemble import PromptEnsemble
from promptboost.errors import SettingError
from promptboost.fitting import PoolTexts
from promptboost.pool import (
    PLAIN_TEMPLATE,
    PromptPool,
    build_pool,
    clip_templates,
    emoji_descriptions,
    fill,
    is_saved_pool,
    read_pool,
)
from promptboost.runs.embedding import Embedder
from promptboost.runs.pool_rows import encoding
from promptboost.runs.settings import FitSettings

__all__ = ["Words", "chosen_sources", "pool_for", "zero_shot_rows"]


def pool_for(settings: FitSettings, source: str, class_names: Sequence[str]) -> PromptPool:
    """Make the pool that settings ask for; the emoji come with sentences of their own.

    The file of sentences may be of any format that :func:`promptboost.pool.read_sources` knows. A
    saved pool is taken as it is, templates and concatenations included.

    Examples
    --------
    >>> pool_for(FitSettings(), "my-pictures", ["owl", "bat"])
    <PromptPool: 2 classes, 160 prompts>
    """
    if settings.prompts is not None and is_saved_pool(settings.prompts):
        _check_left_open(settings)
        return read_pool(settings.prompts, class_names)
    templates = clip_templates() if settings.templates == "clip" else None
    if settings.prompts is not None:
        return read_pool(
            settings.prompts, class_names, templates=templates, concatenate=settings.concatenate
        )
    return build_pool(
        class_names,
        templates=templates,
        descriptions=emoji_descriptions() if source == "emoji" else None,
        concatenate=settings.concatenate,
        source="descriptions:emoji",
    )


def _check_left_open(settings: FitSettings) -> None:
    """Refuse settings that a saved pool has settled already."""
    for name, usual in (("templates", "own"), ("concatenate", "none")):
        if (asked := getattr(settings, name)) != usual:
            raise SettingError(
                f"{name} is {asked!r}, but {settings.prompts} is a saved pool and has been made with "
                f"its own; leave {name} out, or make the pool again with: promptboost pool build … "
                f"--{name} {asked} -o {Path(settings.prompts or '').name}"
            )


@dataclass(frozen=True)
class Words:
    """A pool, and the three classifiers an encoder makes of its texts alone.

    Each is one row of length one for each class, so that a pool of any size leaves little behind.
    Means are those of the rows that boosting chooses from, on their grid.
    """

    pool: PromptPool
    zero_shot_means: NDArray[np.float32]
    template_means: NDArray[np.float32]
    pool_means: NDArray[np.float32]

    @classmethod
    def embed(cls, pool: PromptPool, embedder: Embedder) -> "Words":
        """Embed every text of a pool, holding the rows of one class at a time."""
        texts = PoolTexts.of(pool)
        with encoding(texts, embedder) as encode:
            pairs = [(_mean(filled), _mean(own)) for filled, own in texts.blocks(encode)]
        return cls(
            pool,
            zero_shot_rows(pool.class_names, embedder),
            _unit(filled for filled, _ in pairs),
            _unit(own for _, own in pairs),
        )

    @classmethod
    def of_rows(cls, pool: PromptPool, grid: GridPool, embedder: Embedder) -> "Words":
        """Do the same where the rows are there already."""
        return cls(
            pool,
            zero_shot_rows(pool.class_names, embedder),
            _unit(map(_mean, grid.templates)),
            _unit(map(_mean, grid.prompts)),
        )

    def zero_shot(self) -> NDArray[np.float32]:
        """Give the rows of the class names in the plain template."""
        return self.zero_shot_means

    def template_mean(self) -> NDArray[np.float32]:
        """Give the mean of the filled templates of each class."""
        return self.template_means

    def pool_mean(self) -> NDArray[np.float32]:
        """Give the mean of all prompts of each class."""
        return self.pool_means


def zero_shot_rows(class_names: Sequence[str], embedder: Embedder) -> NDArray[np.float32]:
    """Embed the class names in the plain template.

    Examples
    --------
    >>> embedder = Embedder.open("fake:16-0", cache=False, progress=False)
    >>> zero_shot_rows(["owl", "bat"], embedder).shape
    (2, 16)
    """
    texts = [fill(PLAIN_TEMPLATE, name) for name in class_names]
    return embedder.texts(texts)(texts)


def chosen_sources(pool: PromptPool, ensemble: PromptEnsemble) -> dict[str, dict[str, str]]:
    """Say of each chosen prompt of each class where it comes from; a concatenation, its sentence.

    Examples
    --------
    >>> from promptboost.ensemble import Round
    >>> files = {"cupl": {"owl": ["eyes"], "bat": ["wings"]}}
    >>> pool = build_pool(["owl", "bat"], templates=["a {}."], descriptions=files)
    >>> banks = {"owl": {"eyes": 2, "an owl.": 1}, "bat": {"a bat.": 1}}
    >>> chosen_sources(pool, PromptEnsemble(("owl", "bat"), (Round("a {}.", banks, 0.1, 0.1),)))
    {'owl': {'eyes': 'cupl', 'an owl.': 'template'}, 'bat': {'a bat.': 'template'}}
    """
    found: dict[str, dict[str, str]] = {}
    for name in ensemble.class_names:
        wanted = ensemble.prompts(name)
        # The template that all banks begin with need not be among the prompts of a pool.
        own = dict.fromkeys(wanted, "template")
        for i, text in enumerate(pool.texts(name)):
            if text in wanted:
                prompt = pool.prompts(name)[i]
                own[text] = f"concat:{prompt.origin}" if prompt.origin else prompt.source
        found[name] = own
    return found


# Rows that are floats at a time: a class of a big pool has tens of thousands.
_AT_ONCE = 4096


def _mean(rows: GridRows) -> NDArray[np.float64]:
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _AT_ONCE):
        total += from_grid(rows[start : start + _AT_ONCE]).sum(axis=0, dtype=np.float64)
    return np.asarray(total / len(rows))


def _unit(means: Iterable[NDArray[np.float64]]) -> NDArray[np.float32]:
    # Scaled to length one, as CLIP's own scripts do: else a class whose prompts differ more would
    # have a shorter mean, and lose for it.
    rows = np.stack(list(means))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)
