"""An embedded ensemble that can be asked after any of its rounds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.errors import EmbeddingError, InputError
from promptboost.model.ensemble import PromptEnsemble, Round
from promptboost.model.head import Head, LinearHead

if TYPE_CHECKING:
    from promptboost.boosting.residual import Residual

TextVectors = Mapping[str, ArrayLike] | Callable[[Sequence[str]], ArrayLike]

# float16 rows, as stores keep them, are well within this of length one.
_LENGTH_TOLERANCE = 1e-3


def embed(
    ensemble: PromptEnsemble, source: Encoder | TextVectors, encoder: Encoder | None = None
) -> LinearHead:
    """Return the classifier that the prompts make in the space of `source`, rows of `encoder`."""
    encoder = source if isinstance(source, Encoder) else encoder
    (head,) = _heads(ensemble, source, [ensemble.rounds], encoder)
    return head


def head_of(ensemble: PromptEnsemble, weights: ArrayLike, encoder: Encoder | None) -> LinearHead:
    """Build a head from precomputed class embeddings; all other fields come from the ensemble."""
    return LinearHead(
        ensemble.class_names,
        np.asarray(weights),
        rounds=len(ensemble),
        temperature=ensemble.temperature,
        encoder_id=encoder.id if encoder else None,
        encoder_fingerprint=encoder.fingerprint if encoder else None,
        ensemble_fingerprint=ensemble.fingerprint,
        logit_scale=ensemble.logit_scale_on(encoder),
    )


def weak_heads(
    ensemble: PromptEnsemble, source: Encoder | TextVectors, encoder: Encoder | None = None
) -> list[LinearHead]:
    """Return one head per round."""
    return _heads(ensemble, source, [(item,) for item in ensemble.rounds], encoder)


def _heads(
    ensemble: PromptEnsemble,
    source: Encoder | TextVectors,
    groups: Iterable[Sequence[Round]],
    encoder: Encoder | None,
) -> list[LinearHead]:
    """Return one head per group of rounds, all from one embedding of the texts."""
    encoder = source if isinstance(source, Encoder) else encoder
    texts = ensemble.texts()
    rows = _text_rows(texts, source)
    index = {text: i for i, text in enumerate(texts)}
    fingerprint = ensemble.fingerprint
    return [
        LinearHead(
            ensemble.class_names,
            np.stack([_class_row(group, name, index, rows) for name in ensemble.class_names]),
            rounds=len(group),
            temperature=ensemble.temperature,
            encoder_id=encoder.id if encoder else None,
            encoder_fingerprint=encoder.fingerprint if encoder else None,
            ensemble_fingerprint=fingerprint,
            logit_scale=ensemble.logit_scale_on(encoder),
        )
        for group in groups
    ]


def _class_row(
    rounds: Sequence[Round], name: str, index: Mapping[str, int], rows: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Add up the rounds' mean rows of one class, in double precision."""
    weights: dict[int, float] = {}
    for item in rounds:
        bank = item.banks[name]
        size = sum(bank.values())
        for prompt, copies in bank.items():
            weights[index[prompt]] = weights.get(index[prompt], 0.0) + copies / size
    return np.asarray(np.array(list(weights.values())) @ rows[list(weights)].astype(np.float64))


def _text_rows(texts: Sequence[str], source: Encoder | TextVectors) -> NDArray[np.floating]:
    if isinstance(source, Encoder):
        rows, who = np.asarray(source.encode_texts(texts)), f"The encoder {source.id}"
    elif isinstance(source, Mapping):
        rows, who = _look_up(texts, source), "The mapping"
    elif callable(source):
        rows, who = np.asarray(source(texts)), "The function"
    else:
        lacks = [name for name in Encoder.__annotations__ if not hasattr(source, name)]
        raise InputError(
            f"A {type(source).__name__} cannot embed texts: give an encoder (this one lacks "
            f"{', '.join(lacks) or 'a method'}), a mapping from text to row, or a function."
        )
    dim = source.dim if isinstance(source, Encoder) else rows.shape[-1] if rows.ndim else 0
    if rows.shape != (len(texts), dim) or not np.issubdtype(rows.dtype, np.floating):
        raise EmbeddingError(
            f"{who} gave {rows.dtype} of shape {rows.shape} for {len(texts)} prompts: it must give "
            "floating-point rows of one length, one a prompt."
        )
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    # Written so that NaN, of which no comparison holds, counts as bad.
    bad = np.flatnonzero(~(np.abs(lengths - 1) <= _LENGTH_TOLERANCE))
    if bad.size:
        raise EmbeddingError(
            f"{who} gave {bad.size} of {len(texts)} rows that are not of length one; the first, of "
            f"length {lengths[bad[0]]:.4g}, is for {texts[bad[0]]!r}. Scale rows with "
            "promptboost.encoders.unit_rows."
        )
    return rows


def _look_up(texts: Sequence[str], vectors: Mapping[str, ArrayLike]) -> NDArray[np.floating]:
    missing = [text for text in texts if text not in vectors]
    if missing:
        raise EmbeddingError(
            f"The mapping has no row for {len(missing)} of {len(texts)} prompts, the first is "
            f"{missing[0]!r}."
        )
    rows = [np.asarray(vectors[text]) for text in texts]
    if len({row.shape for row in rows}) > 1:
        raise EmbeddingError("The mapping's rows are not all of one length.")
    return np.stack(rows)


@dataclass(frozen=True, eq=False)
class DoubleHead(Head):
    """Rounds added up, and multiplied, in double precision.

    A product in single precision may change in its last digits with the number of rows it is
    computed with. Here a row gets the same answer alone or among others, up to 1e-13 or so, which
    scikit-learn expects of a classifier.
    """

    class_names: tuple[str, ...]
    weights: NDArray[np.float64]
    rounds: int
    temperature: float
    logit_scale: float | None = None

    def _totals(self, X: ArrayLike) -> NDArray[np.floating]:
        return np.asarray(X, dtype=np.float64) @ self.weights.T

    @property
    def _largest_total(self) -> float:
        return float(self.rounds)

    @property
    def _log_odds(self) -> float:
        return 1.0 / self.temperature


@dataclass(frozen=True)
class EmbeddedRounds:
    """All rounds of an ensemble in the space of one encoder."""

    head: LinearHead  # the whole, as it is saved
    weak: tuple[LinearHead, ...]  # each round by itself

    @classmethod
    def of(
        cls, ensemble: PromptEnsemble, source: TextSource, residual: "Residual | None" = None
    ) -> "EmbeddedRounds":
        """Embed each distinct text once; a residual is added after the last round."""
        texts = ensemble.texts()
        vectors = dict(zip(texts, embed_texts(source, texts), strict=True))
        head = embed(ensemble, vectors, source if isinstance(source, Encoder) else None)
        if residual is not None:
            head = head.with_residual(residual)
        return cls(head, tuple(ensemble.weak_heads(vectors)))

    def final(self) -> Head:
        """Return the last stage, with the others' sums in their order: the same to the last digit."""
        for head in self.stages():
            last = head
        return last

    def stages(self) -> Iterator[Head]:
        """Return the classifier after each round."""
        names, temperature = self.head.class_names, self.weak[0].temperature
        residual, text_scale = self.head.residual, self.head.text_scale
        sums = accumulate((weak.weights.astype(np.float64) for weak in self.weak), np.add)
        for number, weights in enumerate(sums, start=1):
            scale = self.head.logit_scale
            if number == len(self.weak) and residual is not None and text_scale is not None:
                weights = weights + residual * (number / text_scale)
                scale = text_scale
            yield DoubleHead(names, weights, number, temperature, scale)
