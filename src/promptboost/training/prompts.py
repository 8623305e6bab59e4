"""The pool of an estimator: sentences about its classes, or prototypes in their place."""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np

from promptboost.boosting.grid import to_grid
from promptboost.encoders.embedder import Embedder, TextSource
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import LabelError, SettingError, a_type, few
from promptboost.pool import PromptPool, build_pool, clip_templates, read_pool
from promptboost.training.examples import Examples, Rows, RowSpace
from promptboost.training.pool_rows import PoolRows, PoolTexts

# Embeds texts, and images where it is an embedder.
Source = Embedder | EncoderGroup | TextSource
# A pool, a file, or sentences by class.
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


def embed_pool(
    class_names: Sequence[str],
    source: Source,
    pool: PoolLike | None,
    templates: Sequence[str] | None,
    concatenate: Literal["none", "one", "all"] = "none",
) -> PoolRows:
    """Make the pool of some classes, and embed it; warn of classes without sentences."""
    joined = make_pool(class_names, pool, templates, concatenate)
    if pool and not isinstance(pool, PromptPool) and joined.missing:
        # A misspelled class name looks the same.
        warnings.warn(
            f"pool has no sentences for {few([*map(repr, joined.missing)])}: only templates are there to "
            "choose from. Add sentences under these names, spelled as in y",
            UserWarning,
            stacklevel=3,  # the caller of the estimator's fit
        )
    return PoolRows.embed(PoolTexts.of(joined, class_names), source)


_TEMPLATE = "the average {}"


def prototypes(class_names: Sequence[str], examples: Examples) -> tuple[PoolRows, dict[str, Rows]]:
    """Return the examples of each class as its prompts, and their average as its template.

    The examples of a class are sorted by value and equal ones are kept once, so that their order does
    not matter. Also returns the embeddings of all texts.
    """
    rows, weights = examples.rows, examples.relative_weights()
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
    return PoolRows.embed(texts, vectors), vectors
