"""The pool of a fit: its texts, and their embeddings on the grid.

:class:`PoolTexts` has the texts, :class:`PoolRows` their embeddings. A pool too large for memory is
embedded by an :class:`Executor`. The pool of the estimator is built here too, from sentences about its
classes or from prototypes.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, to_grid
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, embed_texts, members_of
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import EmbeddingError, LabelError, PoolError, SettingError, a_type, few
from promptboost.pool import PromptPool, build_pool, read_pool
from promptboost.pool.grammar import has_determiner, without_determiner
from promptboost.pool.pool import words_fingerprint
from promptboost.pool.templates import clip_templates
from promptboost.progress import Progress, no_progress, stage
from promptboost.training.examples import Examples, Rows, RowSpace

Encode = Callable[[list[str]], ArrayLike]

#: With at least so many descriptions, a class has at most one template in a bank of the gradient composer.
ENOUGH_DESCRIPTIONS = 1
# Texts embedded at once. The last bit of an embedding can depend on it.
_BATCH = 256


@dataclass(frozen=True)
class PoolTexts:
    """The texts of the rows of a :class:`~promptboost.boosting.GridPool`, in the same order.

    Attributes
    ----------
    class_names : tuple of str
        In the order of the labels.
    templates : tuple of str
        The shared templates, with ``{}`` where the class name goes.
    template_texts : tuple of K tuples of str
        The templates filled for each class.
    prompt_texts : tuple of K sequences of str
        The pool of each class, generated lazily; sizes may differ, duplicates are allowed.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> pool = build_pool(["owl", "bat"], templates=["a photo of a {}."])
    >>> texts = PoolTexts.of(pool)
    >>> texts.template_texts
    (('a photo of an owl.',), ('a photo of a bat.',))
    >>> texts.embed(FakeEncoder(dim=16).encode_texts).templates.shape
    (2, 1, 16)
    """

    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    template_texts: tuple[tuple[str, ...], ...]
    prompt_texts: tuple[Sequence[str], ...]

    @classmethod
    def of(cls, pool: PromptPool, class_names: Sequence[str] | None = None) -> "PoolTexts":
        """Return the texts of a pool, or of some of its classes."""
        names = tuple(pool.class_names if class_names is None else class_names)
        if not pool.templates:
            raise PoolError("the pool has no templates: boosting starts each round from one")
        filled = dict(zip(pool.class_names, pool.template_texts(), strict=True))
        prompts = tuple(pool.texts(name) for name in names)  # raises on an unknown class
        return cls(names, pool.templates, tuple(tuple(filled[name]) for name in names), prompts)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of class names, templates and prompts, equal to that of the PromptPool."""
        return words_fingerprint(self.class_names, self.templates, self.prompt_texts)

    def embed(self, encode: Encode, encoders: int = 1) -> GridPool:
        """Embed the texts with a function, such as an encoder's ``encode_texts``."""
        templates, prompts = zip(*self.blocks(encode, encoders=encoders), strict=True)
        scales = (1.0,) * encoders
        return GridPool.from_rows(np.stack(templates), list(prompts), scales, self.skipped)

    @property
    def skipped(self) -> tuple[int, ...]:
        """The number of leading prompts of each class that the gradient composer leaves out.

        They are the filled templates of classes with enough descriptions.
        """
        counts = []
        for filled, prompts in zip(self.template_texts, self.prompt_texts, strict=True):
            count = sum(1 for _ in takewhile(set(filled).__contains__, prompts))
            counts.append(count if len(prompts) - count >= ENOUGH_DESCRIPTIONS else 0)
        return tuple(counts)

    def blocks(self, encode: Encode, *, encoders: int = 1) -> Iterator[tuple[GridRows, GridRows]]:
        """Yield the rows of templates and of prompts of each class.

        Each distinct text of a class is embedded once. The last bit of a row can depend on which texts
        are embedded together, so every pool is embedded this way.
        """
        for k in range(len(self.class_names)):
            rows = encode(self.distinct(k))
            name = f"texts of {self.class_names[k]!r}"
            yield self.in_place(k, to_grid(rows, name=name, encoders=encoders))

    def n_bytes(self, dim: int) -> int:
        """Return the size of the rows of the pool, for embeddings of a given length."""
        rows = sum(len(self.templates) + len(prompts) for prompts in self.prompt_texts)
        return rows * dim * np.dtype(np.int16).itemsize

    def distinct(self, k: int) -> list[str]:
        """Return the distinct texts of a class, templates first."""
        return list(dict.fromkeys([*self.template_texts[k], *self.prompt_texts[k]]))

    def in_place(self, k: int, rows: GridRows) -> tuple[GridRows, GridRows]:
        """Return the rows of templates and of prompts, given those of the distinct texts of the class."""
        position = {text: i for i, text in enumerate(self.distinct(k))}
        if len(rows) != len(position):
            raise EmbeddingError(f"{len(rows)} rows came back for {len(position)} texts")
        filled, prompts = self.template_texts[k], self.prompt_texts[k]
        return rows[[position[text] for text in filled]], rows[[position[t] for t in prompts]]


