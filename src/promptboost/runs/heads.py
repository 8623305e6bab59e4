"""The text of a run as vectors: from the file beside it, or embedded again."""

from dataclasses import replace

from promptboost.encoders.embedder import Embedder
from promptboost.errors import FileFormatError, RunError
from promptboost.model import LinearHead, PromptEnsemble, VotingHead
from promptboost.runs.run_folder import RunFolder

__all__ = ["AnyHead", "embed_ensemble", "encoder_name", "head_of"]

AnyHead = LinearHead | VotingHead


def encoder_name(ensemble: PromptEnsemble, given: str | None) -> str:
    """Return the encoder asked for, or the one the text was learnt on."""
    name = given or ensemble.encoder_id
    if name is None:
        raise RunError("the ensemble does not say which encoder it is for; add --encoder NAME")
    return name


def embed_ensemble(ensemble: PromptEnsemble, embedder: Embedder) -> AnyHead:
    """Embed an ensemble's text; the head says which encoder it is for."""
    head = ensemble.embed_texts(embedder.texts(ensemble.texts()))
    encoder = embedder.encoder
    return replace(head, encoder_id=encoder.id, encoder_fingerprint=encoder.fingerprint)


def head_of(run: RunFolder, ensemble: PromptEnsemble, embedder: Embedder) -> AnyHead:
    """Return the head of a run for one encoder.

    The file beside the text is used if it is of this very text and encoder. Else the text is
    embedded again: text is the truth, and may have been edited.
    """
    kind = LinearHead if ensemble.algorithm == "samme.r" else VotingHead
    path = run.head_path(embedder.encoder.id)
    if path.exists():
        try:
            head = kind.load(path)
        except FileFormatError:  # damaged, or of the other kind: vectors are only a cache
            return embed_ensemble(ensemble, embedder)
        if (head.encoder_fingerprint, head.ensemble_fingerprint) == (
            embedder.encoder.fingerprint,
            ensemble.fingerprint,
        ):
            return head
    return embed_ensemble(ensemble, embedder)
