"""Texts that a model cannot read to the end are reported, never cut in silence."""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["TruncatedPromptWarning", "report_truncated"]


class TruncatedPromptWarning(UserWarning):
    """Some texts are longer than the model's context, which reads only their beginning."""


def report_truncated(
    texts: Sequence[str], tokens: NDArray[np.int64], context_length: int, encoder_id: str
) -> None:
    """Warn when texts have more tokens than the model reads.

    Parameters
    ----------
    texts : sequence of str
        The texts.
    tokens : ndarray of int
        How many tokens each has before truncation, with start and end tokens.
    context_length : int
        How many the model reads.
    encoder_id : str
        Name of the model.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     report_truncated(["a", "a b c"], np.array([3, 5]), 4, "ViT-B-32/openai")
    >>> print(caught[0].message)
    1 of 2 texts is longer than the 4 tokens ViT-B-32/openai reads, the rest of it is ignored: \
number 2 has 5 tokens: 'a b c'
    """
    longer = np.flatnonzero(tokens > context_length)
    if len(longer) == 0:
        return
    first = int(longer[0])
    text = texts[first] if len(texts[first]) <= 80 else texts[first][:77] + "..."
    verb, rest = ("is", "it") if len(longer) == 1 else ("are", "them")
    warnings.warn(
        f"{len(longer)} of {len(texts)} texts {verb} longer than the {context_length} tokens "
        f"{encoder_id} reads, the rest of {rest} is ignored: number {first + 1} has "
        f"{int(tokens[first])} tokens: {text!r}",
        TruncatedPromptWarning,
        stacklevel=3,
    )
