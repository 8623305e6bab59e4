"""The labelled examples a fit learns from, and the prompts it chooses from, ready for boosting."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import Shots
from promptboost.boosting.grid import to_grid
from promptboost.config import BoostConfig
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, embed_texts, text_source
from promptboost.errors import EmbeddingError, LabelError, SettingError, WeightError
from promptboost.model import PromptEnsemble
from promptboost.model.schema import Scalar
from promptboost.pool import PromptPool, build_pool, clip_templates, read_pool
from promptboost.training.learner import boost_settings, fit_ensemble
from promptboost.training.pool_rows import PoolRows, PoolTexts

__all__ = [
    "Cache",
    "Examples",
    "PoolLike",
    "RowSpace",
    "Rows",
    "checked_views",
    "embed_pool",
    "embedder_of",
    "fit_examples",
    "make_pool",
    "names_of_classes",
    "prototypes",
]

Rows = NDArray[np.floating]
# Where embeddings are kept: the user's store, nowhere, or a folder.
Cache = bool | str | os.PathLike[str]
# What a pool can be made of: a pool, a file, or sentences by class.
PoolLike = PromptPool | str | Path | Mapping[str, Sequence[str]]
# Example → the example it was merged into, and its part of that one's weight.
Parts = dict[str, tuple[str, float]]


@dataclass(frozen=True)
class RowSpace:
    """How rows of numbers become rows of length one.

    Embeddings only need scaling. Other features have an origin that matters and may be all zero:
    they get one more coordinate, the same for all rows, before they are scaled. For rows that are
    of one length anyway this changes no comparison of cosines; for others it keeps apart those
    that differ in length only, as the intercept of a linear model does.

    Attributes
    ----------
    constant : float or None
        The further coordinate, if there is one.

    Examples
    --------
    >>> space = RowSpace.around(np.array([[3.0, 4.0], [0.0, 5.0]]), np.array([1.0, 1.0]))
    >>> space.constant
    5.0
    >>> space.unit(np.array([[0.0, 0.0]]))
    array([[0., 0., 1.]])
    """

    constant: float | None = None

    @classmethod
    def around(cls, rows: Rows, weights: Rows) -> "RowSpace":
        """Append the typical length of the rows: features in other units then give the same fit."""
        largest = float(np.abs(rows).max()) or 1.0  # divided out, so that squares do not overflow
        squares = np.einsum("nd,nd->n", rows / largest, rows / largest)
        return cls(float(np.sqrt(np.average(squares, weights=weights))) * largest or 1.0)

    def unit(self, rows: Rows) -> Rows:
        """Scale to length one; a row of zeros stays one if there is no further coordinate."""
        if self.constant is not None:
            further = np.full((*rows.shape[:-1], 1), self.constant)
            rows = np.concatenate([rows, further], axis=-1)
        largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
        rows = rows / np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
        return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


@dataclass(frozen=True)
class Examples:
    """Labelled rows, as they were given.

    Attributes
    ----------
    rows : array of shape (n, D)
        One for each example.
    labels : array of int of shape (n,)
        Class index of each.
    ids : tuple of str
        Name of each.
    weights : array of shape (n,), or None
        Weights to start with, if not uniform.
    views : array of shape (n, V, D), or None
        Further rows of each example.

    Examples
    --------
    >>> rows, labels = np.eye(3), np.array([0, 1, 1])
    >>> some = Examples(rows, labels, ("a", "b", "c"), np.array([1.0, 0.0, 2.0]))
    >>> some.weighted(["cat", "dog"]).ids
    ('a', 'c')
    """

    rows: Rows
    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    weights: Rows | None = None
    views: Rows | None = None

    def weighted(self, class_names: Sequence[str]) -> "Examples":
        """Leave out what has no weight: it would never count.

        Raises
        ------
        WeightError
            If a weight is negative, or all are zero.
        LabelError
            If a class is left without examples.
        """
        if self.weights is None:
            return self
        if (self.weights < 0).any():
            worst = int(np.argmin(self.weights))
            raise WeightError(f"sample weight {worst} is negative ({self.weights[worst]:.4g})")
        kept = np.flatnonzero(self.weights)
        if not len(kept):
            raise WeightError("all sample weights are zero: no image counts")
        lost = np.setdiff1d(self.labels, self.labels[kept])
        if len(lost):
            raise LabelError(f"all examples of the class {class_names[lost[0]]!r} have weight zero")
        return Examples(
            self.rows[kept],
            self.labels[kept],
            tuple(self.ids[i] for i in kept),
            self.weights[kept],
            None if self.views is None else self.views[kept],
        )

    def merged(self) -> tuple["Examples", Parts]:
        """Put examples in the order of their values, and equal ones together with their weights added.

        Then it decides nothing in which order examples were given, or whether one was given twice or
        with twice the weight: neither a sum of floats that is rounded, nor who is set aside with whom
        when the logit scale is chosen. Which merged example each one went into, and its part of
        that, is returned too.
        """
        n = len(self.rows)
        values = [self.labels[:, None], self.rows]
        if self.views is not None:
            values.append(self.views.reshape(n, -1))
        _, first, into = np.unique(
            np.concatenate(values, axis=1), axis=0, return_index=True, return_inverse=True
        )
        into = into.reshape(n)
        weights = self.relative_weights()
        total = np.bincount(into, weights=weights).astype(np.float64)
        together = Examples(
            self.rows[first],
            self.labels[first],
            tuple(self.ids[i] for i in first),
            None if self.weights is None and len(first) == n else total,
            None if self.views is None else self.views[first],
        )
        shares = zip(self.ids, into, weights / total[into], strict=True)
        return together, {name: (together.ids[i], float(share)) for name, i, share in shares}

    def relative_weights(self) -> Rows:
        """Return the start weights, ones where there are none."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    def shots(self, space: RowSpace) -> Shots:
        """Put the rows on the grid.

        Rows in single precision are an encoder's own: they are of length one, and stay as they are to
        the last bit, so that the command line learns the same text from them.
        """
        if self.rows.dtype == np.float32:
            return Shots.from_rows(self.rows, self.labels, self.views)
        views = None if self.views is None else space.unit(self.views)
        return Shots.from_rows(space.unit(self.rows), self.labels, views)


