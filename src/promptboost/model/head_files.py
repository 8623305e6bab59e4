"""Heads as files: which lie beside a text, whether they are of it, and what is recorded of their residual.

The text is the truth, and heads are a cache of it. The residual is in no other file of a run, so
``residual.json`` records which one belongs to which head; and the user's store has it too, from which
a head that was lost is made again.
"""

import logging
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.balance import Balance
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
from promptboost.model.head import Head
from promptboost.model.vectors import head_of

#: What says which residual belongs to which head of a folder.
RESIDUAL_FILE = "residual.json"
# Beside the digests in it, by head: all of a residual but its numbers.
_FACTS = "heads"

# How far rows may lie apart that are the same, a round: what another machine rounds otherwise, and a
# hundredth of what tells classes apart.
_SAME = 1e-4
_NAME_LENGTH, _PATH_LENGTH = 255, 4096  # of most file systems, in bytes
_log = logging.getLogger(__name__)


def encoder_slug(encoder_id: str) -> str:
    """Turn the name of an encoder into a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", encoder_id)


def head_file(encoder_id: str | None) -> str:
    """Return the name of the file with the head for one encoder, or for rows of no known one."""
    return f"head{'' if encoder_id is None else f'-{encoder_slug(encoder_id)}'}.safetensors"


def check_head_file(encoder_id: str, folder: Path | None = None) -> None:
    """Raise if no file could have the name that a head for this encoder has, in `folder`."""
    # What is written first, beside the file, has a name of its own, which is short.
    name = head_file(encoder_id)
    if len(name) > _NAME_LENGTH:
        raise EncoderError(
            f"the name of the encoder has {len(encoder_id):,} characters, too many for the name of "
            f"the file its vectors are kept in: {encoder_id[:60]}…"
        )
    if folder is not None and len(os.fsencode(folder.absolute() / name)) >= _PATH_LENGTH:
        raise SettingError(f"the path of the run is too long to hold its files: {folder}")


def embed_ensemble(ensemble: PromptEnsemble, embedder: Embedder) -> Head:
    """Embed an ensemble's text; the head says which encoder it is for.

    Its rows are kept in the store by the text they are of: the next time nothing is embedded.
    """

    def embedded() -> Head:
        return ensemble.embed(embedder.texts(ensemble.texts()), embedder.encoder)

    if embedder.store is None:
        return embedded()
    from promptboost.encoders.store import head_key

    fingerprint, dim = ensemble.fingerprint, embedder.dim
    keys = [head_key(fingerprint, row) for row in range(len(ensemble.class_names))]
    try:
        rows = embedder.store.get_or_compute(
            embedder.fingerprint,
            keys,
            lambda positions: embedded().weights[positions],
            dim=dim,
            batch=len(keys),
            name=embedder.id,
        )
    except StoreError as error:
        embedder.do_without(error)
        return embedded()
    return head_of(ensemble, rows, embedder.encoder)


def settled_head(
    folder: Path,
    ensemble: PromptEnsemble,
    made: Head,
    *,
    text_only: bool = False,
    embedder: Embedder | None = None,
) -> Head:
    """Return the head beside a text if it was made of that text, else the one made.

    The text is the truth. Nothing that the file says of itself is believed: anybody can write it. So it
    saves no work, and is there for other programs, and for the last digits to stay as they were.

    Only the residual is in no other file. It is taken along if it is the one that the fit recorded in
    ``residual.json``, unless `text_only`; where the file is gone or damaged, from the store of `embedder`.
    """
    path = folder / head_file(made.encoder_id)
    stored = _read(path)
    if stored is not None:
        if stored.encoder_fingerprint != made.encoder_fingerprint:
            return made
        if ensemble.has_fingerprint(stored.ensemble_fingerprint):  # else the text was edited
            made = _with_rows_of(stored, made, path, len(ensemble))
    digests, facts = read_residual_record(folder)
    made = replace(made, balance=Balance.from_record(facts.get(path.name, {}).get("balance")))
    if text_only:
        return made
    if stored is None:
        stored = _healed(made, digests.get(path.name), facts.get(path.name, {}), embedder)
    if stored is None or stored.residual is None:
        return made
    if digests.get(path.name) != stored.residual_digest or stored.dim != made.dim:
        _log.warning(
            "The residual in %r is not the one that %s records: left out", str(path), RESIDUAL_FILE
        )
        return made
    if embedder is not None and keep_residual(stored, embedder):
        _log.warning(
            "The residual in %r is new to this machine, and no words; --text-only answers without it",
            str(path),
        )
    if not ensemble.has_fingerprint(stored.ensemble_fingerprint):
        _log.warning(
            "The residual in %r was fitted beside other words; to learn it again, type: %s",
            str(path),
            refit_hint(folder),
        )
    return _with_residual_of(stored, made)


def _read(path: Path) -> Head | None:
    """Read a head, or None if it is gone, or damaged."""
    try:
        return Head.load(path)
    except FileNotFoundError:
        return None
    except (OSError, FileFormatError) as error:
        # As Python writes it: a terminal obeys nothing that a damaged or forged file holds.
        _log.warning("A head is not used, but made again from the text: %r", str(error))
        return None


def refit_hint(folder: Path) -> str:
    """Return what to type for a residual that suits the text in a folder."""
    if not (folder / FIRST).exists():  # the run that it was saved from has the images
        return "promptboost.refit(classifier, images, labels, pool)"
    return f"{command_name()} refit {shlex.quote(str(folder))}"


def _with_rows_of(stored: Head, made: Head, path: Path, rounds: int) -> Head:
    """Take the rows of a stored head if they are those that were made of the text."""
    if stored.weights.shape == made.weights.shape:
        # In double precision, in which no square of a float32 overflows.
        distances = np.linalg.norm(np.subtract(stored.weights, made.weights, dtype=float), axis=-1)
        if distances.max() <= _SAME * rounds:
            return replace(made, weights=stored.weights)
    _log.warning("%r does not belong to the text beside it: made again from the text", str(path))
    return made


def _with_residual_of(stored: Head, made: Head) -> Head:
    """Take the residual of a stored head; a class that is new to it has none."""
    assert stored.residual is not None
    rows = np.zeros_like(made.weights)
    places = {name: k for k, name in enumerate(stored.class_names)}
    for k, name in enumerate(made.class_names):
        if name in places:
            rows[k] = stored.residual[places[name]]
    return replace(made, residual=rows, text_scale=stored.text_scale)


def _healed(
    made: Head, digest: str | None, facts: Mapping[str, Any], embedder: Embedder | None
) -> Head | None:
    """Make a lost head again for its residual, if the store has the one that was recorded."""
    names = facts.get("class_names")
    if embedder is None or digest is None or not isinstance(names, list):
        return None
    rows = _stored_residual(digest, len(names), embedder)
    if rows is None:
        return None
    try:
        return Head(
            tuple(names),
            np.zeros_like(rows),
            ensemble_fingerprint=facts.get("ensemble_fingerprint"),
            residual=rows,
            text_scale=facts.get("text_scale"),
        )
    except InputError:  # the record was not written by a fit
        return None


def _residual_keys(digest: str, count: int) -> list[bytes]:
    from promptboost.encoders.store import head_key

    return [head_key(f"residual {digest}", row) for row in range(count)]


def _stored_residual(digest: str, count: int, embedder: Embedder) -> NDArray[np.float32] | None:
    """Return a residual that the user's store knows by its digest, or None."""

    def unknown(_: list[int]) -> NDArray[np.float32]:
        raise LookupError

    if embedder.store is None or not count:
        return None
    try:
        return embedder.store.get_or_compute(
            embedder.fingerprint,
            _residual_keys(digest, count),
            unknown,
            dim=embedder.dim,
            batch=count,
            name=embedder.id,
        )
    except (LookupError, StoreError):
        return None


