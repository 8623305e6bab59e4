"""The words behind the rows: what the prompts and templates of a pool say."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from promptboost.boosting import GridPool
from promptboost.boosting.grid import to_grid
from promptboost.errors import EmbeddingError, PoolError
from promptboost.pool import PromptPool

__all__ = ["PoolTexts"]


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
    prompt_texts : tuple of K tuples of str
        The pool of each class; sizes may differ, duplicates are allowed.

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
    prompt_texts: tuple[tuple[str, ...], ...]

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
        prompts = tuple(tuple(pool.texts(name)) for name in names)  # refuses an unknown class
        return cls(names, pool.templates, tuple(tuple(filled[name]) for name in names), prompts)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with a name, a template, a prompt or their order, as that of a PromptPool does."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self.class_names, self.templates]).encode())
        for texts in self.prompt_texts:
            digest.update(json.dumps(texts).encode())
        return digest.hexdigest()

    def embed(self, encode: Callable[[list[str]], ArrayLike]) -> GridPool:
        """Embed the texts, one class at a time, each text of a class once.

        Rows are put on the grid class by class, so that a large pool is never held as floats.

        Parameters
        ----------
        encode : callable
            Gives one unit row for each text: an encoder's ``encode_texts``.
        """
        templates, prompts = [], []
        for name, filled, own in zip(
            self.class_names, self.template_texts, self.prompt_texts, strict=True
        ):
            distinct = list(dict.fromkeys([*filled, *own]))
            rows = to_grid(encode(distinct), name=f"texts of {name!r}")
            if len(rows) != len(distinct):
                raise EmbeddingError(f"{len(rows)} rows came back for {len(distinct)} texts")
            position = {text: i for i, text in enumerate(distinct)}
            templates.append(rows[[position[text] for text in filled]])
            prompts.append(rows[[position[text] for text in own]])
        return GridPool.from_rows(np.stack(templates), prompts)

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
