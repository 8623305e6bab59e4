"""The two classifiers that most methods return: rows of text, and rows of numbers.

Both are linear: one row a class, multiplied with the image's row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder
from promptboost.errors import FileFormatError, PoolError
from promptboost.methods.base import Arrays, Bank, FittedMethod, Images, Logits, Origin
from promptboost.pool import fill


def embed_distinct(texts: Sequence[str], encoder: Encoder) -> NDArray[np.float32]:
    """Embed texts, each distinct one once: one row a text."""
    position = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return encoder.encode_texts(list(position))[[position[text] for text in texts]]


def filled(templates: Sequence[str], class_names: Sequence[str]) -> tuple[Bank, ...]:
    """Return for each class the bank of its name in all templates, with equal weights."""
    return tuple({fill(t, name): 1.0 for t in templates} for name in class_names)


def logit_slopes(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[Any]:
    """Return the slope of each row's log loss for its logits: softmax minus one for the label."""
    slopes = np.exp(logits - logits.max(axis=1, keepdims=True))
    slopes /= slopes.sum(axis=1, keepdims=True)
    slopes[np.arange(len(labels)), labels] -= 1
    return np.asarray(slopes)


@dataclass(frozen=True)
class LinearClassifier(FittedMethod):
    """A row and an intercept for each class.

    Parameters
    ----------
    rows, intercepts : array of float32, shape (K, D) and (K,)
        A row's product with an image's, plus the intercept, is a logit: scales are in them already.
    details, arrays : mapping, optional
        What else the method wants to remember; details are ready for JSON.

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
    rows: NDArray[np.float32]
    intercepts: NDArray[np.float32]
    details: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def logits(self, images: Images) -> Logits:
        """Multiply and add."""
        logits = images.rows(self.origin.encoder) @ self.rows.T + self.intercepts
        return np.asarray(logits, dtype=np.float32)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything."""
        arrays = {"rows": self.rows, "intercepts": self.intercepts, **self.arrays}
        return {"details": dict(self.details)}, {
            name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()
        }

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make it again."""
        others = {name: a for name, a in arrays.items() if name not in ("rows", "intercepts")}
        try:
            rows, intercepts = arrays["rows"], arrays["intercepts"]
            details = dict(fields["details"])
        except KeyError as error:
            raise FileFormatError(f"the file has no {error}") from error
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"the file's details cannot be read: {error}") from error
        n_classes = len(origin.class_names)
        if rows.shape != (n_classes, origin.encoder.dim) or intercepts.shape != (n_classes,):
            raise FileFormatError(
                f"the file's rows have the shape {rows.shape} and its intercepts "
                f"{intercepts.shape}, which do not fit {n_classes} classes and {origin.encoder.id}"
            )
        if not (np.isfinite(rows).all() and np.isfinite(intercepts).all()):
            raise FileFormatError("the file's rows or intercepts are not finite")
        return cls(origin, rows, intercepts, details, others)


def class_rows(banks: Sequence[Bank], encoder: Encoder, *, unit: bool) -> NDArray[np.float32]:
    """Return the weighted mean row of each bank of texts; each distinct text is embedded once.

    With `unit` the means are scaled to length one: a mean of embeddings. Otherwise a product with
    one is the mean of cosines.
    """
    texts = list(dict.fromkeys(text for bank in banks for text in bank))
    position = {text: i for i, text in enumerate(texts)}
    rows = encoder.encode_texts(texts).astype(np.float64)
    blocks = (rows[[position[text] for text in bank]] for bank in banks)
    weights = (list(bank.values()) for bank in banks)
    means = np.stack(
        [np.average(b, axis=0, weights=w) for b, w in zip(blocks, weights, strict=True)]
    )
    if unit:
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return means.astype(np.float32)


@dataclass(frozen=True)
class TextClassifier(FittedMethod):
    """Banks of texts, and the encoder that reads them.

    Parameters
    ----------
    banks : tuple of mapping of str to float
        For each class text → weight.
    unit : bool
        Compare images with the mean row scaled to length one; if not, average the cosines.
    details : mapping, optional
        What else the method wants to remember; ready for JSON.

    Examples
    --------
    >>> from promptboost.methods.base import RowImages
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> one, other = FakeEncoder(dim=16, seed=0), FakeEncoder(dim=16, seed=1)
    >>> seen = {e.id: e.encode_texts(["red", "blue"])[:, None] for e in (one, other)}
    >>> origin = Origin("zero-shot", ("fire", "ice"), one)
    >>> fitted = TextClassifier(origin, ({"something red": 1}, {"something blue": 1}))
    >>> fitted.predict(RowImages(seen)).tolist()
    [0, 1]
    >>> fitted.transfer(other).predict(RowImages(seen)).tolist()
    [0, 1]
    """

    kind: ClassVar[str] = "text"
    origin: Origin
    banks: tuple[Bank, ...]
    unit: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.banks) != len(self.origin.class_names):
            raise PoolError(f"{len(self.banks)} banks for {len(self.origin.class_names)} classes")
        for name, bank in zip(self.origin.class_names, self.banks, strict=True):
            if not all(0 <= w < np.inf for w in bank.values()) or not any(bank.values()):
                raise PoolError(f"the class {name!r} has no prompts with weights above zero")

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        """One row a class."""
        return class_rows(self.banks, self.origin.encoder, unit=self.unit)

    def logits(self, images: Images) -> Logits:
        """Score images by their cosines, on the encoder's own scale."""
        encoder = self.origin.encoder
        logits = images.rows(encoder) @ self.rows.T * encoder.logit_scale
        return np.asarray(logits, dtype=np.float32)

    def words(self) -> Sequence[Bank]:
        """Return the banks."""
        return self.banks

    def transfer(self, encoder: Encoder) -> "TextClassifier":
        """Have the same text read by another encoder."""
        return replace(self, origin=replace(self.origin, encoder=encoder))

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Return the text: all there is to keep."""
        banks = dict(zip(self.origin.class_names, map(dict, self.banks), strict=True))
        return {"banks": banks, "unit": self.unit, "details": dict(self.details)}, {}

    @classmethod
    def from_state(cls, origin: Origin, fields: Mapping[str, Any], arrays: Arrays) -> Self:
        """Make it again from the text."""
        try:
            banks = tuple(
                {str(text): float(weight) for text, weight in fields["banks"][name].items()}
                for name in origin.class_names
            )
            if not isinstance(fields["unit"], bool):
                raise TypeError(f"unit is {fields['unit']!r}")
            return cls(origin, banks, fields["unit"], dict(fields["details"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"the file's banks cannot be read: {error!r}") from error
