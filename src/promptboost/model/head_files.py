"""The heads of an ensemble: from the embedding store, and from the files of its folder.

The class embeddings in a head file are a cache of the text. The residual is in no other file of a run,
so ``residual.json`` records the digest of the residual in each head.
"""

import logging
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np

from promptboost.encoders.embedder import Embedder
from promptboost.errors import FileFormatError, InputError, StoreError, command_name
from promptboost.io import FIRST
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import (
    RESIDUAL_FILE,
    Balance,
    Head,
    head_file,
    head_of,
    read_residual_record,
)

# Distance up to which embeddings are the same, per round: more than machines differ in rounding, and a
# hundredth of the distance between classes.
_SAME = 1e-4
_log = logging.getLogger(__name__)


def embed_ensemble(ensemble: PromptEnsemble, embedder: Embedder) -> Head:
    """Embed an ensemble, with the class embeddings cached in the store of `embedder`."""

    def embedded() -> Head:
        return ensemble.embed(embedder.texts(ensemble.texts()), embedder.encoder)

    if embedder.store is None:
        return embedded()
    from promptboost.encoders.store import head_key

    keys = [head_key(ensemble.fingerprint, row) for row in range(len(ensemble.class_names))]
    try:
        rows = embedder.store.get_or_compute(
            embedder.fingerprint,
            keys,
            lambda positions: embedded().weights[positions],
            dim=embedder.dim,
            batch=len(keys),
            name=embedder.id,
        )
    except StoreError as error:
        embedder.do_without(error)
        return embedded()
    return head_of(ensemble, rows, embedder.encoder)


def stored_head(
    folder: Path, ensemble: PromptEnsemble, embedded: Head, *, text_only: bool = False
) -> Head:
    """Complete an embedded text with the class embeddings, residual and balance of its head file.

    The file's class embeddings are used if they agree with the text, its residual, unless `text_only`, if
    ``residual.json`` records its digest. A residual that cannot be used is logged.
    """
    path = folder / head_file(embedded.encoder_id)
    digests, balances = read_residual_record(folder)
    digest = None if text_only else digests.get(path.name)
    stored, problem = _read_head(path)
    head = embedded
    if stored is not None and stored.encoder_fingerprint != head.encoder_fingerprint:
        if digest is not None:
            _log.warning("%r is of another version of its encoder, and is not used", str(path))
        return head
    # Else the text was edited.
    if stored is not None and stored.ensemble_fingerprint == ensemble.fingerprint:
        if _have_same_rows(stored, head):
            head = replace(head, weights=stored.weights)
        else:
            _log.warning(
                "%r is not the head of its ensemble; it is computed from the text", str(path)
            )
            if head.encoder_id is None:  # a source without a name: it is not that of the residual
                return head
    head = replace(head, balance=Balance.from_record(balances.get(path.name)))
    if stored is None or stored.residual is None:
        fitted_here = head.encoder_id in [encoder.id for encoder in ensemble.encoders]
        if digest is None and problem in (None, "missing"):
            if digests and not text_only and not fitted_here:
                log_no_residual(head.encoder_id)
        else:
            _log_lost(path, problem, with_residual=digest is not None)
        return _calibrated_as(None if digest or text_only else stored, head, ensemble)
    if text_only:
        return head
    if digest != stored.residual_digest or stored.dim != head.dim:
        _log.warning(
            "The residual in %r is not the one that %s records, and is not used",
            str(path),
            RESIDUAL_FILE,
        )
        return head
    if stored.ensemble_fingerprint != ensemble.fingerprint:
        _log.warning(
            "The residual in %r was fitted with other sentences; to fit it again, type: %s",
            str(path),
            refit_hint(folder),
        )
    return _calibrated_as(stored, _with_residual_of(stored, head), ensemble)


def _calibrated_as(stored: Head | None, head: Head, ensemble: PromptEnsemble) -> Head:
    """Take the calibration of a stored head, unless the text was edited since."""
    if stored is None or stored.ensemble_fingerprint != ensemble.fingerprint:
        return head
    return replace(head, calibration=stored.calibration)


def _read_head(path: Path) -> tuple[Head | None, str | None]:
    """Read a head file; return None and the problem if that is not possible."""
    try:
        return Head.load(path), None
    except FileNotFoundError:
        return None, "missing"
    except (OSError, FileFormatError) as error:
        return None, str(error)


def _log_lost(path: Path, problem: str | None, *, with_residual: bool) -> None:
    # Paths and problems are logged as Python literals: a damaged file must not control a terminal.
    if with_residual:
        _log.warning(
            "The residual in %r is lost (%r), so the text predicts alone; to fit it again, type: %s",
            str(path),
            problem or "the file has none",
            refit_hint(path.parent),
        )
    else:
        _log.warning("A head file is not used; its head is computed from the text: %r", problem)


def refit_hint(folder: Path) -> str:
    """Return the command that fits the residual of a text in a folder again."""
    if not (folder / FIRST).exists():  # a saved classifier: only its run names the images
        return "promptboost.refit(classifier, images, labels, pool)"
    return f"{command_name()} refit {shlex.quote(str(folder))}"


def log_no_residual(encoder_id: str | None) -> None:
    """Log that the residual of a text is not available on an encoder."""
    encoder = "these embeddings" if encoder_id is None else repr(encoder_id)
    _log.warning(
        "The residual was fitted on another encoder, so on %s the text predicts alone; promptboost "
        "transfer or promptboost.refit fits one there",
        encoder,
    )


def _have_same_rows(stored: Head, head: Head) -> bool:
    """Return whether the class embeddings of a stored head agree with those of the text."""
    if stored.weights.shape != head.weights.shape:
        return False
    # In double precision, in which no square of a float32 overflows.
    distances = np.linalg.norm(np.subtract(stored.weights, head.weights, dtype=float), axis=1)
    return bool(distances.max() <= _SAME * head.rounds)


def _with_residual_of(stored: Head, head: Head) -> Head:
    """Take the residual of a stored head; classes that it does not have get none."""
    assert stored.residual is not None
    dropped = [name for name in stored.class_names if name not in head.class_names]
    if dropped:
        _log.warning(
            "The text has no classes of these names, so their residual is dropped: %r", dropped
        )
    residual = np.zeros(head.weights.shape, stored.residual.dtype)
    for k, name in enumerate(head.class_names):
        if name in stored.class_names:
            residual[k] = stored.residual[stored.class_names.index(name)]
    return replace(
        head,
        residual=residual,
        text_scale=stored.text_scale,
        pool_fingerprint=stored.pool_fingerprint,
    )


def head_without_encoder(
    folder: Path, ensemble: PromptEnsemble, *, text_only: bool = False
) -> Head | None:
    """Read the head of a text that names no encoder, which cannot be embedded again."""
    try:
        stored = Head.load(folder / head_file(None))
        if stored.ensemble_fingerprint != ensemble.fingerprint:
            return None
        head = head_of(ensemble, stored.weights, None)
    except (OSError, InputError):  # missing, damaged, or of other classes
        return None
    return stored_head(folder, ensemble, head, text_only=text_only)