def keep_residual(head: Head, embedder: Embedder) -> bool:
    """Keep a residual in the store by its digest; return whether it was new there, and is kept now."""
    if head.residual is None or embedder.store is None:
        return False
    new: list[int] = []

    def compute(positions: list[int]) -> NDArray[np.float32]:
        assert head.residual is not None
        new.extend(positions)
        return head.residual[positions]

    try:
        embedder.store.get_or_compute(
            embedder.fingerprint,
            _residual_keys(head.residual_digest, len(head.residual)),
            compute,
            dim=embedder.dim,
            batch=len(head.residual),
            name=embedder.id,
        )
    except StoreError:
        return False
    return bool(new)


def read_residual_record(folder: Path) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Read which residual belongs to which head of a folder, and what else is recorded of it.

    Nothing where no record is sound.
    """
    path = folder / RESIDUAL_FILE
    try:
        record = load_json(read_text(path, error=FileFormatError), str(path))
    except FileFormatError:
        return {}, {}
    if not isinstance(record, dict):
        return {}, {}
    facts = record.pop(_FACTS, {})
    sound = facts.items() if isinstance(facts, dict) else ()
    return {k: str(v) for k, v in record.items()}, {k: v for k, v in sound if isinstance(v, dict)}


def write_head(folder: Path, head: Head) -> None:
    """Write a head into a folder, and which residual and balance it has, for :func:`settled_head`."""
    name = head_file(head.encoder_id)
    digests, facts = read_residual_record(folder)
    digests.pop(name, None)
    facts.pop(name, None)
    if head.residual is not None:
        digests[name] = head.residual_digest
    if not (head.residual is None and head.balance is None):
        facts[name] = {
            "class_names": list(head.class_names),
            "text_scale": head.text_scale,
            "ensemble_fingerprint": head.ensemble_fingerprint,
            "balance": None if head.balance is None else head.balance.to_record(),
        }
    # The record first: a residual that it does not name is left out, and never another taken for it.
    if digests or facts or (folder / RESIDUAL_FILE).exists():
        record = {**digests, **({_FACTS: facts} if facts else {})}
        write_json(folder / RESIDUAL_FILE, record, follow=False)
    head.save(folder / name)


def unknown_head(folder: Path, ensemble: PromptEnsemble) -> Head | None:
    """Read the head beside a text that names no encoder, from which it could be made again."""
    try:
        stored = Head.load(folder / head_file(None))
        if ensemble.has_fingerprint(stored.ensemble_fingerprint):
            return head_of(ensemble, stored.weights, None)
    except (OSError, InputError):  # not there, damaged, or of other classes and rounds
        pass
    return None