def checked_views(views: ArrayLike | None, rows: Rows) -> Rows | None:
    """Check that views belong to rows.

    Examples
    --------
    >>> checked_views(np.ones((2, 3, 5)), np.ones((2, 4)))
    Traceback (most recent call last):
        ...
    promptboost.errors.EmbeddingError: views: expected shape (2, V, 4) with V >= 1 views of each row \
of X, got (2, 3, 5)
    """
    if views is None:
        return None
    seen = np.asarray(views, dtype=rows.dtype)
    if seen.ndim != 3 or seen.shape[::2] != rows.shape or seen.shape[1] == 0:
        raise EmbeddingError(
            f"views: expected shape ({rows.shape[0]}, V, {rows.shape[1]}) with V >= 1 views of each "
            f"row of X, got {seen.shape}"
        )
    if not np.isfinite(seen).all():
        raise EmbeddingError("views: there are values that are not finite")
    return seen


def names_of_classes(
    labels: Sequence[Any],
    class_names: Sequence[str] | Mapping[Any, str] | None,
    *,
    in_prompts: bool,
) -> tuple[str, ...]:
    """Return the name of each class.

    Parameters
    ----------
    labels : sequence
        The distinct labels, sorted.
    class_names : sequence or mapping, optional
        Names by label. A sequence has the names of the labels 0, 1, and so on.
    in_prompts : bool
        Whether names are read as words, so that a number is none.

    Examples
    --------
    >>> names_of_classes([0, 2], ["cat", "dog", "owl"], in_prompts=True)
    ('cat', 'owl')
    """
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
        names = [] if missing else [class_names[label] for label in labels]
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
    """Make the pool of some classes.

    Parameters
    ----------
    class_names : sequence of str
        In the order of the labels.
    pool : PromptPool, path-like or mapping of str to sequence of str, optional
        A pool, which may have more classes; a file that :func:`promptboost.pool.read_pool` reads;
        or sentences by class, to join the templates.
    templates : sequence of str, "own" or "clip", optional
        Templates where `pool` has none; ours by default.
    concatenate : {"none", "one", "all"}, default="none"
        See :func:`promptboost.pool.build_pool`.

    Examples
    --------
    >>> pool = make_pool(["owl", "bat"], {"owl": ["round eyes"]}, ["a {}."])
    >>> PoolTexts.of(pool).prompt_texts
    (('an owl.', 'round eyes'), ('a bat.',))
    """
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
            f"pool is a {type(pool).__name__}: give a PromptPool, the path of a file, or a mapping "
            "from class name to sentences"
        )
    return build_pool(class_names, templates=templates, descriptions=pool, concatenate=concatenate)


