"""The pool of a fit as boosting reads it: its texts, and their embeddings on the grid.

:class:`PoolTexts` holds the texts and :class:`PoolRows` their embeddings, in memory. A pool too large for
memory is embedded by an :class:`Executor` that the caller passes in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, to_grid
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.encoders.group import members_of
from promptboost.errors import EmbeddingError, PoolError
from promptboost.pool import PromptPool
from promptboost.pool.pool import words_fingerprint
from promptboost.progress import Progress, no_progress, stage

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
        total = sum(map(len, texts.prompt_texts))
        with stage(progress, "encoding texts", total) as advance:
            return cls(texts, texts.embed(encode_by(source, advance), count_encoders(source)))

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


def count_encoders(source: TextSource) -> int:
    """Return how many encoders a source of embeddings stands for."""
    return len(members_of(source)) if isinstance(source, Encoder) else 1


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
