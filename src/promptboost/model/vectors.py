"""Ensembles embedded by an encoder: the head of all rounds, and the heads after each round."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import TextSource, embed_texts
from promptboost.model.ensemble import PromptEnsemble, Round
from promptboost.model.head import Head


def embed(ensemble: PromptEnsemble, source: TextSource, encoder: Encoder | None = None) -> Head:
    """Embed the prompts with `source`, in the space of `encoder`; return the head, in float32."""
    encoder = source if isinstance(source, Encoder) else encoder
    return head_of(ensemble, _class_rows(ensemble, source, [ensemble.rounds])[0], encoder)


def head_of(ensemble: PromptEnsemble, weights: ArrayLike, encoder: Encoder | None) -> Head:
    """Build a head from precomputed class embeddings; all other fields come from the ensemble."""
    return Head(
        ensemble.class_names,
        np.asarray(weights, dtype=np.float32),
        rounds=len(ensemble),
        temperature=ensemble.temperature,
        encoder_id=encoder.id if encoder else None,
        encoder_fingerprint=encoder.fingerprint if encoder else None,
        ensemble_fingerprint=ensemble.fingerprint,
        logit_scale=ensemble.logit_scale_on(encoder),
    )


def staged_heads(ensemble: PromptEnsemble, source: TextSource, last: Head) -> Iterator[Head]:
    """Return the head after each round, in float64; the last one has residual and balance of `last`."""
    rows = _class_rows(ensemble, source, [[round_] for round_ in ensemble.rounds])
    # Rounded, so that the order in which the prompts were added up makes no difference.
    sums = np.cumsum(rows.astype(np.float32), axis=0, dtype=np.float64)
    text = replace(last, residual=None, text_scale=None, balance=None)
    for number, weights in enumerate(sums, start=1):
        head = last if number == len(ensemble) else text
        yield replace(head, weights=weights, rounds=number)


def _class_rows(
    ensemble: PromptEnsemble, source: TextSource, groups: Sequence[Sequence[Round]]
) -> NDArray[np.float64]:
    """Add up the mean embeddings of each class over each group of rounds: shape (groups, K, D)."""
    texts = ensemble.texts()
    rows = embed_texts(source, texts)
    index = {text: i for i, text in enumerate(texts)}
    return np.array(
        [
            [_class_row(group, name, index, rows) for name in ensemble.class_names]
            for group in groups
        ]
    )


def _class_row(
    rounds: Sequence[Round], name: str, index: Mapping[str, int], rows: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Add up the rounds' mean rows of one class, in double precision."""
    weights: dict[int, float] = {}
    for round_ in rounds:
        bank = round_.banks[name]
        size = sum(bank.values())
        for prompt, copies in bank.items():
            weights[index[prompt]] = weights.get(index[prompt], 0.0) + copies / size
    return np.asarray(np.array(list(weights.values())) @ rows[list(weights)].astype(np.float64))
