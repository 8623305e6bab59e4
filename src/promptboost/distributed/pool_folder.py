"""Pools too large for memory: embedded class by class into a folder, and read from there.

One process does that alone, or workers of an engine embed the classes and compose on them, see
:mod:`promptboost.distributed.class_blocks`. The rows, and so the text of a fit, are the same either way.
"""

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows
from promptboost.distributed.engine import Engine, Placement, Say
from promptboost.encoders.base import Encoder, members_of
from promptboost.encoders.embedder import Embedder, TextSource
from promptboost.encoders.group import join
from promptboost.errors import EmbeddingError, PoolError
from promptboost.io import append_bytes, read_bytes
from promptboost.progress import Progress, no_progress, stage
from promptboost.training.pool_rows import Encode, PoolRows, PoolTexts, encode_by

if TYPE_CHECKING:
    from promptboost.boosting.gradient.blocks import Keeper

#: Most bytes that the rows of a pool take in memory; those of a larger one are kept on disk. A mapped
#: file is as quick as memory while there is memory to spare, and needs none otherwise.
MOST_IN_MEMORY = 256 * 2**20

_SCHEMA = 1
_ROWS = "rows.int16"
_BLOCKS = "blocks.jsonl"


class PoolExecutor:
    """Embeds pools of any size: a large one on disk, and by workers if the placement has any.

    It is the :class:`~promptboost.training.pool_rows.Executor` of the command line, and a context manager
    that ends the workers.

    Parameters
    ----------
    placement : Placement, optional
        Where a large pool is embedded and composed on; by default in this process.
    say : callable, optional
        Called with a line for people now and then.
    engine : Engine, optional
        Workers that exist already; by default those of the placement, once there is a large pool.

    Examples
    --------
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> from promptboost.pool import build_pool
    >>> texts = PoolTexts.of(build_pool(["owl", "bat"], templates=["a photo of a {}."]))
    >>> with PoolExecutor() as executor:
    ...     rows = executor.embed_pool(texts, Embedder(FakeEncoder(dim=16)))
    >>> rows.grid.templates.shape
    (2, 1, 16)
    """

    def __init__(
        self,
        placement: Placement | None = None,
        say: Say = lambda _: None,
        *,
        engine: Engine | None = None,
    ) -> None:
        self._placement, self._say = placement or Placement(), say
        self._engine = engine

    def embed_pool(
        self,
        texts: PoolTexts,
        source: TextSource,
        folder: Path | None = None,
        progress: Progress = no_progress,
    ) -> PoolRows:
        """Embed a pool; the rows are the same wherever they are kept.

        Without a `folder`, a large pool has one that does not outlive this process. In it, rows of the
        same pool and encoders are used again, and all others are deleted.
        """
        if not isinstance(source, Encoder) or n_bytes(texts, source) <= MOST_IN_MEMORY:
            if self._placement.elsewhere:
                self._say(
                    "the pool fits into memory: it is read in this process, not on "
                    f"{self._placement.on}"
                )
            if folder is not None:
                _remove(folder)  # a larger pool of an earlier fit may have left something there
            return PoolRows.embed(texts, source, progress=progress)
        if folder is not None:
            return self._on_disk(texts, source, folder, progress)
        temporary = Path(tempfile.mkdtemp(prefix="promptboost-"))
        try:
            rows = self._on_disk(texts, source, temporary, progress)
        except BaseException:
            _remove(temporary)
            raise
        weakref.finalize(rows, _remove, temporary)
        return rows

    def close(self) -> None:
        """End the workers; a later pool starts them again."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_disk(
        self, texts: PoolTexts, source: Encoder, folder: Path, progress: Progress
    ) -> PoolRows:
        if folder.is_symlink():  # everything in it but the rows would be deleted
            folder.unlink()
        rows_folder = folder / f"{texts.fingerprint[:16]}-{source.fingerprint[:16]}"
        for other in folder.iterdir() if folder.exists() else ():
            if other != rows_folder:
                _remove(other)
        if self._engine is None and self._placement.elsewhere:
            self._engine = self._placement.engine(self._say)
        engine, members = self._engine, members_of(source)
        if engine is None:
            total = sum(map(len, texts.prompt_texts))
            with stage(progress, "encoding texts", total) as advance:
                grid = embed_to(
                    rows_folder,
                    texts,
                    encode_by(source, advance),
                    encoder_fingerprint=source.fingerprint,
                    encoders=len(members),
                )
        else:
            grid = write_pool(
                rows_folder,
                texts,
                lambda start: _from_workers(texts, members, engine, rows_folder, start, progress),
                encoder_fingerprint=source.fingerprint,
            )
            grid = replace(grid, keeper=_keeper(texts, grid, engine, rows_folder))
        grid = replace(grid, scales=(1.0,) * len(members))
        return PoolRows(texts, grid, partial(_remove, folder))


def n_bytes(texts: PoolTexts, encoder: Encoder) -> int:
    """Return how many bytes the rows of a pool take, in memory or on disk."""
    rows = sum(len(texts.templates) + len(prompts) for prompts in texts.prompt_texts)
    return rows * encoder.dim * np.dtype(np.int16).itemsize


def embed_to(
    folder: str | Path,
    texts: PoolTexts,
    encode: Encode,
    *,
    encoder_fingerprint: str,
    encoders: int = 1,
) -> GridPool:
    """Embed texts into a folder, and return prompts that are read from there when needed.

    Only one class is in memory at a time. Interrupted work continues with the class it was in. The folder
    is of one pool and encoder.
    """
    return write_pool(
        folder,
        texts,
        lambda start: texts.blocks(encode, start, encoders=encoders),
        encoder_fingerprint=encoder_fingerprint,
    )


def write_pool(
    folder: str | Path,
    texts: PoolTexts,
    blocks_from: Callable[[int], Iterator[tuple[GridRows, GridRows]]],
    *,
    encoder_fingerprint: str,
) -> GridPool:
    """Write rows that come class by class, from a number of class on, as :func:`embed_to` does."""
    sizes = [len(texts.templates) + len(prompts) for prompts in texts.prompt_texts]
    rows = RowsFolder(Path(folder), texts.fingerprint, encoder_fingerprint, sizes)
    for filled, prompts in blocks_from(rows.done):
        rows.add(np.concatenate([filled, prompts]))
    both = rows.blocks()
    count = len(texts.templates)
    templates = np.stack([block[:count] for block in both])
    return GridPool.from_rows(templates, [block[count:] for block in both])


class RowsFolder:
    """The blocks of one pool and one encoder: one for each class, `done` of them there.

    One file and one map for all blocks: a thousand would meet the limit of open files. What is in the
    folder already is gone on with.
    """

    def __init__(self, folder: Path, pool: str, encoder: str, sizes: Sequence[int]) -> None:
        self.folder = folder
        self.done = 0
        self._dim: int | None = None
        self._sizes = list(sizes)
        self._about = {"schema": _SCHEMA, "pool": pool, "encoder": encoder}
        with _explained(folder):
            for place in (folder, folder / _ROWS, folder / _BLOCKS):
                if place.is_symlink():  # it could lead anywhere, and is written to
                    place.unlink()
            folder.mkdir(parents=True, exist_ok=True)
            self._go_on()

    def add(self, rows: GridRows) -> None:
        """Write the next block."""
        dim = rows.shape[1] if self._dim is None else self._dim
        if rows.shape != (self._sizes[self.done], dim):
            raise EmbeddingError(
                f"block {self.done} has shape {rows.shape}, not ({self._sizes[self.done]}, {dim})"
            )
        with _explained(self.folder):
            if self._dim is None:
                append_bytes(self.folder / _BLOCKS, _line({**self._about, "dim": dim}))
                self._dim = dim
            self._check_alone()
            append_bytes(self.folder / _ROWS, np.ascontiguousarray(rows, dtype="<i2").data)
            # Only rows that are on the disk are said to be there.
            append_bytes(self.folder / _BLOCKS, _line({"block": self.done, "rows": len(rows)}))
        self.done += 1

    def blocks(self) -> list[GridRows]:
        """Map all blocks; none is read before it is looked at."""
        if self.done < len(self._sizes) or self._dim is None:
            raise PoolError(f"{self.folder} has {self.done} of {len(self._sizes)} blocks")
        total = sum(self._sizes)
        with _explained(self.folder):
            # Nothing writes to it; but code is compiled anew for arrays that cannot be written to.
            rows = np.memmap(
                self.folder / _ROWS, dtype="<i2", mode="r+", shape=(total, self._dim)
            ).view(np.ndarray)
        ends = accumulate(self._sizes, initial=0)
        return [rows[start:end] for start, end in pairwise(ends)]

    def _go_on(self) -> None:
        """Find the blocks that are whole, and cut off what an interrupted write left behind."""
        rows, journal = self.folder / _ROWS, self.folder / _BLOCKS
        lines = _whole_lines(journal)
        if lines:
            self._check(lines[0])
            self._dim = int(lines[0]["dim"])
        width = 2 * (self._dim or 0)
        n_bytes = rows.stat().st_size if rows.exists() else 0
        used = 0
        for size, line in zip(self._sizes, lines[1:], strict=False):
            if line != {"block": self.done, "rows": size} or used + size * width > n_bytes:
                break
            used += size * width
            self.done += 1
        if n_bytes and not lines:
            raise PoolError(f"{rows} is there without {_BLOCKS}: give another folder, or delete it")
        if n_bytes > used:
            os.truncate(rows, used)
        kept_lines = b"".join(map(_line, lines[: self.done + 1]))
        if journal.exists() and journal.stat().st_size > len(kept_lines):
            os.truncate(journal, len(kept_lines))

    def _check_alone(self) -> None:
        rows = self.folder / _ROWS
        n_bytes = rows.stat().st_size if rows.exists() else 0
        if n_bytes != 2 * (self._dim or 0) * sum(self._sizes[: self.done]):
            raise PoolError(
                f"another process is writing to {self.folder}: wait for it, or stop it and run the "
                "same again (promptboost fit with --resume)"
            )

    def _check(self, about: dict[str, Any]) -> None:
        for what, now in self._about.items():
            if about.get(what) != now:
                raise PoolError(
                    f"{self.folder} holds the rows of another {what} ({about.get(what)}, not {now}): "
                    "give another folder, or delete this one"
                )


def _whole_lines(journal: Path) -> list[dict[str, Any]]:
    """Read the lines that were written to their end."""
    if not journal.exists():
        return []
    records = []
    for line in read_bytes(journal).split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict) or _line(record) != line + b"\n":
            break
        records.append(record)
    return records


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Explain what an error of the operating system means for the folder."""
    try:
        yield
    except OSError as error:
        raise PoolError(
            f"cannot keep the rows of the pool in {folder}: {error.strerror}. What is there is "
            "sound: make room or correct the permissions, and run the same again (promptboost fit with "
            "--resume)"
        ) from error


def _from_workers(
    texts: PoolTexts,
    embedders: Sequence[Embedder],
    engine: Engine,
    folder: Path,
    start: int,
    progress: Progress,
) -> Iterator[tuple[GridRows, GridRows]]:
    """Embed texts by the workers of an engine; yield the rows of one class after the other."""
    from promptboost.distributed.class_blocks import embedded_blocks

    total = sum(map(len, texts.prompt_texts[start:])) * len(embedders)
    with stage(progress, "encoding texts", total) as advance:
        blocks = [
            embedded_blocks(engine, embedder, texts, start, folder, advance)
            for embedder in embedders
        ]
        for k, rows in enumerate(zip(*blocks, strict=True), start=start):
            yield texts.in_place(k, join(rows))
    for leftover in ("units", "lists"):
        _remove(folder / leftover)


def _keeper(texts: PoolTexts, grid: GridPool, engine: Engine, folder: Path) -> "Keeper":
    """Return the class blocks in the processes of an engine."""
    from promptboost.distributed.class_blocks import SharedKeeper

    number = len(texts.templates)
    sizes = [number + len(prompts) for prompts in texts.prompt_texts]
    return SharedKeeper(engine, folder / _ROWS, grid.templates.shape[2], sizes, number)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
