"""The contract between promptboost and a vision-language model."""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "ENCODER_PARTS",
    "Encoder",
    "UnitRows",
    "unit_rows",
    "TruncatedPromptWarning",
    "report_truncated",
]

UnitRows = NDArray[np.float32]


@runtime_checkable
class Encoder(Protocol):
    """A model that maps images and texts into one space.

    Both methods return C-ordered float32 arrays of shape ``(n, dim)`` whose rows have length one,
    so that a dot product is a cosine.

    Attributes
    ----------
    id : str
        The name a user types, for example ``"ViT-B-32/openai"`` or ``"conse:lite0"``.
    fingerprint : str
        Changes whenever an embedding could change: weights, preprocessing, parameters.
    dim : int
        Length of the rows.
    context_length : int
        How many tokens of a text the model reads; longer texts are reported, never cut in silence.
    causal_text : bool
        Whether the text tower is causal, so that padding after the end token cannot matter.
    logit_scale : float
        The factor the model itself puts on cosines before a softmax.
    """

    id: str
    fingerprint: str
    dim: int
    context_length: int
    causal_text: bool
    logit_scale: float

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        ...

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images as unit rows, in the order given."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""
        ...


#: What an encoder has, in the order in which an author writes it.
ENCODER_PARTS = (
    *("id", "fingerprint", "dim", "context_length", "causal_text", "logit_scale"),
    *("encode_texts", "encode_images", "count_tokens"),
)


def unit_rows(rows: NDArray[np.floating]) -> UnitRows:
    """Scale rows to length one, as float32.

    Examples
    --------
    >>> import numpy as np
    >>> unit_rows(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]], dtype=float32)
    """
    rows = np.asarray(rows, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.maximum(lengths, 1e-12), dtype=np.float32)


class TruncatedPromptWarning(UserWarning):
    """Some texts are longer than the model's context, which reads only their beginning."""


def report_truncated(
    texts: Sequence[str], tokens: NDArray[np.int64], context_length: int, encoder_id: str
) -> None:
    """Warn when texts have more tokens than the model reads.

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
