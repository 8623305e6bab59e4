"""The rows of a run's pool: in memory where they are few, else mapped from a folder."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from promptboost.boosting import GridPool
from promptboost.encoders.base import UnitRows
from promptboost.fitting import PoolTexts
from promptboost.fitting.texts import Encode
from promptboost.runs.embedding import Embedder

__all__ = ["MOST_IN_MEMORY", "PoolRows", "encoding"]

#: Most bytes that the rows of a pool take in memory; those of a larger one are kept on disk. A
#: quarter of a gibibyte is what any machine has to spare, and a file of that size is written in a
#: second or two. A mapped file is as quick as memory while there is memory to spare, and needs
#: none otherwise, so nothing is gained by asking for more.
MOST_IN_MEMORY = 256 * 2**20

# Texts embedded at a time: how often the bar moves. The store is written to as often.
_AT_ONCE = 256


@dataclass(frozen=True)
class PoolRows:
    """The rows of a pool, and where they are.

    Attributes
    ----------
    texts : PoolTexts
        What they say.
    grid : GridPool
        The rows, as boosting reads them.
    folder : Path or None
        What holds them on disk; None if they are in memory.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> embedder = Embedder.open("fake:16-0", cache=False, progress=False)
    >>> rows = PoolRows.embed(PoolTexts.of(build_pool(["owl", "bat"])), embedder)
    >>> rows.grid.templates.shape, rows.folder
    ((2, 80, 16), None)
    """

    texts: PoolTexts
    grid: GridPool
    folder: Path | None = None

    @classmethod
    def embed(cls, texts: PoolTexts, embedder: Embedder, folder: Path | None = None) -> "PoolRows":
        """Embed a pool; the rows are the same wherever they are kept.

        Parameters
        ----------
        texts : PoolTexts
            The words.
        embedder : Embedder
            What embeds them.
        folder : Path, optional
            A place for this alone. Rows of the same pool and encoder that an interrupted call left
            there are gone on with, and others are deleted. None for a place that does not outlive
            this process.
        """
        if texts.n_bytes(embedder.encoder.dim) <= MOST_IN_MEMORY:
            if folder is not None:
                _remove(folder)  # a larger pool of an earlier fit may have left something there
            with encoding(texts, embedder) as encode:
                return cls(texts, texts.embed(encode))
        if folder is not None:
            return cls._on_disk(texts, embedder, folder)
        passing = Path(tempfile.mkdtemp(prefix="promptboost-"))
        try:
            rows = cls._on_disk(texts, embedder, passing)
        except BaseException:
            _remove(passing)
            raise
        weakref.finalize(rows, _remove, passing)
        return rows

    @classmethod
    def _on_disk(cls, texts: PoolTexts, embedder: Embedder, folder: Path) -> "PoolRows":
        fingerprint = embedder.encoder.fingerprint
        own = folder / f"{texts.fingerprint[:16]}-{fingerprint[:16]}"
        for other in folder.iterdir() if folder.exists() else ():
            if other != own:
                _remove(other)
        with encoding(texts, embedder) as encode:
            grid = texts.embed_to(own, encode, encoder_fingerprint=fingerprint)
        return cls(texts, grid, folder)

    def release(self) -> None:
        """Delete what is on disk, once nobody will go on with it."""
        if self.folder is not None:
            _remove(self.folder)


@contextmanager
def encoding(texts: PoolTexts, embedder: Embedder) -> Iterator[Encode]:
    """Give what embeds the texts of a pool a class at a time, with one bar for all classes.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> embedder = Embedder.open("fake:16-0", cache=False, progress=False)
    >>> with encoding(PoolTexts.of(build_pool(["owl", "bat"])), embedder) as encode:
    ...     encode(["an owl", "a bat"]).shape
    (2, 16)
    """
    from tqdm import tqdm

    quiet = replace(embedder, progress=False)  # it would draw a bar for every call
    total = sum(map(len, texts.prompt_texts))
    hidden = None if embedder.progress else True
    with tqdm(total=total, desc="texts", unit=" texts", disable=hidden, leave=False) as bar:

        def encode(wanted: list[str]) -> UnitRows:
            rows = np.empty((len(wanted), embedder.encoder.dim), dtype=np.float32)
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                rows[start : start + len(some)] = quiet.texts(some)(some)
                # Templates that are no prompts are embedded too, and not counted before.
                bar.update(min(len(some), total - bar.n))
            return rows

        yield encode


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
