"""A large pool in several processes: class blocks embedded by workers, and composed where they are.

Each process of an engine keeps some class blocks, with the rows of all images and the prompts of its
classes in memory-mapped files. Gradients, reads of the pool and products run in all processes at once;
line searches run one block after the other, while the other processes multiply for the next blocks: see
:mod:`promptboost.boosting.gradient.blocks`. Only sums over classes are sent, a few numbers per row, and the
text is the one that a single process composes. If a process ends, the current composition starts again.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate

import numpy as np
from numpy.typing import NDArray

from promptboost.boosting.gradient.blocks import (
    Answer,
    Asked,
    BlocksLostError,
    ClassBlock,
    Floats,
    Given,
    Labels,
    Part,
    class_slices,
)
from promptboost.boosting.grid import GridPool, GridRows, from_grid
from promptboost.distributed.engine import (
    Engine,
    Job,
    Placement,
    ResidentLostError,
    Residents,
    UnitResult,
    run_units,
)
from promptboost.distributed.shards import plan_shards, read_list
from promptboost.distributed.storage import Storage
from promptboost.encoders.embedder import Embedder
from promptboost.errors import RunError, count
from promptboost.io import write_bytes
from promptboost.progress import Advance

if TYPE_CHECKING:
    from promptboost.training.pool_rows import PoolTexts

# Compositions of one fit that may be begun anew before something else must be wrong.
_MOST_LOST = 20


class BlockResident:
    """Keeps some class blocks in a process of an engine.

    Parameters
    ----------
    file : str
        Rows of int16, in a folder that all machines see.
    dim : int
        Their length.
    sizes : list of int
        How many rows each class has there: those of the templates, then those of its prompts.
    templates : int
        How many of them are templates.
    """

    def __init__(self, file: str, dim: int, sizes: Sequence[int], templates: int) -> None:
        # Nothing writes to it; but code is compiled anew for arrays that cannot be written to.
        self._rows = np.memmap(file, dtype="<i2", mode="r+").reshape(-1, dim).view(np.ndarray)
        self._ends, self._sizes, self._templates = np.cumsum(sizes), sizes, templates
        self._blocks: dict[int, ClassBlock] = {}

    def begin(
        self, numbers: Sequence[int], y: Labels, asked: Asked, earlier: Floats | None
    ) -> None:
        """Make blocks anew, those with some numbers."""
        slices = class_slices(len(self._sizes))
        self._blocks = {
            number: ClassBlock(
                self._pool(slices[number], len(asked.logit_scales)),
                slices[number].start,
                _own(y),
                asked,
                None if earlier is None else _own(earlier[slices[number]]),
            )
            for number in numbers
        }

    def look(self, file: str, dim: int) -> list[Part]:
        """Have all blocks look at the rows of a file."""
        X = from_grid(np.memmap(file, dtype="<i2", mode="r").reshape(-1, dim).view(np.ndarray))
        return [block.look(X) for block in self._blocks.values()]

    def every(self, call: str, *given: Any) -> list[Any]:
        """Ask all blocks."""
        return [self.one(number, call, *given) for number in self._blocks]

    def one(self, number: int, call: str, *given: Any) -> Any:
        """Ask one block."""
        return getattr(self._blocks[number], call)(*map(_own, given))

    def _pool(self, some: slice, encoders: int) -> GridPool:
        classes = [
            self._rows[end - size : end]
            for end, size in zip(self._ends[some], self._sizes[some], strict=True)
        ]
        return GridPool(
            np.stack([rows[: self._templates] for rows in classes]),
            tuple(rows[self._templates :] for rows in classes),
            (1.0,) * encoders,
        )


def _own(value: Any) -> Any:
    """Return an array that can be written to, as code is compiled for; what is sent cannot."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()
    return value


