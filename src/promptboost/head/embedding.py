"""From text to vectors: the prompts of an ensemble, embedded, as heads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder
from promptboost.ensemble.rounds import Round
from promptboost.errors import EmbeddingError, InputError
from promptboost.head import LinearHead
from promptboost.head.voting import VotingHead

if TYPE_CHECKING:
    from promptboost.ensemble import PromptEnsemble

__all__ = ["TextVectors", "embed", "weak_heads"]

TextVectors = Mapping[str, ArrayLike] | Callable[[Sequence[str]], ArrayLike]

# float16 rows, as stores keep them, are well within this of length one.
_LENGTH_TOLERANCE = 1e-3


def embed(ensemble: "PromptEnsemble", source: Encoder | TextVectors) -> LinearHead | VotingHead:
    """Give the classifier that the prompts make in the space of `source`.

    Examples
    --------
    >>> from promptboost.ensemble import PromptEnsemble, Round
    >>> banks = {"cat": {"a cat": 3, "a tabby": 1}, "dog": {"a dog": 1}}
    >>> ensemble = PromptEnsemble(("cat", "dog"), (Round("a {}", banks, 0.0, 0.1),))
    >>> rows = {"a cat": [1.0, 0.0], "a tabby": [0.0, 1.0], "a dog": [0.6, 0.8]}
    >>> embed(ensemble, rows).weights
    array([[0.75, 0.25],
           [0.6 , 0.8 ]], dtype=float32)
    """
    if ensemble.algorithm == "samme":
        heads = weak_heads(ensemble, source)
        voted = any(item.vote for item in ensemble.rounds)
        return VotingHead(
            ensemble.class_names,
            np.stack([head.weights for head in heads]),
            np.array([item.vote for item in ensemble.rounds] if voted else ensemble.votes()),
            encoder_id=heads[0].encoder_id,
            encoder_fingerprint=heads[0].encoder_fingerprint,
            ensemble_fingerprint=heads[0].ensemble_fingerprint,
        )
    (head,) = _heads(ensemble, source, [ensemble.rounds])
    return head


def weak_heads(ensemble: "PromptEnsemble", source: Encoder | TextVectors) -> list[LinearHead]:
    """Give one head per round."""
    return _heads(ensemble, source, [(item,) for item in ensemble.rounds])


def _heads(
    ensemble: "PromptEnsemble",
    source: Encoder | TextVectors,
    groups: Iterable[Sequence[Round]],
) -> list[LinearHead]:
    """Give one head per group of rounds, all from one embedding of the texts."""
    encoder = source if isinstance(source, Encoder) else None
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
