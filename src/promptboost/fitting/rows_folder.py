"""Rows of a pool on disk, class after class: written once, interrupted and gone on with, mapped.

A folder has two files. ``rows.int16`` holds the blocks of all classes one behind the other, as
boosting computes with them. ``blocks.jsonl`` says whose they are, then has one line for each
block that is whole.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from promptboost.boosting.grid import GridRows
from promptboost.errors import EmbeddingError, PoolError

__all__ = ["RowsFolder"]

_SCHEMA = 1
_ROWS = "rows.int16"
_BLOCKS = "blocks.jsonl"


class RowsFolder:
    """The blocks of one pool and one encoder.

    One file and one map for all blocks: a thousand would meet the limit of open files.

    Parameters
    ----------
    folder : pathlib.Path
        Made if it does not exist. What is there is gone on with.
    pool, encoder : str
        Their fingerprints.
    sizes : sequence of int
        How many rows each block has.

    Attributes
    ----------
    done : int
        How many blocks are there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = RowsFolder(Path(folder), "my pool", "my encoder", [2, 1])
    ...     rows.add(np.ones((2, 4), dtype=np.int16))
    ...     again = RowsFolder(Path(folder), "my pool", "my encoder", [2, 1])
    ...     again.add(np.zeros((1, 4), dtype=np.int16))
    ...     rows.done, again.done, [block.shape for block in again.blocks()]
    (1, 2, [(2, 4), (1, 4)])
    """

    def __init__(self, folder: Path, pool: str, encoder: str, sizes: Sequence[int]) -> None:
        self.folder = folder
        self.done = 0
        self._dim: int | None = None
        self._sizes = list(sizes)
        self._about = {"schema": _SCHEMA, "pool": pool, "encoder": encoder}
        with _explained(folder):
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
                _append(self.folder / _BLOCKS, _line({**self._about, "dim": dim}))
                self._dim = dim
            self._check_alone()
            _append(self.folder / _ROWS, np.ascontiguousarray(rows, dtype="<i2").data)
            # Only rows that are on the disk are said to be there.
            _append(self.folder / _BLOCKS, _line({"block": self.done, "rows": len(rows)}))
        self.done += 1

    def blocks(self) -> list[GridRows]:
        """Map all blocks; none is read before it is looked at."""
        if self.done < len(self._sizes) or self._dim is None:
            raise PoolError(f"{self.folder} has {self.done} of {len(self._sizes)} blocks")
        total = sum(self._sizes)
        with _explained(self.folder):
            rows = np.memmap(
                self.folder / _ROWS, dtype="<i2", mode="r", shape=(total, self._dim)
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
        there = rows.stat().st_size if rows.exists() else 0
        used = 0
        for size, line in zip(self._sizes, lines[1:], strict=False):
            if line != {"block": self.done, "rows": size} or used + size * width > there:
                break
            used += size * width
            self.done += 1
        if there and not lines:
            raise PoolError(f"{rows} is there without {_BLOCKS}: give another folder, or delete it")
        if there > used:
            os.truncate(rows, used)
        whole = b"".join(map(_line, lines[: self.done + 1]))
        if journal.exists() and journal.stat().st_size > len(whole):
            os.truncate(journal, len(whole))

    def _check_alone(self) -> None:
        rows = self.folder / _ROWS
        there = rows.stat().st_size if rows.exists() else 0
        if there != 2 * (self._dim or 0) * sum(self._sizes[: self.done]):
            raise PoolError(
                f"another process is writing to {self.folder}: wait for it, or stop it and run the "
                "same again"
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
    found = []
    for line in journal.read_bytes().split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or _line(record) != line + b"\n":
            break
        found.append(record)
    return found


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _append(path: Path, data: bytes | memoryview) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Say what an error of the operating system means for the folder."""
    try:
        yield
    except OSError as error:
        raise PoolError(
            f"cannot keep the rows of the pool in {folder}: {error.strerror}. What is there is "
            "sound: make room or correct the permissions, and run the same again"
        ) from error
