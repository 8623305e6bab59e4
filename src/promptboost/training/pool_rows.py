"""The pool of a fit: its texts, and their embeddings on the grid.

:class:`PoolTexts` holds the texts and :class:`PoolRows` their embeddings, in memory. A pool too large for
memory is embedded by an :class:`Executor` that the caller passes in. The estimator's pool is built here
too: sentences about its classes, or prototypes without an encoder.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, to_grid
from promptboost.encoders.base import Encoder, members_of
from promptboost.encoders.embedder import Embedder, TextSource, embed_texts
from promptboost.encoders.group import EncoderGroup
from promptboost.errors import EmbeddingError, LabelError, PoolError, SettingError, a_type, few
from promptboost.pool import PromptPool, build_pool, read_pool
from promptboost.pool.pool import words_fingerprint
from promptboost.pool.templates import clip_templates
from promptboost.progress import Progress, no_progress, stage
from promptboost.training.examples import Examples, Rows, RowSpace

Encode = Callable[[list[str]], ArrayLike]

# Texts embedded at once. Always as many: the last bit of an embedding can depend on that.
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
        The pool of each class, made when it is read; sizes may differ, duplicates are allowed.

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
        """Take the texts of a pool, or of some of its classes in the order given."""
        names = tuple(pool.class_names if class_names is None else class_names)
        if not pool.templates:
            raise PoolError("the pool has no templates: boosting starts each round from one")
        filled = dict(zip(pool.class_names, pool.template_texts(), strict=True))
        prompts = tuple(pool.texts(name) for name in names)  # refuses an unknown class
        return cls(names, pool.templates, tuple(tuple(filled[name]) for name in names), prompts)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with a name, a template, a prompt or their order, as that of a PromptPool does."""
        return words_fingerprint(self.class_names, self.templates, self.prompt_texts)

    def embed(self, encode: Encode, encoders: int = 1) -> GridPool:
        """Embed the texts by a function, such as an encoder's ``encode_texts``.

        Rows are rounded to the grid class by class, so that a large pool is never held as floats.
        """
        templates, prompts = zip(*self.blocks(encode, encoders=encoders), strict=True)
        return GridPool.from_rows(np.stack(templates), list(prompts), (1.0,) * encoders)

    def blocks(
        self, encode: Encode, start: int = 0, *, encoders: int = 1
    ) -> Iterator[tuple[GridRows, GridRows]]:
        """Return the rows of templates and of prompts, one class after the other.

        Only one class is in memory at a time, and each of its texts is embedded once. Every pool is
        embedded this way, so that the rows do not depend on where they are stored: the last bit of a row
        can depend on which texts are embedded together.
        """
        for k in range(start, len(self.class_names)):
            rows = encode(self.distinct(k))
            name = f"texts of {self.class_names[k]!r}"
            yield self.in_place(k, to_grid(rows, name=name, encoders=encoders))

    def n_bytes(self, dim: int) -> int:
        """Return the size of the rows of the pool, in memory or on disk, for embeddings of this length."""
        rows = sum(len(self.templates) + len(prompts) for prompts in self.prompt_texts)
        return rows * dim * np.dtype(np.int16).itemsize

    def distinct(self, k: int) -> list[str]:
        """Return each text of a class once, those of its templates first."""
        return list(dict.fromkeys([*self.template_texts[k], *self.prompt_texts[k]]))

    def in_place(self, k: int, rows: GridRows) -> tuple[GridRows, GridRows]:
        """Return the rows of a class's templates and of its prompts, of those of its distinct texts."""
        position = {text: i for i, text in enumerate(self.distinct(k))}
        if len(rows) != len(position):
            raise EmbeddingError(f"{len(rows)} rows came back for {len(position)} texts")
        filled, prompts = self.template_texts[k], self.prompt_texts[k]
        return rows[[position[text] for text in filled]], rows[[position[t] for t in prompts]]

    def check_against(self, pool: GridPool) -> None:
        """Raise PoolError if the rows cannot be those of these texts."""
        for what, rows, texts in (
            ("templates", pool.templates, self.template_texts),
            ("prompts", pool.prompts, self.prompt_texts),
        ):
            row_counts, text_counts = [list(map(len, blocks)) for blocks in (rows, texts)]
            if row_counts != text_counts:
                pairs = zip(row_counts, text_counts, strict=False)
                odd = [k for k, (a, b) in enumerate(pairs) if a != b]
                where = f"{len(row_counts)} classes have rows and {len(text_counts)} texts"
                if odd:
                    where = f"class {odd[0]} has {row_counts[odd[0]]} rows and {text_counts[odd[0]]} texts"
                raise PoolError(f"{what}: rows and texts do not belong together: {where}")
        if len(self.class_names) != len(self.template_texts):
            raise PoolError(
                f"{len(self.class_names)} class names for the texts of {len(self.template_texts)}"
            )
        if any(len(texts) != len(self.templates) for texts in self.template_texts):
            raise PoolError(f"each class needs {len(self.templates)} filled templates")


class Executor(Protocol):
    """Embeds pools of any size, such as on disk or in other processes."""

    def embed_pool(
        self, texts: PoolTexts, source: TextSource, folder: Path | None, progress: Progress
    ) -> "PoolRows":
        """Embed a pool.

        Parameters
        ----------
        texts : PoolTexts
        source : encoder, mapping or callable
            Embeds the texts.
        folder : Path or None
            Where embeddings may be stored, so that an interrupted fit does not compute them again. With
            None, nothing outlives the process.
        progress : callable
            Called with stage, done and total.
        """


@dataclass(frozen=True)
class PoolRows:
    """The embeddings of a pool.

    Attributes
    ----------
    texts : PoolTexts
    grid : GridPool
        Their rows, in the same order.
    cleanup : callable, optional
        Frees the disk space of the rows.
    """

    texts: PoolTexts
    grid: GridPool
    cleanup: Callable[[], object] | None = None

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
        """Embed a pool; without an `executor`, in memory.

        The embeddings of several encoders, an :class:`~promptboost.encoders.group.EncoderGroup`, are next
        to each other. See :meth:`Executor.embed_pool` for the `folder`.
        """
        if executor is not None:
            return executor.embed_pool(texts, source, folder, progress)
        encoders = len(members_of(source)) if isinstance(source, Encoder) else 1
        total = sum(map(len, texts.prompt_texts))
        with stage(progress, "encoding texts", total) as advance:
            return cls(texts, texts.embed(encode_by(source, advance), encoders))

    def of(self, number: int, dim: int) -> GridPool:
        """Return the rows of one of several encoders, by its number and the length of its embeddings."""
        start = number * (self.grid.templates.shape[2] // self.grid.encoders)
        columns = slice(start, start + dim)
        return GridPool(
            self.grid.templates[..., columns], tuple(P[:, columns] for P in self.grid.prompts)
        )

    def release(self) -> None:
        """Free the disk space of the rows."""
        if self.cleanup is not None:
            self.cleanup()


def encode_by(source: TextSource, advance: Callable[[int], object] = lambda count: None) -> Encode:
    """Return a function that embeds the texts of a class in batches."""

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
