"""What a fit learns from: rows, labels, weights and names, ready for boosting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import GridPool, Shots
from promptboost.boosting.grid import to_grid
from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.errors import EmbeddingError, LabelError, SettingError, WeightError
from promptboost.pool import PromptPool, build_pool
from promptboost.training.pool_rows import PoolTexts

__all__ = ["RowSpace", "Rows", "Examples", "checked_views", "Words", "prototypes", "sentences"]

Rows = NDArray[np.float64]


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

    def relative_weights(self) -> Rows:
        """Return the start weights, ones where there are none."""
        return np.ones(len(self.rows)) if self.weights is None else self.weights

    def shots(self, space: RowSpace) -> Shots:
        """Put the rows on the grid."""
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
    seen = np.asarray(views, dtype=np.float64)
    if seen.ndim != 3 or seen.shape[::2] != rows.shape or seen.shape[1] == 0:
        raise EmbeddingError(
            f"views: expected shape ({rows.shape[0]}, V, {rows.shape[1]}) with V >= 1 views of each "
            f"row of X, got {seen.shape}"
        )
    if not np.isfinite(seen).all():
        raise EmbeddingError("views: there are values that are not finite")
    return seen


_TEMPLATE = "the average {}"


@dataclass(frozen=True)
class Words:
    """What a pool says, its rows, and what embeds the texts that are chosen from it."""

    texts: PoolTexts
    grid: GridPool
    source: TextSource


def sentences(
    class_names: Sequence[str],
    source: TextSource,
    pool: PromptPool | Mapping[str, Sequence[str]] | None = None,
    templates: Sequence[str] | None = None,
) -> Words:
    """Make and embed the pool of some classes.

    Parameters
    ----------
    class_names : sequence of str
        In the order of the labels.
    source : Encoder, mapping or callable
        What embeds texts.
    pool : PromptPool, mapping of str to sequence of str, or None
        A pool, of which these classes are taken; or sentences by class, to join the templates.
    templates : sequence of str, optional
        Where `pool` is not a PromptPool; ours by default.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> words = sentences(["owl", "bat"], FakeEncoder(), {"owl": ["round eyes"]}, ["a {}."])
    >>> words.texts.prompt_texts
    (('an owl.', 'round eyes'), ('a bat.',))
    """
    if not isinstance(pool, PromptPool):
        pool = build_pool(class_names, templates=templates, descriptions=pool)
    elif templates is not None:
        raise SettingError("the pool has templates of its own: set templates=None")
    texts = PoolTexts.of(pool, class_names)
    return Words(texts, texts.embed(lambda wanted: embed_texts(source, wanted)), source)


def prototypes(class_names: Sequence[str], examples: Examples, space: RowSpace) -> Words:
    """Make the examples of a class its prompts, and their average its one template.

    The examples of a class are put in the order of their values and equal ones are kept once, so
    that the order in which they were given decides nothing.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> examples = Examples(rows, np.array([0, 0, 1]), ("0", "1", "2"))
    >>> words = prototypes(["a", "b"], examples, RowSpace())
    >>> words.texts.template_texts, words.texts.prompt_texts
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
    return Words(texts, texts.embed(lambda wanted: embed_texts(vectors, wanted)), vectors)
