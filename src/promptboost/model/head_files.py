"""Head files: the embedded text and its residual, in the run folder.

The text is the truth, and the class embeddings in a head are a cache of it. The residual is in no other
file of a run, so ``residual.json`` records the digest of the residual in each head.
"""

import logging
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.encoders.embedder import Embedder
from promptboost.errors import (
    EncoderError,
    FileFormatError,
    InputError,
    SettingError,
    StoreError,
    command_name,
)
from promptboost.io import FIRST, load_json, read_text, write_json
from promptboost.model.ensemble import PromptEnsemble
from promptboost.model.head import Balance, Head, head_of

#: Digests of the residuals, and under "heads" the balances, by name of the head file.
RESIDUAL_FILE = "residual.json"

# Distance up to which embeddings are the same, per round: more than machines differ in rounding, and a
# hundredth of the distance between classes.
_SAME = 1e-4
_NAME_LENGTH, _PATH_LENGTH = 255, 4096  # of most file systems, in bytes
_log = logging.getLogger(__name__)


def encoder_slug(encoder_id: str) -> str:
    """Turn the name of an encoder into a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", encoder_id)


def head_file(encoder_id: str | None) -> str:
    """Return the name of the head file for one encoder, or for embeddings of an unknown one."""
    return f"head{'' if encoder_id is None else f'-{encoder_slug(encoder_id)}'}.safetensors"


def check_head_file(encoder_id: str, folder: Path | None = None) -> None:
    """Raise if the head file for this encoder would have too long a name, or path in `folder`."""
    name = head_file(encoder_id)
    if len(name) > _NAME_LENGTH:
        raise EncoderError(
            f"the name of the encoder has {len(encoder_id):,} characters, too many for the name of "
            f"the file its vectors are kept in: {encoder_id[:60]}…"
        )
    if folder is not None and len(os.fsencode(folder.absolute() / name)) >= _PATH_LENGTH:
        raise SettingError(f"the path of the run is too long to hold its files: {folder}")


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

    Class embeddings are taken from the file if they agree with the text, so that answers stay equal to
    the last digit. The residual is taken, unless `text_only`, if ``residual.json`` records its digest.
    """
    path = folder / head_file(embedded.encoder_id)
    digests, balances = _read_residual_record(folder)
    head, stored, problem = embedded, None, "missing"
    try:
        stored = Head.load(path)
    except FileNotFoundError:
        pass
    except (OSError, FileFormatError) as error:
        problem = str(error)
    if stored is not None:
        if stored.encoder_fingerprint != head.encoder_fingerprint:
            return head
        if ensemble.has_fingerprint(stored.ensemble_fingerprint):  # else the text was edited
            head = _with_rows_of(stored, head, path)
    head = replace(head, balance=Balance.from_record(balances.get(path.name)))
    digest = None if text_only else digests.get(path.name)
    # Paths and problems are logged as Python literals: a damaged file must not control a terminal.
    if stored is None or stored.residual is None:
        if digest is not None:
            _log.warning(
                "The residual in %r is lost (%r), so the text predicts alone; to learn it again, type: %s",
                str(path),
                problem if stored is None else "the file has none",
                refit_hint(folder),
            )
        elif problem != "missing":
            _log.warning("A head is not used, but made again from the text: %r", problem)
        return head
    if text_only:
        return head
    if digest != stored.residual_digest or stored.dim != head.dim:
        _log.warning(
            "The residual in %r is not the one that %s records: left out", str(path), RESIDUAL_FILE
        )
        return head
    if not ensemble.has_fingerprint(stored.ensemble_fingerprint):
        _log.warning(
            "The residual in %r was fitted beside other words; to learn it again, type: %s",
            str(path),
            refit_hint(folder),
        )
    return _with_residual_of(stored, head)


def refit_hint(folder: Path) -> str:
    """Return the command that learns the residual of a text in a folder again."""
    if not (folder / FIRST).exists():  # a saved classifier: only its run names the images
        return "promptboost.refit(classifier, images, labels, pool)"
    return f"{command_name()} refit {shlex.quote(str(folder))}"


def _with_rows_of(stored: Head, head: Head, path: Path) -> Head:
    """Take the class embeddings of a stored head if they agree with those of the text."""
    if stored.weights.shape == head.weights.shape:
        # In double precision, in which no square of a float32 overflows.
        distances = np.linalg.norm(np.subtract(stored.weights, head.weights, dtype=float), axis=1)
        if distances.max() <= _SAME * head.rounds:
            return replace(head, weights=stored.weights)
    _log.warning("%r does not belong to the text beside it: made again from the text", str(path))
    return head


def _with_residual_of(stored: Head, head: Head) -> Head:
    """Take the residual of a stored head; classes that it does not have get none."""
    assert stored.residual is not None
    residual = np.zeros_like(head.weights)
    for k, name in enumerate(head.class_names):
        if name in stored.class_names:
            residual[k] = stored.residual[stored.class_names.index(name)]
    return replace(
        head,
        residual=residual,
        text_scale=stored.text_scale,
        pool_fingerprint=stored.pool_fingerprint,
    )


def _read_residual_record(folder: Path) -> tuple[dict[str, str], dict[str, object]]:
    """Read digests and balances by name of the head file; empty if the record cannot be read."""
    path = folder / RESIDUAL_FILE
    try:
        record = load_json(read_text(path, error=FileFormatError), str(path))
    except FileFormatError:
        return {}, {}
    if not isinstance(record, dict):
        return {}, {}
    heads = record.pop("heads", {})
    balances = (
        {k: v.get("balance") for k, v in heads.items() if isinstance(v, dict)}
        if isinstance(heads, dict)
        else {}
    )
    return {k: str(v) for k, v in record.items()}, balances


def write_head(folder: Path, head: Head) -> None:
    """Write a head into a folder, and record its residual and balance for :func:`stored_head`."""
    name = head_file(head.encoder_id)
    digests, balances = _read_residual_record(folder)
    digests.pop(name, None)
    balances.pop(name, None)
    if head.residual is not None:
        digests[name] = head.residual_digest
    if head.residual is not None or head.balance is not None:
        balances[name] = None if head.balance is None else head.balance.to_record()
    # The record first: a residual that it does not name is left out, so no other can be mistaken for it.
    if digests or balances or (folder / RESIDUAL_FILE).exists():
        heads = {file: {"balance": balance} for file, balance in balances.items()}
        record: dict[str, Any] = {**digests, **({"heads": heads} if heads else {})}
        write_json(folder / RESIDUAL_FILE, record, follow=False)
    head.save(folder / name)


def head_without_encoder(folder: Path, ensemble: PromptEnsemble) -> Head | None:
    """Read the head of a text that names no encoder, which cannot be embedded again."""
    try:
        stored = Head.load(folder / head_file(None))
        if ensemble.has_fingerprint(stored.ensemble_fingerprint):
            return head_of(ensemble, stored.weights, None)
    except (OSError, InputError):  # missing, damaged, or of other classes
        pass
    return None
