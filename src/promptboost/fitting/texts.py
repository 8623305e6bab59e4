"""The words behind the rows: what the prompts and templates of a pool say."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, to_grid
from promptboost.errors import EmbeddingError, PoolError
from promptboost.fitting.rows_folder import RowsFolder
from promptboost.pool import PromptPool
from promptboost.pool.fingerprint import words_fingerprint

__all__ = ["PoolTexts"]

Encode = Callable[[list[str]], ArrayLike]


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
        The pool of each class; sizes may differ, duplicates are allowed. Those of a
        :class:`~promptboost.pool.PromptPool` are made when they are read.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> from promptboost.testing import FakeEncoder
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
        """Take the texts of a pool, or of some of its classes in the order given.

        Raises
        ------
        PoolError
            If the pool has no templates, or lacks one of the classes.
        """
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

    def n_bytes(self, dim: int) -> int:
        """Give the room that the rows take, in memory or on disk, with so many dimensions."""
        rows = sum(len(self.templates) + len(own) for own in self.prompt_texts)
        return rows * dim * np.dtype(np.int16).itemsize

    def embed(self, encode: Encode) -> GridPool:
        """Embed the texts, one class at a time, each text of a class once.

        Rows are put on the grid class by class, so that a large pool is never held as floats.

        Parameters
        ----------
        encode : callable
            Gives one unit row for each text: an encoder's ``encode_texts``.
        """
        blocks = list(self.blocks(encode))
        return GridPool.from_rows(
            np.stack([rows for rows, _ in blocks]), [own for _, own in blocks]
        )

    def embed_to(
        self,
        folder: str | Path,
        encode: Encode,
        *,
        encoder_fingerprint: str,
        progress: Callable[[int], None] | None = None,
    ) -> GridPool:
        """Embed the texts into a folder, and give prompts that are read from there when needed.

        For pools larger than memory: only one class is held at a time. Work that is interrupted
        goes on with the class it was in; work that is done is not done again.

        Parameters
        ----------
        folder : path-like
            Made if it does not exist; one for each pool and encoder.
        encode : callable
            Gives one unit row for each text: an encoder's ``encode_texts``.
        encoder_fingerprint : str
            Of what `encode` computes with: rows of another encoder are not gone on with.
        progress : callable, optional
            Called with the number of further prompts that are done, such as ``tqdm(...).update``.

        Raises
        ------
        PoolError
            If the folder holds the rows of another pool or encoder.

        Examples
        --------
        >>> import tempfile
        >>> from promptboost.pool import build_pool
        >>> from promptboost.testing import FakeEncoder
        >>> texts, fake = PoolTexts.of(build_pool(["owl", "bat"])), FakeEncoder()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     grid = texts.embed_to(
        ...         folder, fake.encode_texts, encoder_fingerprint=fake.fingerprint
        ...     )
        ...     same = (grid.prompts[1] == texts.embed(fake.encode_texts).prompts[1]).all()
        >>> bool(same)
        True
        """
        sizes = [len(self.templates) + len(own) for own in self.prompt_texts]
        rows = RowsFolder(Path(folder), self.fingerprint, encoder_fingerprint, sizes)
        tell = progress or (lambda done: None)
        tell(sum(map(len, self.prompt_texts[: rows.done])))
        for filled, own in self.blocks(encode, start=rows.done):
            rows.add(np.concatenate([filled, own]))
            tell(len(own))
        both = rows.blocks()
        count = len(self.templates)
        templates = np.stack([block[:count] for block in both])
        return GridPool.from_rows(templates, [block[count:] for block in both])

    def blocks(self, encode: Encode, start: int = 0) -> Iterator[tuple[GridRows, GridRows]]:
        """Give the rows of templates and of prompts, one class after the other.

        Only one class is held at a time, and each text of it is embedded once. All that embeds a
        pool goes this way, so that the rows are the same wherever they end up: the last bit of a
        row can depend on which texts are embedded together.

        Parameters
        ----------
        encode : callable
            Gives one unit row for each text: an encoder's ``encode_texts``.
        start : int, default=0
            The class to begin with.
        """
        for k in range(start, len(self.class_names)):
            filled, own = self.template_texts[k], self.prompt_texts[k]
            position = {text: i for i, text in enumerate(dict.fromkeys([*filled, *own]))}
            rows = to_grid(encode(list(position)), name=f"texts of {self.class_names[k]!r}")
            if len(rows) != len(position):
                raise EmbeddingError(f"{len(rows)} rows came back for {len(position)} texts")
            yield rows[[position[text] for text in filled]], rows[[position[t] for t in own]]

    def check_against(self, pool: GridPool) -> None:
        """Refuse rows that these texts cannot be about."""
        for what, rows, texts in (
            ("templates", pool.templates, self.template_texts),
            ("prompts", pool.prompts, self.prompt_texts),
        ):
            sizes, said = [len(block) for block in rows], [len(block) for block in texts]
            if sizes != said:
                odd = [k for k, (a, b) in enumerate(zip(sizes, said, strict=False)) if a != b]
                where = (
                    f"class {odd[0]} has {sizes[odd[0]]} rows and {said[odd[0]]} texts"
                    if odd
                    else (f"{len(sizes)} classes have rows and {len(said)} texts")
                )
                raise PoolError(f"{what}: rows and texts do not belong together: {where}")
        if len(self.class_names) != len(self.template_texts):
            raise PoolError(
                f"{len(self.class_names)} class names for the texts of {len(self.template_texts)}"
            )
        if any(len(texts) != len(self.templates) for texts in self.template_texts):
            raise PoolError(f"each class needs {len(self.templates)} filled templates")
