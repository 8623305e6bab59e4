"""Pools too large for memory: embedded class by class into a folder, and memory-mapped from there.

One process embeds alone, or workers of an engine embed a class each. The rows, and so the ensemble, are the
same either way.
"""

import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows
from promptboost.distributed.engine import Placement, Say
from promptboost.encoders.base import Encoder
from promptboost.encoders.embedder import Embedder, TextSource, members_of
from promptboost.encoders.group import join
from promptboost.errors import PoolError
from promptboost.io import remove, replacing
from promptboost.progress import Progress, no_progress, stage
from promptboost.training.pool_rows import PoolRows, PoolTexts, encode_by

_ROWS = "rows.int16"


@dataclass(frozen=True)
class PoolExecutor:
    """Embeds pools that are too large for memory, by workers if the placement has any."""

    placement: Placement | None = None  # where a pool is embedded; by default in this process
    say: Say = lambda _: None  # called with status messages

    def embed_pool(
        self,
        texts: PoolTexts,
        source: TextSource,
        folder: Path | None = None,
        progress: Progress = no_progress,
    ) -> PoolRows:
        """Embed a pool into files; the rows are those in memory.

        Without a `folder`, they are in a temporary one. In a `folder`, rows of the same pool and encoders
        are reused, and all others are deleted.
        """
        assert isinstance(source, Encoder)
        if folder is not None:
            return self._on_disk(texts, source, folder, progress)
        temporary = Path(tempfile.mkdtemp(prefix="promptboost-"))
        try:
            rows = self._on_disk(texts, source, temporary, progress)
        except BaseException:
            remove(temporary)
            raise
        weakref.finalize(rows, remove, temporary)
        return rows

    def _on_disk(
        self, texts: PoolTexts, source: Encoder, folder: Path, progress: Progress
    ) -> PoolRows:
        if folder.is_symlink():  # everything in it but the rows would be deleted
            folder.unlink()
        rows_folder = folder / f"{texts.fingerprint[:16]}-{source.fingerprint[:16]}"
        for other in folder.iterdir() if folder.exists() else ():
            if other != rows_folder:
                remove(other)
        members = members_of(source)
        if self.placement is not None and self.placement.elsewhere:
            by_encoder = [
                self._by_workers(member, texts, rows_folder, progress) for member in members
            ]
            blocks = (
                texts.in_place(k, join(rows))
                for k, rows in enumerate(zip(*by_encoder, strict=True))
            )
            grid = write_pool(rows_folder, texts, blocks, source.dim)
            remove(rows_folder / "units")
        else:
            total = sum(map(len, texts.prompt_texts))
            with stage(progress, "encoding texts", total) as advance:
                embedded = texts.blocks(encode_by(source, advance), encoders=len(members))
                grid = write_pool(rows_folder, texts, embedded, source.dim)
        grid = replace(grid, scales=(1.0,) * len(members))
        return PoolRows(texts, grid, partial(remove, folder))

    def _by_workers(
        self, embedder: Embedder, texts: PoolTexts, folder: Path, progress: Progress
    ) -> Iterator[GridRows]:
        """Embed the texts of each class, one shard per class, and yield the rows."""
        from promptboost.distributed.shard_embeddings import map_texts

        lists = map(texts.distinct, range(len(texts.class_names)))
        placement = self.placement or Placement()
        plan = map_texts(
            lists, embedder, placement, grid_folder=folder, progress=progress, say=self.say
        )
        for content in plan.results():
            yield np.frombuffer(content, dtype="<i2").reshape(-1, embedder.dim)


def write_pool(
    folder: Path, texts: PoolTexts, blocks: Iterable[tuple[GridRows, GridRows]], dim: int
) -> GridPool:
    """Write the rows of a pool class by class, unless they are there, and map them.

    A folder must belong to one pool and encoder. Only one class is in memory at a time, and all are in one
    file: a thousand mapped files would exceed the limit of open files.
    """
    templates = len(texts.templates)
    ends = [0, *accumulate(templates + len(prompts) for prompts in texts.prompt_texts)]
    rows_file = folder / _ROWS
    try:
        if folder.is_symlink():  # do not write outside of the folder
            folder.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        if rows_file.is_symlink() or not rows_file.exists():
            with replacing(rows_file, follow=False) as temporary, temporary.open("wb") as file:
                for block in blocks:
                    file.write(np.concatenate(block).astype("<i2").data)
        # Writable, although nothing is written: code is compiled for writable arrays.
        matrix = np.memmap(rows_file, dtype="<i2", mode="r+", shape=(ends[-1], dim))
    except OSError as error:
        raise PoolError(
            f"cannot write the rows of the pool to {folder}: {error.strerror or error}. Free some space or "
            "correct the permissions, and run the same command again (promptboost fit with --resume)"
        ) from error
    by_class = [matrix.view(np.ndarray)[start:end] for start, end in pairwise(ends)]
    return GridPool.from_rows(
        np.stack([rows[:templates] for rows in by_class]),
        [rows[templates:] for rows in by_class],
        skipped=texts.skipped,
    )