def embedder_of(encoder: object, cache: Cache = True) -> Embedder | TextSource | None:
    """Return what embeds texts, and images where it is an embedder.

    Parameters
    ----------
    encoder : Encoder, str, mapping, callable or None
        An encoder or its name becomes an embedder; copies of an estimator share the model of a name.
        All else is returned as it is.
    cache : bool or path-like, default=True
        The store of the embedder.
    """
    source = text_source(encoder)
    if isinstance(cache, bool):
        place = None
    elif isinstance(cache, str | os.PathLike):
        place = Path(cache)
    else:
        raise SettingError(f"cache is {cache!r}: give True, False, or the path of a folder")
    if not isinstance(source, Encoder) or isinstance(source, Embedder):
        return source
    if cache is False:
        return Embedder(source, None, progress=False)
    from promptboost.encoders.store import EmbeddingStore

    return Embedder(source, EmbeddingStore(place), progress=False)


def embed_pool(
    pool: PromptPool, class_names: Sequence[str], source: Embedder | TextSource
) -> PoolRows:
    """Embed the prompts of some classes of a pool, in their order."""
    texts = PoolTexts.of(pool, class_names)
    if isinstance(source, Embedder):
        return PoolRows.embed(texts, source)
    return PoolRows(texts, texts.embed(lambda some: embed_texts(source, some)))


def fit_examples(
    examples: Examples,
    pool: PoolRows,
    config: BoostConfig,
    space: RowSpace,
    encoder: Encoder | None,
    notes: Mapping[str, Scalar] | None = None,
) -> PromptEnsemble:
    """Boost on examples; without views, on the examples themselves."""
    seen = 0 if examples.views is None else examples.views.shape[1]
    return fit_ensemble(
        examples.shots(space),
        pool.grid,
        pool.texts,
        boost_settings(config if seen else replace(config, views_per_round=0), seen),
        image_ids=examples.ids,
        weights=examples.weights,
        encoder_id=encoder.id if encoder else None,
        encoder_fingerprint=encoder.fingerprint if encoder else None,
        encoder_scale=encoder.logit_scale if encoder else None,
        notes=notes,
    )


_TEMPLATE = "the average {}"


def prototypes(
    class_names: Sequence[str], examples: Examples, space: RowSpace
) -> tuple[PoolRows, dict[str, Rows]]:
    """Make the examples of a class its prompts, and their average its one template.

    The examples of a class are put in the order of their values and equal ones are kept once, so
    that the order in which they were given decides nothing. The embeddings of all texts are returned
    too.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> examples = Examples(rows, np.array([0, 0, 1]), ("0", "1", "2"))
    >>> pool, _ = prototypes(["a", "b"], examples, RowSpace())
    >>> pool.texts.template_texts, pool.texts.prompt_texts
    ((('the average a',), ('the average b',)), (('example 1', 'example 0'), ('example 2',)))
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
