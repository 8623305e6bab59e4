"""The embedding store: vectors computed once, found again by what they were computed from."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import Encoder, UnitRows
from promptboost.encoders.store import upkeep
from promptboost.encoders.store.disk import exclusive
from promptboost.encoders.store.segment import (
    KeyPairs,
    RawRows,
    as_pairs,
    first_positions,
    text_key,
)
from promptboost.encoders.store.shelf import Dtype, Shelf
from promptboost.encoders.store.upkeep import StoreReport, Verification
from promptboost.errors import EmbeddingError, SettingError, StoreError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Compute", "EmbeddingStore", "default_root", "StoredEncoder"]

Compute = Callable[[list[int]], NDArray[np.float32]]

_FORMAT = "v1"  # another format will be another folder, so that versions can share a root
_PARTS = 64  # merged segments take at most this part of the limit: what eviction drops at once
_log = logging.getLogger(__name__)


def default_root() -> Path:
    """Return the folder of the store: under ``PROMPTBOOST_CACHE`` or the user's cache folder."""
    if chosen := os.environ.get("PROMPTBOOST_CACHE"):
        return Path(chosen).expanduser() / "store"
    import platformdirs

    return platformdirs.user_cache_path("promptboost", appauthor=False) / "store"


class EmbeddingStore:
    """Vectors on disk, filed under an encoder's fingerprint and a digest of the content.

    Any number of processes and threads may use one store at the same time, and any of them may be
    killed at any moment: a batch is on disk whole or not at all. Files are memory-mapped and
    checked as they are read; a damaged one is set aside and its vectors are computed again.

    Parameters
    ----------
    root : path, optional
        Folder of the store, made when first written to; :func:`default_root` if not given.
    max_bytes : int, default=20_000_000_000
        Room it may take. Beyond that the least recently used files are deleted.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from promptboost.encoders.store import EmbeddingStore, text_key
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = EmbeddingStore(folder.name)
    >>> def compute(positions):
    ...     print("computing", positions)
    ...     return np.ones((len(positions), 2), dtype=np.float32)
    >>> keys = [text_key("a cat"), text_key("a dog"), text_key("a cat")]
    >>> rows = store.get_or_compute("some-encoder", keys, compute, dim=2)
    computing [0, 1]
    >>> bool((store.get_or_compute("some-encoder", keys, compute, dim=2) == rows).all())
    True
    >>> store.report().rows
    2
    >>> folder.cleanup()
    """

    def __init__(self, root: Path | str | None = None, *, max_bytes: int = 20_000_000_000) -> None:
        if max_bytes <= 0:
            raise SettingError(f"max_bytes is {max_bytes}; give the store some room, in bytes.")
        self.root = (default_root() if root is None else Path(root)).absolute() / _FORMAT
        self.max_bytes = max_bytes
        self._shelves: dict[tuple[str, int, Dtype], Shelf] = {}
        # Always taken after the lock on disk, never before: two threads cannot block each other.
        self._threads = threading.RLock()

    def get_or_compute(
        self,
        fingerprint: str,
        keys: Sequence[bytes],
        compute: Compute,
        *,
        dim: int,
        batch: int = 1024,
        dtype: Dtype = "float32",
        name: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> UnitRows:
        """Return one row for each key, computing only those that no run has computed before.

        Parameters
        ----------
        fingerprint : str
            Of the encoder: whatever changes embeddings must change it.
        keys : sequence of bytes
            From :func:`text_key` or :func:`image_key`; may repeat.
        compute : callable
            Given positions in ``keys``, without repeats and in order, returns a row for each.
        dim : int
            Length of the rows.
        batch : int, default=1024
            Positions given to ``compute`` at once. Each batch is stored before the next begins, so
            a killed run goes on where it was.
        dtype : {"float32", "float16"}, default="float32"
            Number type on disk. ``"float32"`` returns rows exactly as computed. ``"float16"``
            takes half the room; rows are rounded and made unit length again, on the first run as
            on every later one.
        name : str, optional
            What people call the encoder, shown in reports.
        progress : callable, optional
            Called with the number of further keys that are done; the numbers add up to all.

        Returns
        -------
        ndarray of shape (len(keys), dim), float32
            Bit for bit the same on every run.
        """
        _check_settings(dim, batch, dtype)
        pairs = as_pairs(keys)
        out = np.empty((len(keys), dim), dtype=np.float32)
        first = first_positions(pairs)
        everywhere = np.arange(len(keys))
        shelf = self._shelf(fingerprint, dim, dtype)
        missing = self._fill(shelf, pairs, everywhere[first == everywhere], out)
        if progress:
            progress(len(keys) - len(missing))
        if missing.size:
            self._prepare(shelf, fingerprint, name)  # what cannot be stored is not computed either
        for start in range(0, len(missing), batch):
            part = missing[start : start + batch]
            # Another process may have stored some of it meanwhile.
            todo = self._fill(shelf, pairs, part, out)
            if todo.size:
                raw = _as_stored(compute(todo.tolist()), len(todo), dim, dtype)
                self._add(shelf, pairs, todo, raw, out)
            if progress:
                progress(len(part))
        self._repair(shelf)
        repeated = everywhere[first != everywhere]
        out[repeated] = out[first[repeated]]
        return out

    def report(self) -> StoreReport:
        """Tell what is stored, for which encoders, and what room it takes."""
        shelves = tuple(upkeep.survey(folder) for folder in upkeep.encoder_folders(self.root))
        return StoreReport(str(self.root.parent), self.max_bytes, shelves)

    def verify(self) -> Verification:
        """Check every byte; set damaged files aside, keeping the rows in them that are sound."""
        seen = lost = 0
        damaged: list[str] = []
        for folder in upkeep.encoder_folders(self.root):
            for shelf in upkeep.open_shelves(folder):
                checked, bad_files, bad_rows = shelf.check()
                seen += checked
                damaged += map(str, bad_files)
                lost += bad_rows
                self._repair(shelf)
        return Verification(seen, tuple(damaged), lost)

    def clear(self, fingerprint: str | None = None) -> int:
        """Delete everything, or what is stored for one encoder; give the bytes freed."""
        if not self.root.exists():
            return 0
        with exclusive(self.root), self._threads:
            self._shelves.clear()  # unmaps the files
            if fingerprint is not None:
                return upkeep.clear_folder(upkeep.encoder_folder(self.root, fingerprint))
            return sum(map(upkeep.clear_folder, upkeep.encoder_folders(self.root)))

    def _shelf(self, fingerprint: str, dim: int, dtype: Dtype) -> Shelf:
        with self._threads:
            folder = upkeep.encoder_folder(self.root, fingerprint)
            return self._shelves.setdefault((fingerprint, dim, dtype), Shelf(folder, dim, dtype))

    def _fill(
        self, shelf: Shelf, pairs: KeyPairs, wanted: NDArray[np.int64], out: UnitRows
    ) -> NDArray[np.int64]:
        with self._threads:
            return shelf.fill(pairs, wanted, out)

    def _prepare(self, shelf: Shelf, fingerprint: str, name: str) -> None:
        with exclusive(self.root), self._threads:
            shelf.prepare()
            upkeep.name_folder(shelf.folder.parent, fingerprint, name)

    def _add(
        self,
        shelf: Shelf,
        pairs: KeyPairs,
        positions: NDArray[np.int64],
        raw: RawRows,
        out: UnitRows,
    ) -> None:
        """Store what was computed, and put it into ``out``.

        Where another process stored a key first, its row is the one that later runs will see, and
        so the one returned: batches of other sizes can differ in the last bit.
        """
        out[positions] = shelf.decode(raw)
        with exclusive(self.root), self._threads:
            new = shelf.fill(pairs, positions, out)
            if new.size:
                shelf.add(pairs[new], raw[np.searchsorted(positions, new)])
            with suppress(StoreError):  # tidying up can wait until there is room for it
                shelf.merge(self.max_bytes // _PARTS)
            upkeep.evict(self.root, self.max_bytes)

    def _repair(self, shelf: Shelf) -> None:
        if not shelf.damaged:
            return
        try:
            with exclusive(self.root), self._threads:
                for segment in shelf.damaged:
                    shelf.repair(segment)
        except StoreError as error:  # the damaged rows are not used in any case
            _log.warning("Could not set damaged files aside: %s", error)


def _check_settings(dim: int, batch: int, dtype: str) -> None:
    if dim < 1 or batch < 1:
        raise SettingError(f"dim is {dim} and batch is {batch}; both must be at least 1.")
    if dtype not in ("float32", "float16"):
        raise SettingError(f"dtype is {dtype!r}; the store keeps 'float32' or 'float16'.")


def _as_stored(rows: NDArray[np.float32], count: int, dim: int, dtype: Dtype) -> RawRows:
    rows = np.asarray(rows)
    if rows.shape != (count, dim):
        raise EmbeddingError(
            f"Computing {count} vectors of length {dim} gave an array of shape {rows.shape}; "
            "nothing of this batch was stored."
        )
    with np.errstate(over="ignore"):
        raw = np.ascontiguousarray(rows, dtype=dtype)
    bad = np.flatnonzero(~np.isfinite(raw).all(axis=1))
    if bad.size:
        raise EmbeddingError(
            f"{bad.size} of {count} computed vectors are not finite in {dtype} (the first is "
            f"number {bad[0]} of its batch); nothing of this batch was stored."
        )
    return raw


class StoredEncoder:
    """An encoder whose texts go through a store; itself an encoder.

    Images pass straight through: only the caller knows the bytes and the view they come from,
    and files them with :meth:`EmbeddingStore.get_or_compute` and :func:`image_key`.

    Parameters
    ----------
    encoder : Encoder
        What computes the vectors that are not stored.
    store : EmbeddingStore
        Where they are kept.
    batch : int, default=1024
        Texts encoded between two writes: what a killed run can lose.
    dtype : {"float32", "float16"}, default="float32"
        Number type on disk; ``"float16"`` for very large pools.
    progress : callable, optional
        Called with the number of further texts that are done.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoder = StoredEncoder(FakeEncoder(dim=8), EmbeddingStore(folder))
    ...     encoder.encode_texts(["a red bird", "a red bird", "a blue fish"]).shape
    (3, 8)
    """

    def __init__(
        self,
        encoder: Encoder,
        store: EmbeddingStore,
        *,
        batch: int = 1024,
        dtype: Dtype = "float32",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.encoder = encoder
        self.store = store
        self.batch = batch
        self.dtype: Dtype = dtype
        self.progress = progress
        self.id = encoder.id
        self.fingerprint = encoder.fingerprint
        self.dim = encoder.dim
        self.context_length = encoder.context_length
        self.causal_text = encoder.causal_text
        self.logit_scale = encoder.logit_scale

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, encoding only those never encoded before, each once."""
        return self.store.get_or_compute(
            self.fingerprint,
            [text_key(text) for text in texts],
            lambda positions: self.encoder.encode_texts([texts[i] for i in positions]),
            dim=self.dim,
            batch=self.batch,
            dtype=self.dtype,
            name=self.id,
            progress=self.progress,
        )

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images as unit rows, without the store."""
        return self.encoder.encode_images(images)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, before any truncation."""
        return self.encoder.count_tokens(texts)
