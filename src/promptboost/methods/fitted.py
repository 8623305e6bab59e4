"""The two linear classifiers that most methods return, of text or of vectors, and helpers for training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import PoolError
from promptboost.methods.base import Bank, FittedMethod, Images, Logits, Origin
from promptboost.pool import fill


def embed_distinct(texts: Sequence[str], encoder: Encoder) -> NDArray[np.float32]:
    """Return one row per text; each distinct text is embedded once."""
    position = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return encoder.encode_texts(list(position))[[position[text] for text in texts]]


def filled(templates: Sequence[str], class_names: Sequence[str]) -> tuple[Bank, ...]:
    """Return a bank per class: its name in all templates, with equal weights."""
    return tuple({fill(t, name): 1.0 for t in templates} for name in class_names)


def logit_slopes(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[Any]:
    """Return the gradient of each row's log loss: softmax minus one at the label."""
    slopes = np.exp(logits - logits.max(axis=1, keepdims=True))
    slopes /= slopes.sum(axis=1, keepdims=True)
    slopes[np.arange(len(labels)), labels] -= 1
    return np.asarray(slopes)


#: Momentum and learning rate of the first epoch, by the authors of CoOp, PromptSRC and CLAP.
MOMENTUM, _FIRST_RATE = 0.9, 1e-5


def cosine_rate(epoch: int, epochs: int, rate: float, first: float = _FIRST_RATE) -> float:
    """Return the learning rate of an epoch: `first` in the first one, then half a cosine down to 0."""
    return first if epoch == 0 else rate * (1 + float(np.cos(np.pi * (epoch - 1) / epochs))) / 2


def epoch_batches(count: int, size: int) -> Iterator[slice]:
    """Yield the batches of an epoch as slices.

    An incomplete last batch is dropped, unless it is the only one: its images would weigh more.
    """
    for start in range(0, max(count - size, 0) + 1, size):
        yield slice(start, start + size)


@dataclass(frozen=True)
class LinearClassifier(FittedMethod):
    """A row and an intercept for each class.

    Examples
    --------
    >>> from promptboost.methods.base import RowImages
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> encoder = FakeEncoder(dim=8)
    >>> rows = encoder.encode_texts(["red", "blue"])
    >>> fitted = LinearClassifier(Origin("x", ("fire", "ice"), encoder), rows, np.zeros(2))
    >>> fitted.predict(RowImages({encoder.id: rows[:, None]})).tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "linear"
    origin: Origin
    # (K, D): logits are the products of rows and image embeddings plus the intercepts; scales are
    # included
    rows: NDArray[np.float32]
    intercepts: NDArray[np.float32]
    # further results to save; JSON-serializable
    details: Mapping[str, Any] = field(default_factory=dict)

    def logits(self, images: Images) -> Logits:
        """Return the logits."""
        logits = images.rows(self.origin.encoder) @ self.rows.T + self.intercepts
        return np.asarray(logits, dtype=np.float32)


def class_rows(banks: Sequence[Bank], encoder: Encoder, *, unit: bool) -> NDArray[np.float32]:
    """Return the weighted mean row of each bank of texts; each distinct text is embedded once.

    With `unit` the means are scaled to length one.
    """
    rows = embed_distinct([text for bank in banks for text in bank], encoder).astype(np.float64)
    ends = np.cumsum([len(bank) for bank in banks])
    blocks = zip(banks, np.split(rows, ends[:-1]), strict=True)
    means = np.stack([np.average(b, axis=0, weights=list(bank.values())) for bank, b in blocks])
    if unit:
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return means.astype(np.float32)


@dataclass(frozen=True)
class TextClassifier(FittedMethod):
    """Banks of texts, and the encoder that embeds them."""

    kind: ClassVar[str] = "text"
    origin: Origin
    banks: tuple[Bank, ...]  # weights of texts, per class
    # scale the mean row of a class to length one; if not, logits are mean cosines
    unit: bool = True
    # further results to save; JSON-serializable
    details: Mapping[str, Any] = field(default_factory=dict)
    # factor on the logit scale of the encoder, and of any other that the text is transferred to
    scale: float = 1.0

    def __post_init__(self) -> None:
        if len(self.banks) != len(self.origin.class_names):
            raise PoolError(f"{len(self.banks)} banks for {len(self.origin.class_names)} classes")
        for name, bank in zip(self.origin.class_names, self.banks, strict=True):
            if not all(0 <= w < np.inf for w in bank.values()) or not any(bank.values()):
                raise PoolError(f"the class {name!r} has no prompts with weights above zero")

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        """The embedding of each class, shape (K, D)."""
        return class_rows(self.banks, self.origin.encoder, unit=self.unit)

    def logits(self, images: Images) -> Logits:
        """Return the cosines times the logit scale."""
        encoder = self.origin.encoder
        logits = images.rows(encoder) @ self.rows.T * (encoder.logit_scale * self.scale)
        return np.asarray(logits, dtype=np.float32)

    def words(self) -> Sequence[Bank]:
        """Return the banks."""
        return self.banks

    def transfer(self, encoder: Encoder) -> "TextClassifier":
        """Return the same text on another encoder."""
        return replace(self, origin=replace(self.origin, encoder=encoder))
