"""A large pool beyond one process: class blocks embedded by workers, and ranked where they can be read.

Embedding a pool of ten million prompts and multiplying it with a gradient are all that grows with the pool.
Both go by class, and neither depends on another class: so many processes can share the classes, and the
text is the one that a single process composes. The line searches between two reads depend on each other,
class after class, and on no prompt that is not in memory already: they stay in one process.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.gradient.banks import rank_class
from promptboost.encoders.embedder import Embedder
from promptboost.errors import RunError, count
from promptboost.scale.engine import Engine, run_units
from promptboost.scale.unit import Job, Result, WorkUnit, unit_name

Ranked = list[tuple[NDArray[np.int64], NDArray[np.float64]]]

# So many calls that a slow process does not keep all others waiting, and few enough to cost nothing.
_CALLS = 16


def rank_blocks(
    file: str,
    dim: int,
    blocks: Sequence[tuple[int, int]],
    gradient: NDArray[np.float32],
    row_length: float,
    most: int,
) -> Ranked:
    """Rank the prompts of some classes, whose rows are those from … to … of a file."""
    rows = np.memmap(file, dtype="<i2", mode="r+").reshape(-1, dim).view(np.ndarray)
    return [
        rank_class(rows[start:stop], of_class, row_length, most)
        for (start, stop), of_class in zip(blocks, gradient, strict=True)
    ]


@dataclass(frozen=True)
class SharedRanker:
    """Ranks all prompts by their rows in one file, which every process of an engine can read.

    Attributes
    ----------
    engine : Engine
    file : Path
        Rows of int16, in a folder that all machines see.
    dim : int
        Their length.
    blocks : sequence of (int, int)
        Which rows are the prompts of each class.
    """

    engine: Engine
    file: Path
    dim: int
    blocks: Sequence[tuple[int, int]]

    def __call__(self, gradient: NDArray[np.float32], row_length: float, most: int) -> Ranked:
        """Rank the prompts of every class."""
        parts = np.array_split(np.arange(len(self.blocks)), min(_CALLS, len(self.blocks)))
        orders = [
            (
                str(self.file.absolute()),
                self.dim,
                [self.blocks[k] for k in part.tolist()],
                gradient[part],
                row_length,
                most,
            )
            for part in parts
        ]
        ranked = self.engine.call("promptboost.training.class_blocks:rank_blocks", orders)
        return [of_class for part in ranked for of_class in part]


class BlockWorker:
    """Embeds the texts of one class after the other, as a fit in one process does."""

    def __init__(self, encoder: str, device: str | None, out: str, cache: bool) -> None:
        self._embedder = Embedder.open(encoder, cache=cache, progress=False, device=device)
        self._storage = Job("", {}, out).storage

    def do(self, order: Any) -> Result:
        """Embed the list of texts that lies in storage, and return rows on the grid."""
        from promptboost.boosting.grid import to_grid
        from promptboost.training.pool_rows import encode_in_parts

        texts = json.loads(self._storage.read(order["list"]))
        rows = to_grid(encode_in_parts(self._embedder, texts), name=f"texts of {order['class']!r}")
        return Result(np.ascontiguousarray(rows, dtype="<i2").tobytes(), len(texts))


def embedded_blocks(
    engine: Engine,
    embedder: Embedder,
    names: Sequence[str],
    texts: Sequence[Sequence[str]],
    folder: Path,
    bar: Any = None,
) -> Iterator[NDArray[np.int16]]:
    """Have the texts of each class embedded by the workers of an engine; return rows in their order.

    Every class is one unit of work, whose list of texts and whose rows are files in the folder.
    """
    settings = {
        "encoder": embedder.id,
        "device": None,
        "out": str(folder.absolute()),
        "cache": embedder.store is not None,
    }
    job = Job("promptboost.training.class_blocks:BlockWorker", settings, str(folder.absolute()))
    lists = [unit_name(["texts", *distinct], ".json") for distinct in texts]

    def units() -> Iterator[WorkUnit]:
        done = job.done()
        for name, place, distinct in zip(names, lists, texts, strict=True):
            unit = _unit(embedder, name, place)
            if unit.name not in done:
                job.storage.write(f"lists/{place}", json.dumps(list(distinct)).encode())
            yield unit

    outcome = run_units(engine, job, units(), bar=bar)
    if outcome.failed:
        raise RunError(
            f"the texts of {count(len(outcome.failed), 'class', 'classes')} could not be embedded, the "
            f"first because: {outcome.failed[0].problem}. What is done is kept: the same command goes on"
        )
    for name, place in zip(names, lists, strict=True):
        content = job.storage.read(job.place(_unit(embedder, name, place)))
        yield np.frombuffer(content, dtype="<i2").reshape(-1, embedder.dim)


def _unit(embedder: Embedder, name: str, place: str) -> WorkUnit:
    order = {"class": name, "list": f"lists/{place}"}
    return WorkUnit(unit_name(["block", embedder.fingerprint, place], ".int16"), order)
