"""The pool of a fit as boosting reads it: its texts, and their embeddings on the grid.

:class:`PoolTexts` holds the texts and :class:`PoolRows` their embeddings, in memory. A pool too large for
memory is embedded by an :class:`Executor` that the caller passes in.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, side_by_side, to_grid
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.errors import EmbeddingError, PoolError
from promptboost.pool import PromptPool
from promptboost.pool.pool import words_fingerprint
from promptboost.progress import progress_bar

Encode = Callable[[list[str]], ArrayLike]

# Texts embedded at a time: how often the bar moves. The store is written to as often.
_AT_ONCE = 256


@dataclass(frozen=True)
class PoolTexts:
    """What the rows of a :class:`~promptboost.boosting.GridPool` say, in the same order.

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

    def embed(self, encode: Encode) -> GridPool:
        """Embed the texts by a function, such as an encoder's ``encode_texts``.

        Rows are put on the grid class by class, so that a large pool is never held as floats.
        """
        templates, prompts = zip(*self.blocks(encode), strict=True)
        return GridPool.from_rows(np.stack(templates), list(prompts))

    def blocks(self, encode: Encode, start: int = 0) -> Iterator[tuple[GridRows, GridRows]]:
        """Return the rows of templates and of prompts, one class after the other.

        Only one class is held at a time, and each text of it is embedded once. All that embeds a
        pool goes this way, so that the rows are the same wherever they end up: the last bit of a
        row can depend on which texts are embedded together.
        """
        for k in range(start, len(self.class_names)):
            rows = encode(self.distinct(k))
            yield self.in_place(k, to_grid(rows, name=f"texts of {self.class_names[k]!r}"))

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
        self, texts: PoolTexts, embedders: Sequence[Embedder], folder: Path | None
    ) -> "PoolRows":
        """Embed a pool by one or several embedders, their rows side by side.

        Parameters
        ----------
        texts : PoolTexts
        embedders : sequence of Embedder
        folder : Path or None
            Where embeddings may be kept, so that an interrupted fit does not compute them again. With
            None, nothing outlives the process.
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
        Frees what the rows occupy outside of this process.
    """

    texts: PoolTexts
    grid: GridPool
    cleanup: Callable[[], object] | None = None

    @classmethod
    def embed(
        cls,
        texts: PoolTexts,
        embedder: Embedder,
        further: Sequence[Embedder] = (),
        *,
        executor: Executor | None = None,
        folder: Path | None = None,
    ) -> "PoolRows":
        """Embed a pool; without an `executor`, in memory.

        The rows of `further` embedders are put side by side with those of the first. See
        :meth:`Executor.embed_pool` for the `folder`.
        """
        embedders = (embedder, *further)
        if executor is not None:
            return executor.embed_pool(texts, embedders, folder)
        with encoding(texts, *embedders) as encode:
            return cls(texts, of_encoders(texts.embed(encode), len(embedders)))

    def of(self, number: int, dim: int) -> GridPool:
        """Return the rows of one encoder of several, by its number and the length of its embeddings."""
        start = number * (self.grid.templates.shape[2] // self.grid.encoders)
        part = slice(start, start + dim)
        return GridPool(
            self.grid.templates[..., part], tuple(P[:, part] for P in self.grid.prompts)
        )

    def release(self) -> None:
        """Free what the rows occupy on disk, once the fit is done."""
        if self.cleanup is not None:
            self.cleanup()


def of_encoders(grid: GridPool, count: int) -> GridPool:
    """Mark rows as those of several encoders; the fit replaces the scales."""
    return replace(grid, scales=(1.0,) * count)


def encode_in_parts(
    embedder: Embedder, texts: list[str], done: Callable[[int], object] = lambda count: None
) -> UnitRows:
    """Embed texts of one class, always as many at a time: the last bit of a row can depend on that."""
    quiet = replace(embedder, progress=False)  # it would draw a bar for every call
    rows = np.empty((len(texts), embedder.encoder.dim), dtype=np.float32)
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        rows[start : start + len(some)] = quiet.texts(some)(some)
        done(len(some))
    return rows


@contextmanager
def encoding(texts: PoolTexts, *embedders: Embedder) -> Iterator[Encode]:
    """Return what embeds the texts of a pool a class at a time, with one bar for all classes.

    Rows of several embedders are put side by side.
    """
    total = sum(map(len, texts.prompt_texts)) * len(embedders)
    with progress_bar(total, "texts", "texts", shown=embedders[0].progress) as bar:

        def done(count: int) -> None:
            # Templates that are no prompts are embedded too, and not counted before.
            bar.update(min(count, total - bar.n))

        def encode(wanted: list[str]) -> ArrayLike:
            rows = [encode_in_parts(embedder, wanted, done) for embedder in embedders]
            return rows[0] if len(rows) == 1 else side_by_side(rows, name="texts")

        yield encode
