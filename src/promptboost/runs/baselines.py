"""What a fit is compared with, on the same embeddings and the same images."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting import GridPool, Shots
from promptboost.boosting.grid import GridRows, from_grid
from promptboost.config import FitConfig
from promptboost.data.shots import Task, image_ids
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.errors import SettingError
from promptboost.evaluation.measures import accuracy, class_accuracy
from promptboost.methods.logistic import fit_probe
from promptboost.model import PromptEnsemble
from promptboost.model.classifier import AnyHead, embed_ensemble
from promptboost.model.provenance import Composed
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
from promptboost.training import PoolTexts, boost_settings, fit_ensemble
from promptboost.training.pool_rows import PoolRows, encoding

__all__ = [
    "Words",
    "chosen_sources",
    "pool_for",
    "zero_shot_rows",
    "Learned",
    "OnEnsemble",
    "Rows",
    "embed_task",
    "learn",
    "Guesses",
    "compare",
    "staged",
    "text_methods",
]


def pool_for(settings: FitConfig, source: str, class_names: Sequence[str]) -> PromptPool:
    """Make the pool that settings ask for; the emoji come with sentences of their own.

    The file of sentences may be of any format that :func:`promptboost.pool.read_sources` knows. A
    saved pool is taken as it is, templates and concatenations included.

    Examples
    --------
    >>> pool_for(FitConfig(), "my-images", ["owl", "bat"])
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


def _check_left_open(settings: FitConfig) -> None:
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
        """Return the rows of the class names in the plain template."""
        return self.zero_shot_means

    def template_mean(self) -> NDArray[np.float32]:
        """Return the mean of the filled templates of each class."""
        return self.template_means

    def pool_mean(self) -> NDArray[np.float32]:
        """Return the mean of all prompts of each class."""
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
    >>> from promptboost.model import Round
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


OnEnsemble = Callable[[PromptEnsemble], None]


@dataclass(frozen=True)
class Rows:
    """The embeddings a fit works on.

    Attributes
    ----------
    learn : float32 array of shape (n, 1 + V, D)
        Each image to learn from and its crops.
    held_out : float32 array of shape (m, D)
        The images to measure on.
    words : Words
        The pool, and what its texts alone make of the classes.
    pool : PoolRows
        The rows of the pool; those of a big one are on disk until :func:`learn` is done.
    """

    learn: UnitRows
    held_out: UnitRows
    words: Words
    pool: PoolRows


@dataclass(frozen=True)
class Learned:
    """A finished fit in memory.

    Attributes
    ----------
    ensemble : PromptEnsemble
        What was learnt, as text.
    head : Head
        That text embedded again: what is measured is what is shipped.
    stages : array of shape (rounds, K, D)
        The class rows of each round by itself.
    boost_seconds : float
        Time spent boosting.
    """

    ensemble: PromptEnsemble
    head: AnyHead
    stages: NDArray[np.float32]
    boost_seconds: float


def embed_task(
    task: Task,
    pool: PromptPool,
    settings: FitConfig,
    embedder: Embedder,
    folder: Path | None = None,
) -> Rows:
    """Embed the images and texts of a fit.

    Parameters
    ----------
    task, pool, settings, embedder
        The images, the texts, what is asked, and what embeds them.
    folder : Path, optional
        Where the rows of a big pool may be kept meanwhile, such as a folder of the run; see
        :meth:`PoolRows.embed`.
    """
    learn = embedder.images(task.learn, views=settings.views, view_scale=settings.view_scale)
    held_out = embedder.originals(task.held_out)
    rows = PoolRows.embed(PoolTexts.of(pool), embedder, folder)
    return Rows(learn, held_out, Words.of_rows(pool, rows.grid, embedder), rows)