class Executor(Protocol):
    """Embeds pools of any size, for example on disk or in other processes."""

    def embed_pool(
        self, texts: PoolTexts, source: TextSource, folder: Path | None, progress: Progress
    ) -> "PoolRows":
        """Embed a pool; `folder` keeps embeddings for resuming an interrupted fit."""


@dataclass(frozen=True)
class PoolRows:
    """The embeddings of a pool."""

    texts: PoolTexts
    grid: GridPool  # their rows, in the same order
    cleanup: Callable[[], object] | None = None  # deletes temporary files

    @classmethod
    def embed(
        cls,
        texts: PoolTexts,
        source: TextSource,
        *,
        executor: Executor | None = None,
        folder: Path | None = None,
        progress: Progress = no_progress,
    ) -> "PoolRows":
        """Embed a pool, in memory unless there is an `executor`.

        The embeddings of an :class:`~promptboost.encoders.group.EncoderGroup` are concatenated. See
        :meth:`Executor.embed_pool` for the `folder`.
        """
        if executor is not None:
            return executor.embed_pool(texts, source, folder, progress)
        encoders = len(members_of(source)) if isinstance(source, Encoder) else 1
        total = sum(map(len, texts.prompt_texts))
        with stage(progress, "encoding texts", total) as advance:
            return cls(texts, texts.embed(encode_by(source, advance), encoders))

    def of_classes(self, classes: NDArray[np.int64]) -> "PoolRows":
        """Return the texts and rows of some of the classes."""
        if len(classes) == len(self.texts.class_names):
            return self
        texts = PoolTexts(
            tuple(self.texts.class_names[k] for k in classes),
            self.texts.templates,
            tuple(self.texts.template_texts[k] for k in classes),
            tuple(self.texts.prompt_texts[k] for k in classes),
        )
        return PoolRows(texts, self.grid.of_classes(classes.tolist()))

    def of(self, number: int, dim: int) -> GridPool:
        """Return the rows of one of several encoders, given its index and the length of its embeddings."""
        start = number * (self.grid.templates.shape[2] // self.grid.encoders)
        columns = slice(start, start + dim)
        return GridPool(
            self.grid.templates[..., columns], tuple(P[:, columns] for P in self.grid.prompts)
        )

    def release(self) -> None:
        """Delete temporary files."""
        if self.cleanup is not None:
            self.cleanup()


def encode_by(source: TextSource, advance: Callable[[int], object] = lambda count: None) -> Encode:
    """Return a function that embeds texts in batches."""

    def encode(texts: list[str]) -> ArrayLike:
        if not isinstance(source, Encoder):
            return embed_texts(source, texts)
        rows = np.empty((len(texts), source.dim), dtype=np.float32)
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            rows[start : start + len(batch)] = source.encode_texts(batch)
            advance(len(batch))
        return rows

    return encode


# An encoder or embedder, or a mapping or function from texts to embeddings.
Source = Embedder | EncoderGroup | TextSource
# A pool, a file, or sentences by class.
PoolLike = PromptPool | str | Path | Mapping[str, Sequence[str]]


def names_of_classes(
    labels: Sequence[Any],
    class_names: Sequence[str] | Mapping[Any, str] | None,
    *,
    in_prompts: bool,
) -> tuple[str, ...]:
    """Return the name of each label; with `in_prompts`, numbers are not allowed as names.

    See :func:`noun_phrases` for values such as "a pug dog".
    """
    if class_names is None:
        numbers = [label for label in labels if not isinstance(label, str)]
        if in_prompts and numbers:
            raise LabelError(
                f"y has labels without names, such as {numbers[0]!r}, and prompts need names: set "
                f"class_names={{{numbers[0]!r}: 'name', …}}, or a list of the names of 0, 1, and so on"
            )
        return tuple(map(str, labels))
    if isinstance(class_names, str):
        raise SettingError(f"class_names is {class_names!r}: give a list of names, or a mapping")
    named: dict[Any, Any]
    if isinstance(class_names, Mapping):
        named = {label: _name(label, value) for label, value in class_names.items()}
    elif all(isinstance(label, Integral | np.bool_) for label in labels):
        named = dict(enumerate(class_names))
    else:
        raise LabelError(
            "class_names is a sequence, which names the labels 0, 1, and so on, but y has the label "
            f"{labels[0]!r}: pass a mapping from label to name"
        )
    if missing := [label for label in labels if label not in named]:
        raise LabelError(f"class_names has no name for the label {missing[0]!r}: add one")
    names = [named[label] for label in labels]
    not_text = [name for name in names if not isinstance(name, str)]
    repeated = [name for name in names if names.count(name) > 1]
    if not_text or repeated:
        problem = "is not a string" if not_text else "is the name of two labels"
        raise LabelError(
            f"class_names: {(not_text or repeated)[0]!r} {problem}; give each label its own name"
        )
    return tuple(names)


def noun_phrases(class_names: object) -> dict[str, str]:
    """Return the noun phrases in a mapping from label to name, by class name.

    The class of "a pug dog" is called like its label or, where that is a number, "pug dog".

    Examples
    --------
    >>> noun_phrases({"pug": "a pug dog", "owl": "barn owl"}), noun_phrases({0: "a pug dog"})
    ({'pug': 'a pug dog'}, {'pug dog': 'a pug dog'})
    """
    if not isinstance(class_names, Mapping):
        return {}
    named = {_name(label, value): value for label, value in class_names.items()}
    return {name: value for name, value in named.items() if name != value}


def _name(label: object, value: Any) -> Any:
    if not isinstance(value, str) or not has_determiner(value):
        return value
    return label if isinstance(label, str) else without_determiner(value)


def embed_pool(
    class_names: Sequence[str],
    source: Source,
    pool: PoolLike | None,
    templates: Sequence[str] | None,
    concatenate: Literal["none", "one", "all"],
    phrases: Mapping[str, str],
) -> PoolRows:
    """Embed a pool, given, in a file, or as sentences by class; warn about classes without sentences."""
    if isinstance(templates, str):
        if templates not in ("own", "clip"):
            raise SettingError(f"templates is {templates!r}: give 'own', 'clip', or a list")
        templates = clip_templates() if templates == "clip" else None
    phrases = {name: text for name, text in phrases.items() if name in class_names}
    options: dict[str, Any] = {"concatenate": concatenate, "phrases": phrases}
    if isinstance(pool, PromptPool):
        if templates is not None or concatenate != "none":
            name = "templates=None" if templates is not None else "concatenate='none'"
            raise SettingError(f"the pool already has templates: set {name}")
        if phrases:
            raise SettingError("the pool already has filled templates: give build_pool the phrases")
        joined = pool
    elif isinstance(pool, str | Path):
        joined = read_pool(pool, class_names, templates=templates, **options)
    elif pool is None or isinstance(pool, Mapping):
        joined = build_pool(class_names, templates=templates, descriptions=pool, **options)
    else:
        raise SettingError(
            f"pool is {a_type(pool)}: give a PromptPool, the path of a file, or a mapping "
            "from class name to sentences"
        )
    if pool and not isinstance(pool, PromptPool) and joined.missing:
        # It may be a misspelled class name.
        warnings.warn(
            f"pool has no sentences for {few([*map(repr, joined.missing)])}, only templates. Add sentences "
            "under these names, spelled as in y",
            UserWarning,
            stacklevel=3,  # the caller of fit
        )
    return PoolRows.embed(PoolTexts.of(joined, class_names), source)


_TEMPLATE = "the average {}"


def prototypes(class_names: Sequence[str], examples: Examples) -> tuple[PoolRows, dict[str, Rows]]:
    """Build a pool with the examples of each class as prompts and their average as template.

    Examples of a class are sorted by value without duplicates, so that their order does not matter. Also
    return the embeddings of all texts.
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
    pool = PoolRows.embed(texts, vectors)
    return replace(pool, grid=replace(pool.grid, merges=False)), vectors
