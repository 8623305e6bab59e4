"""The contract between promptboost and a vision-language model."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import EncoderError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

UnitRows = NDArray[np.float32]
Item = TypeVar("Item")

#: Largest difference of an embedding that half precision explains.
HALF_TOLERANCE = {"fp16": 5e-3, "bf16": 4e-2}
_SAMPLES = ("a photo of a cat.", "an old lighthouse by the sea")


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
        How many tokens of a text the model reads; longer texts give a warning.
    causal_text : bool
        Whether the text tower is causal, so that padding after the end token cannot matter.
    logit_scale : float
        The model's factor for cosines before a softmax.
    """

    id: str
    fingerprint: str
    dim: int
    context_length: int
    causal_text: bool
    logit_scale: float

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images as unit rows, in the order given."""

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""


@runtime_checkable
class StagedEncoder(Protocol):
    """An encoder whose preprocessing can run in other threads than its network.

    ``encode_preprocessed([preprocess(image) for image in images])`` is ``encode_images(images)``. Batches
    have the length of its attribute ``batch_size``, if it has one.
    """

    def preprocess(self, image: "Image") -> Any:
        """Return what the network takes of an RGB image; called in several threads."""

    def encode_preprocessed(self, inputs: Sequence[Any]) -> UnitRows:
        """Embed preprocessed images as unit rows, in the order given."""


#: The members of an encoder.
ENCODER_PARTS = (*Encoder.__annotations__, "encode_texts", "encode_images", "count_tokens")


def without_store(encoder: Any) -> Any:
    """Return the encoder behind a store, or the encoder itself."""
    while hasattr(encoder, "encoder"):
        encoder = encoder.encoder
    return encoder


def lacking_parts(value: object) -> str:
    """Return the members of an encoder that an object or a class lacks."""
    return ", ".join(part for part in ENCODER_PARTS if not hasattr(value, part))


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Split items into lists of `size`, reading no further than needed."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


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
    """Warn when texts have more tokens than the model reads."""
    longer = np.flatnonzero(tokens > context_length)
    if len(longer) == 0:
        return
    first = int(longer[0])
    text = texts[first] if len(texts[first]) <= 80 else texts[first][:77] + "..."
    verb = "is" if len(longer) == 1 else "are"
    warnings.warn(
        f"{len(longer)} of {len(texts)} texts {verb} longer than the {context_length} tokens "
        f"{encoder_id} reads, the remainder is ignored: number {first + 1} has "
        f"{int(tokens[first])} tokens: {text!r}",
        TruncatedPromptWarning,
        stacklevel=3,
    )


class DifferentiableText(Protocol):
    """A frozen text tower that takes token embeddings, and lets gradients through to them.

    A text is its start tokens, its own tokens and its end tokens; positions are added inside.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    context_length: int  # most tokens it reads, with start and end

    @property
    def vocabulary(self) -> "torch.Tensor":
        """One row for each token, shape (V, d)."""

    @property
    def allowed(self) -> "torch.Tensor":
        """The tokens that text can hold, neither special nor unused nor parts of a character."""

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without start and end."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""

    def encode(
        self, beginning: "torch.Tensor", endings: "torch.Tensor", lengths: "torch.Tensor"
    ) -> "torch.Tensor":
        """Embed texts that begin alike as rows of length one, (n, D).

        `beginning`, (P, d), has the token embeddings that all texts begin with, the start tokens first.
        `endings`, (n, S, d), has what follows in each up to its end tokens, padded with anything;
        `lengths`, (n,), is how many of each ending's tokens count.
        """


def open_tower(encoder: Encoder) -> DifferentiableText:
    """Open the text tower of an encoder for gradients, and compare its embeddings with the encoder's."""
    inner = without_store(encoder)
    if not hasattr(inner, "text_tower"):
        raise EncoderError(
            f"gradients cannot reach the texts of {encoder.id}: it has no differentiable text "
            "tower. Use an open_clip model, or conse:lite0"
        )
    tower: DifferentiableText = inner.text_tower()
    import torch

    with torch.no_grad():
        rows = encode_with(tower, _SAMPLES).cpu().numpy()
    tolerance = HALF_TOLERANCE.get(getattr(inner, "precision", "fp32"), 1e-4)
    if not np.allclose(rows, inner.encode_texts(_SAMPLES), atol=tolerance):
        raise EncoderError(
            f"the text tower of {encoder.id} reads texts in a way that promptboost cannot "
            "differentiate. Use another open_clip model, or conse:lite0"
        )
    return tower


def encode_with(tower: DifferentiableText, texts: Sequence[str]) -> "torch.Tensor":
    """Embed texts with a tower."""
    import torch

    token_ids = [
        torch.tensor([*tower.tokenize(text), *tower.end], dtype=torch.long) for text in texts
    ]
    lengths = torch.tensor([len(ids) for ids in token_ids])
    vocabulary = tower.vocabulary
    endings = vocabulary[
        torch.nn.utils.rnn.pad_sequence(token_ids, batch_first=True).to(vocabulary.device)
    ]
    return tower.encode(vocabulary[list(tower.start)], endings, lengths.to(vocabulary.device))
