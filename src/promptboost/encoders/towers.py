"""The contract between methods that learn by gradients and a model's text tower."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from promptboost.encoders.base import Encoder
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    import torch

__all__ = ["DifferentiableText", "encode_with", "open_tower"]

_SAMPLES = ("a photo of a cat.", "an old lighthouse by the sea")
# The towers of large models run in half precision on CUDA.
_TOLERANCE = {"float32": 1e-4, "float16": 5e-3}


class DifferentiableText(Protocol):
    """A text tower that takes token embeddings, and lets gradients through to them.

    Its weights are frozen. A text is its start tokens, its own tokens and its end tokens; positions
    are added inside.

    Attributes
    ----------
    start, end : tuple of int
        Tokens before and after every text.
    context_length : int
        Most tokens the tower reads, with start and end.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    context_length: int

    @property
    def vocabulary(self) -> "torch.Tensor":
        """One row for each token, shape (V, d)."""
        ...

    @property
    def allowed(self) -> "torch.Tensor":
        """The tokens that text can hold: neither special nor unused nor parts of a character."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without start and end."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens stand for."""
        ...

    def encode(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Embed texts that begin alike.

        A tower that reads from left to right computes the beginning only once.

        Parameters
        ----------
        beginning : tensor, shape (P, d)
            Token embeddings that all texts begin with, the start tokens first.
        endings : tensor, shape (n, S, d)
            What follows in each text up to its end tokens, padded with anything.
        lengths : tensor of int, shape (n,)
            How many of each ending's tokens count.

        Returns
        -------
        tensor of float32, shape (n, D)
            Rows of length one.
        """
        ...


def open_tower(encoder: Encoder) -> DifferentiableText:
    """Open the text tower of an encoder for gradients.

    An encoder has one if it has a method ``text_tower`` that makes it. What it gives is compared
    with the encoder's own rows first, so that nobody learns on another model than the one used.

    Parameters
    ----------
    encoder : Encoder
        An encoder, perhaps one whose texts are kept in a store.

    Raises
    ------
    EncoderError
        If gradients cannot reach the texts of this encoder; the message says which can do it.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> tower = open_tower(FakeEncoder(dim=8))
    >>> tower.decode(tower.tokenize("A red bird."))
    'a red bird'
    """
    inner: Any = encoder
    while hasattr(inner, "encoder"):  # a store is in front of it
        inner = inner.encoder
    if not hasattr(inner, "text_tower"):
        raise EncoderError(
            f"gradients cannot reach the texts of {encoder.id}: it has no differentiable text "
            "tower. Use an open_clip model, or conse:lite0"
        )
    tower: DifferentiableText = inner.text_tower()
    import torch

    with torch.no_grad():
        rows = encode_with(tower, _SAMPLES).cpu().numpy()
    dtype = "float16" if getattr(inner, "half_precision", False) else "float32"
    if not np.allclose(rows, inner.encode_texts(_SAMPLES), atol=_TOLERANCE[dtype]):
        raise EncoderError(
            f"the text tower of {encoder.id} reads texts in a way that promptboost cannot "
            "differentiate. Use another open_clip model, or conse:lite0"
        )
    return tower


def encode_with(tower: DifferentiableText, texts: Sequence[str]) -> "torch.Tensor":
    """Embed texts with a tower, as its encoder would.

    Examples
    --------
    >>> import numpy as np
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encode_with(open_tower(encoder), ["a red bird"])
    >>> np.allclose(rows, encoder.encode_texts(["a red bird"]), atol=1e-6)
    True
    """
    import torch

    own = [torch.tensor([*tower.tokenize(text), *tower.end], dtype=torch.long) for text in texts]
    lengths = torch.tensor([len(ids) for ids in own])
    vocabulary = tower.vocabulary
    endings = vocabulary[
        torch.nn.utils.rnn.pad_sequence(own, batch_first=True).to(vocabulary.device)
    ]
    return tower.encode(vocabulary[list(tower.start)], endings, lengths.to(vocabulary.device))
