"""The words a fit may choose from: sentences, or examples where nothing embeds sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from promptboost.boosting import GridPool
from promptboost.boosting.grid import to_grid
from promptboost.errors import SettingError
from promptboost.fitting.examples import Examples
from promptboost.fitting.inputs import TextSource, embed_texts
from promptboost.fitting.space import Rows, RowSpace
from promptboost.fitting.texts import PoolTexts
from promptboost.pool import PromptPool, build_pool

__all__ = ["Words", "prototypes", "sentences"]

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
    >>> from promptboost.testing import FakeEncoder
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