class SharedKeeper:
    """Keeps the class blocks of compositions in processes of an engine.

    Parameters
    ----------
    engine : Engine
    file, dim, sizes, templates
        See :class:`BlockResident`. The rows of images are written beside the file.
    """

    def __init__(
        self, engine: Engine, file: Path, dim: int, sizes: Sequence[int], templates: int
    ) -> None:
        self._engine, self._folder = engine, file.parent
        self._settings = {
            "file": str(file.absolute()),
            "dim": dim,
            "sizes": list(sizes),
            "templates": templates,
        }
        self._count = len(class_slices(len(sizes)))
        self._residents: Residents | None = None
        self._lost = 0

    @property
    def ahead(self) -> int:
        """How many blocks are prepared at once: one in each process."""
        return len(self._living())

    def begin(self, y: Labels, asked: Asked, earlier: Floats | None) -> None:
        """Make all blocks anew, one after the other in each process, so that neighbors are apart."""
        living = self._living()
        every = [range(at, self._count, len(living)) for at in range(len(living))]
        given = [living.share(y), asked, None if earlier is None else living.share(earlier)]
        self._gathered(
            [living.ask(at, "begin", list(some), *given) for at, some in enumerate(every)]
        )

    def look(self, X: GridRows) -> list[Part]:
        """Write the rows into a file, and have every block look at them."""
        rows = np.ascontiguousarray(X, dtype="<i2")
        digest = hashlib.blake2b(rows.data, digest_size=8).hexdigest()
        file = self._folder / f"images-{digest}.int16"
        if not file.exists():
            for earlier in self._folder.glob("images-*.int16"):
                earlier.unlink()
            write_bytes(file, rows.tobytes())
        living = self._living()
        given = str(file.absolute()), X.shape[1]
        return self._in_order([living.ask(at, "look", *given) for at in range(len(living))])

    def every(
        self,
        call: Callable[Concatenate[ClassBlock, Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> list[Answer]:
        """Ask every block, in all processes at once."""
        assert not named
        living = self._living()
        shared = [living.share(one) if isinstance(one, np.ndarray) else one for one in given]
        asked = call.__name__, *shared
        return self._in_order([living.ask(at, "every", *asked) for at in range(len(living))])

    def one(
        self,
        number: int,
        call: Callable[Concatenate[ClassBlock, Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Callable[[], Answer]:
        """Ask one block."""
        assert not named
        living = self._living()
        answer = living.ask(number % len(living), "one", number, call.__name__, *given)
        return lambda: self._gathered([answer])[0]

    def _living(self) -> Residents:
        if self._residents is None:
            self._residents = self._engine.residents(
                f"{__name__}:BlockResident", self._settings, self._count
            )
        return self._residents

    def _in_order(self, answers: Sequence[Callable[[], list[Any]]]) -> list[Any]:
        """Return the answers of all blocks, of those of each process."""
        gathered = self._gathered(answers)
        return [gathered[at % len(gathered)][at // len(gathered)] for at in range(self._count)]

    def _gathered(self, answers: Sequence[Callable[[], Any]]) -> list[Any]:
        try:
            return [answer() for answer in answers]
        except ResidentLostError as error:
            assert self._residents is not None
            self._residents.end()
            self._residents = None
            self._lost += 1
            if self._lost > _MOST_LOST:
                raise RunError(
                    f"{self._lost} times a worker has ended while the text was composed, the last time "
                    f"because: {error}. Rounds that are done are kept: the same command with --resume "
                    "goes on"
                ) from error
            raise BlocksLostError(str(error)) from error


class BlockWorker:
    """Embeds the texts of one class after the other, as a fit in one process does."""

    def __init__(self, encoder: str, device: str | None, out: str, cache: bool) -> None:
        self._embedder = Embedder.open(encoder, cache=cache, device=device)
        self._storage = Storage(out)

    def do(self, order: Any) -> UnitResult:
        """Embed one list of texts, and return rows on the grid."""
        from promptboost.boosting.grid import to_grid
        from promptboost.training.pool_rows import encode_by

        texts = read_list(self._storage, order)
        rows = to_grid(encode_by(self._embedder)(texts), name=f"texts such as {texts[0]!r}")
        return UnitResult(np.ascontiguousarray(rows, dtype="<i2").tobytes(), len(texts))


def embedded_blocks(
    engine: Engine,
    embedder: Embedder,
    texts: "PoolTexts",
    start: int,
    folder: Path,
    advance: Advance | None = None,
) -> Iterator[NDArray[np.int16]]:
    """Embed the texts of each class from `start` on by workers; return rows in their order.

    Every class is one shard, whose list of texts and whose rows are files in the folder.
    """
    out = str(folder.absolute())
    settings = {
        "encoder": embedder.id,
        "device": embedder.device,
        "out": out,
        "cache": embedder.store is not None,
    }
    plan = plan_shards(
        Job(f"{__name__}:BlockWorker", settings, out, device=embedder.device),
        (texts.distinct(k) for k in range(start, len(texts.class_names))),
        [embedder.fingerprint],
        Placement(),
        of="texts",
        ending=".int16",
    )
    outcome = run_units(engine, plan.job, plan.units, advance=advance)
    if outcome.failed:
        raise RunError(
            f"the texts of {count(len(outcome.failed), 'class', 'classes')} could not be embedded, the "
            f"first because: {outcome.failed[0].problem}. Finished work is kept: run the same command again"
        )
    for content in plan.results():
        yield np.frombuffer(content, dtype="<i2").reshape(-1, embedder.dim)
