"""A fit on examples: the prompts for the classes at hand, embedded, or prototypes instead."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np

from promptboost.boosting.gradient.scale import FoldTexts
from promptboost.boosting.grid import to_grid
from promptboost.boosting.quota import Quota
from promptboost.boosting.residual import Residual
from promptboost.config import FitConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, embed_texts
from promptboost.errors import LabelError, SettingError, a_type, few
from promptboost.model import LearntOn, LinearHead, PromptEnsemble
from promptboost.model.vectors import EmbeddedRounds
from promptboost.pool import PromptPool, build_pool, clip_templates, read_pool
from promptboost.progress import ProgressBars, is_interactive, stage
from promptboost.training.examples import Examples, Rows, RowSpace
from promptboost.training.learner import (
    boost_settings,
    fit_ensemble,
    head_with_residual,
    rows_of_fit,
)
from promptboost.training.pool_rows import PoolRows, PoolTexts

# What embeds texts, and images where it is an embedder.
Source = Embedder | TextSource
# What a pool can be made of: a pool, a file, or sentences by class.
PoolLike = PromptPool | str | Path | Mapping[str, Sequence[str]]


def names_of_classes(
    labels: Sequence[Any],
    class_names: Sequence[str] | Mapping[Any, str] | None,
    *,
    in_prompts: bool,
) -> tuple[str, ...]:
    """Return the name of each label; `in_prompts` they are read as words, so that a number is none."""
    if class_names is None:
        numbers = [label for label in labels if not isinstance(label, str)]
        if in_prompts and numbers:
            raise LabelError(
                f"y holds labels that are no names, such as {numbers[0]!r}, and prompts need names: set "
                f"class_names={{{numbers[0]!r}: 'name', …}}, or a list of the names of 0, 1, and so on"
            )
        return tuple(map(str, labels))
    if isinstance(class_names, str):
        raise SettingError(f"class_names is {class_names!r}: give a list of names, or a mapping")
    if isinstance(class_names, Mapping):
        missing = [label for label in labels if label not in class_names]
        names: list[Any] = [] if missing else [class_names[label] for label in labels]
    else:
        counted = all(isinstance(label, Integral | np.bool_) for label in labels)
        if not counted:
            raise LabelError(
                "class_names is a sequence, which names the labels 0, 1, and so on, but y holds "
                f"{labels[0]!r}: give a mapping from label to name"
            )
        missing = [label for label in labels if not 0 <= int(label) < len(class_names)]
        names = [] if missing else [class_names[int(label)] for label in labels]
    if missing:
        raise LabelError(f"class_names has no name for the label {missing[0]!r}: add one")
    strange = [name for name in names if not isinstance(name, str)]
    if strange or len(set(names)) < len(names):
        twice = [name for name in names if names.count(name) > 1]
        problem = "is no text" if strange else "stands for two labels"
        raise LabelError(
            f"class_names: {(strange or twice)[0]!r} {problem}; give each its own name"
        )
    return tuple(names)


def make_pool(
    class_names: Sequence[str],
    pool: PoolLike | None = None,
    templates: Sequence[str] | None = None,
    concatenate: Literal["none", "one", "all"] = "none",
) -> PromptPool:
    """Return the pool of some classes, from a pool, a file, or sentences by class to join templates."""
    if isinstance(templates, str):
        if templates not in ("own", "clip"):
            raise SettingError(f"templates is {templates!r}: give 'own', 'clip', or a list")
        templates = clip_templates() if templates == "clip" else None
    if isinstance(pool, PromptPool):
        if templates is not None or concatenate != "none":
            name = "templates=None" if templates is not None else "concatenate='none'"
            raise SettingError(f"the pool has templates of its own: set {name}")
        return pool
    if isinstance(pool, str | Path):
        return read_pool(pool, class_names, templates=templates, concatenate=concatenate)
    if pool is not None and not isinstance(pool, Mapping):
        raise SettingError(
            f"pool is {a_type(pool)}: give a PromptPool, the path of a file, or a mapping "
            "from class name to sentences"
        )
    return build_pool(class_names, templates=templates, descriptions=pool, concatenate=concatenate)


def fit_examples(
    examples: Examples,
    class_names: Sequence[str],
    config: FitConfig,
    source: Source | None,
    pool: PoolLike | None,
    templates: Sequence[str] | None,
    further: Sequence[Embedder] = (),
    *,
    average: bool = False,
) -> tuple[PromptEnsemble, Mapping[str, float], Source, RowSpace, list[Residual | None]]:
    """Boost on examples, with prototypes where there is nothing to embed sentences with.

    Returned are the ensemble, the weights of the examples at the end, what embeds the prompts, the
    space in which they meet the examples, and the residual of sentences, where one is asked for. Where
    there are `further` embedders, the examples have the rows of all, side by side; to `average`, each has
    a residual, else the first.
    """
    examples, parts = examples.weighted(class_names), None
    words: Source
    if source is None:  # images keep their names and their order, as on the command line
        examples, parts = examples.merged()
        if pool is not None or templates is not None:
            raise SettingError(
                "pool and templates are sentences, which need an encoder: set encoder"
            )
        space = RowSpace.around(examples.rows, examples.relative_weights())
        rows, words = prototypes(class_names, examples, space)
    else:
        space, words = RowSpace(), source
        rows = _embedded_pool(class_names, source, pool, templates, config.concatenate, further)
    encoder = source if isinstance(source, Encoder) else None
    seen = 0 if examples.views is None else examples.views.shape[1]
    shots = examples.shots(space)
    settings = boost_settings(config if seen else replace(config, views_per_round=0), seen)
    folds: list[FoldTexts] = []
    answering: list[Source] = [words, *(further if average else ())]
    residuals: list[Residual | None] = [None] * len(answering)
    taught = (
        answering if config.residual and source is not None else []
    )  # prototypes are images already
    to_go = rows_of_fit(shots, settings, 1 + len(further), residuals=len(taught))
    bars = ProgressBars(shown=is_interactive())
    with bars as progress, stage(progress, "composing", to_go) as advance:
        quota = Quota(to_go, advance)
        ensemble = fit_ensemble(
            shots,
            rows.grid,
            rows.texts,
            settings,
            image_ids=examples.ids,
            weights=examples.weights,
            encoder_id=encoder.id if encoder else None,
            encoder_fingerprint=encoder.fingerprint if encoder else None,
            encoder_scale=encoder.logit_scale if encoder else None,
            further_encoders=[LearntOn.of(one) for one in further],
            on_folds=folds.append,
            on_rows=quota.use,
        )
        for number, one in enumerate(taught):
            head = EmbeddedRounds.of(ensemble, one).head
            if isinstance(head, LinearHead):
                _, residuals[number] = head_with_residual(
                    head,
                    ensemble,
                    shots,
                    rows.grid,
                    settings,
                    examples.weights,
                    number,
                    folds[0] if folds else None,
                    quota.use,
                )
        quota.end()
    weights = ensemble.sample_weights
    if parts is not None:
        weights = {name: share * weights[merged] for name, (merged, share) in parts.items()}
    return ensemble, weights, words, space, residuals


def _embedded_pool(
    class_names: Sequence[str],
    source: Source,
    pool: PoolLike | None,
    templates: Sequence[str] | None,
    concatenate: Literal["none", "one", "all"],
    further: Sequence[Embedder],
) -> PoolRows:
    joined = make_pool(class_names, pool, templates, concatenate)
    if pool and not isinstance(pool, PromptPool) and joined.missing:
        # A slip of spelling looks the same.
        warnings.warn(
            f"pool has no sentences for {few([*map(repr, joined.missing)])}: only templates are there to "
            "choose from. Add sentences under these names, spelled as in y",
            UserWarning,
            stacklevel=4,  # whoever called fit of the estimator
        )
    texts = PoolTexts.of(joined, class_names)
    if isinstance(source, Embedder):
        return PoolRows.embed(texts, source, further=further)
    return PoolRows(texts, texts.embed(lambda wanted: embed_texts(source, wanted)))


_TEMPLATE = "the average {}"


def prototypes(
    class_names: Sequence[str], examples: Examples, space: RowSpace
) -> tuple[PoolRows, dict[str, Rows]]:
    """Make the examples of a class its prompts, and their average its one template.

    The examples of a class are put in the order of their values and equal ones are kept once, so
    that the order in which they were given decides nothing. The embeddings of all texts are returned
    too.
    """
    rows, weights = space.unit(examples.rows), examples.relative_weights()
    vectors: dict[str, Rows] = {}
    filled, prompts = [], []
    for k, name in enumerate(class_names):
        members = np.flatnonzero(examples.labels == k)
        average = np.average(rows[members], axis=0, weights=weights[members])
        filled.append(_TEMPLATE.format(name))
        vectors[filled[-1]] = RowSpace().unit(average[None])[0]
        _, first = np.unique(to_grid(rows[members]), axis=0, return_index=True)
        prompts.append(tuple(f"example {examples.ids[i]}" for i in members[first]))
        vectors.update(zip(prompts[-1], rows[members[first]], strict=True))
    texts = PoolTexts(
        tuple(class_names), (_TEMPLATE,), tuple((text,) for text in filled), tuple(prompts)
    )
    return PoolRows(texts, texts.embed(lambda wanted: embed_texts(vectors, wanted))), vectors