def learn(
    task: Task,
    rows: Rows,
    settings: FitConfig,
    embedder: Embedder,
    *,
    resume: PromptEnsemble | None = None,
    on_round: OnEnsemble | None = None,
) -> Learned:
    """Boost on the rows of a task.

    What the pool has on disk is deleted at the end, and kept if the work is interrupted.

    Parameters
    ----------
    task, rows, settings, embedder
        The images, their rows, what is asked, and what made the rows.
    resume : PromptEnsemble, optional
        The rounds of an earlier, interrupted call, as given to `on_round`.
    on_round : callable, optional
        Called with the ensemble so far after each round.
    """
    start = time.perf_counter()
    views = rows.learn[:, 1:]
    shots = Shots.from_rows(rows.learn[:, 0], task.learn.labels, views if views.size else None)
    encoder = embedder.encoder
    ensemble = fit_ensemble(
        shots,
        rows.pool.grid,
        rows.pool.texts,
        boost_settings(settings, settings.views),
        image_ids=image_ids(task.learn),
        encoder_id=encoder.id,
        encoder_fingerprint=encoder.fingerprint,
        encoder_scale=encoder.logit_scale,
        notes={"view_scale": settings.view_scale, "shots": settings.shots},
        resume=resume,
        on_round=None if on_round is None else (lambda so_far, _: on_round(so_far)),
    )
    seconds = time.perf_counter() - start
    rows.pool.release()
    stages = [head.weights for head in ensemble.weak_heads(embedder.texts(ensemble.texts()))]
    return Learned(ensemble, embed_ensemble(ensemble, embedder), np.stack(stages), seconds)


@dataclass(frozen=True)
class Guesses:
    """What one method takes the images for.

    Attributes
    ----------
    name, label : str
        Short name for programs, words for people.
    held_out, learn : array of int
        Class indices for the held-out images and for those learnt from.
    """

    name: str
    label: str
    held_out: NDArray[np.intp]
    learn: NDArray[np.intp]

    def figures(self, task: Task) -> dict[str, Any]:
        """Return the method's line of the comparison."""
        labels = task.held_out.labels
        return {
            "name": self.name,
            "label": self.label,
            "accuracy": accuracy(self.held_out, labels),
            "class_accuracy": class_accuracy(self.held_out, labels),
            "learn_accuracy": accuracy(self.learn, task.learn.labels),
        }


def text_methods(words: Words) -> dict[str, NDArray[np.float32]]:
    """Return the class rows of the three methods that learn from no image."""
    return {
        "zero_shot": words.zero_shot(),
        "template_mean": words.template_mean(),
        "pool_mean": words.pool_mean(),
    }


def compare(task: Task, rows: Rows, learned: Learned, *, seed: int) -> list[Guesses]:
    """Let every method look at every image."""
    originals = rows.learn[:, 0]
    pool = rows.words.pool
    labels = {
        "zero_shot": f"zero-shot, “{PLAIN_TEMPLATE}”",
        "template_mean": f"mean of {len(pool.templates)} templates",
        "pool_mean": f"mean of all {sum(map(len, pool.prompts_by_class)):,} prompts",
    }
    found = [
        Guesses(name, labels[name], _best(rows.held_out, weights), _best(originals, weights))
        for name, weights in text_methods(rows.words).items()
    ]
    weights, intercepts, _ = fit_probe(rows.learn, task.learn.labels, seed=seed)
    found.append(
        Guesses(
            "probe",
            "logistic regression on the images",
            _best(rows.held_out, weights, intercepts),
            _best(originals, weights, intercepts),
        )
    )
    head = learned.head
    label = Composed.of(learned.ensemble).label
    found.append(
        Guesses("boosted", label, head.predict_index(rows.held_out), head.predict_index(originals))
    )
    return found


def staged(task: Task, rows: Rows, learned: Learned) -> list[dict[str, Any]]:
    """Return the accuracy after each round."""
    originals = rows.learn[:, 0]
    held_out = np.zeros((len(rows.held_out), len(task.class_names)), dtype=np.float32)
    learn = np.zeros((len(originals), len(task.class_names)), dtype=np.float32)
    lines = []
    for number, (weights, item) in enumerate(
        zip(learned.stages, learned.ensemble.rounds, strict=True), start=1
    ):
        held_out += rows.held_out @ weights.T
        learn += originals @ weights.T
        lines.append(
            {
                "round": number,
                "accuracy": accuracy(held_out.argmax(axis=1), task.held_out.labels),
                "learn_accuracy": accuracy(learn.argmax(axis=1), task.learn.labels),
                "weak_error": item.error,
                "template_error": item.template_error,
            }
        )
    return lines


def _best(
    rows: NDArray[np.float32],
    weights: NDArray[np.floating],
    intercepts: NDArray[np.floating] | None = None,
) -> NDArray[np.intp]:
    scores = rows @ weights.T
    return np.asarray((scores if intercepts is None else scores + intercepts).argmax(axis=1))
