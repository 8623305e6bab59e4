"""The pool of a fit as boosting reads it: its texts, and their rows in memory or mapped from a folder.

:class:`PoolTexts` says what the rows mean, :class:`PoolRows` holds them, and a pool too large for memory
is written class by class into a :class:`RowsFolder`, which an interrupted fit goes on with.
"""

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from promptboost.boosting import GridPool
from promptboost.boosting.grid import GridRows, side_by_side, to_grid
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.errors import EmbeddingError, PoolError
from promptboost.io import append_bytes, read_bytes
from promptboost.pool import PromptPool
from promptboost.pool.pool import words_fingerprint
from promptboost.progress import progress_bar

if TYPE_CHECKING:
    from promptboost.boosting.gradient.blocks import Keeper
    from promptboost.distributed.engine import Engine

_SCHEMA = 1
_ROWS = "rows.int16"
_BLOCKS = "blocks.jsonl"


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


Encode = Callable[[list[str]], ArrayLike]


@dataclass(frozen=True)
class PoolTexts:
    """What the rows of a :class:`~promptboost.boosting.GridPool` say, in the same order.

    Attributes
    ----------
    class_names : tuple of str
        In the order of the labels.
    templates : tuple of str
        The shared templates, with ``{}`` where the class name goes.
    template_texts : tuple of K tuples of str
        The templates filled for each class.
    prompt_texts : tuple of K sequences of str
        The pool of each class, made when it is read; sizes may differ, duplicates are allowed.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> from promptboost.encoders.fake import FakeEncoder
    >>> pool = build_pool(["owl", "bat"], templates=["a photo of a {}."])
    >>> texts = PoolTexts.of(pool)
    >>> texts.template_texts
    (('a photo of an owl.',), ('a photo of a bat.',))
    >>> texts.embed(FakeEncoder(dim=16).encode_texts).templates.shape
    (2, 1, 16)
    """

    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    template_texts: tuple[tuple[str, ...], ...]
    prompt_texts: tuple[Sequence[str], ...]

    @classmethod
    def of(cls, pool: PromptPool, class_names: Sequence[str] | None = None) -> "PoolTexts":
        """Take the texts of a pool, or of some of its classes in the order given."""
        names = tuple(pool.class_names if class_names is None else class_names)
        if not pool.templates:
            raise PoolError("the pool has no templates: boosting starts each round from one")
        filled = dict(zip(pool.class_names, pool.template_texts(), strict=True))
        prompts = tuple(pool.texts(name) for name in names)  # refuses an unknown class
        return cls(names, pool.templates, tuple(tuple(filled[name]) for name in names), prompts)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with a name, a template, a prompt or their order, as that of a PromptPool does."""
        return words_fingerprint(self.class_names, self.templates, self.prompt_texts)

    def n_bytes(self, dim: int) -> int:
        """Return the room that the rows take, in memory or on disk, with so many dimensions."""
        rows = sum(len(self.templates) + len(prompts) for prompts in self.prompt_texts)
        return rows * dim * np.dtype(np.int16).itemsize

    def embed(self, encode: Encode) -> GridPool:
        """Embed the texts by a function, such as an encoder's ``encode_texts``.

        Rows are put on the grid class by class, so that a large pool is never held as floats.
        """
        templates, prompts = zip(*self.blocks(encode), strict=True)
        return GridPool.from_rows(np.stack(templates), list(prompts))

    def embed_to(
        self,
        folder: str | Path,
        encode: Encode,
        *,
        encoder_fingerprint: str,
        progress: Callable[[int], None] | None = None,
    ) -> GridPool:
        """Embed the texts into a folder, and return prompts that are read from there when needed.

        For pools larger than memory: only one class is held at a time. Work that is interrupted goes on
        with the class it was in. The folder is of one pool and encoder; `progress` is called with the
        number of further prompts that are done.
        """
        return self.write_to(
            folder,
            lambda start: self.blocks(encode, start),
            encoder_fingerprint=encoder_fingerprint,
            progress=progress,
        )

    def write_to(
        self,
        folder: str | Path,
        blocks_from: "Callable[[int], Iterator[tuple[GridRows, GridRows]]]",
        *,
        encoder_fingerprint: str,
        progress: Callable[[int], None] | None = None,
    ) -> GridPool:
        """Write rows that come class by class, from a number of class on, as :meth:`embed_to` does."""
        sizes = [len(self.templates) + len(prompts) for prompts in self.prompt_texts]
        rows = RowsFolder(Path(folder), self.fingerprint, encoder_fingerprint, sizes)
        tell = progress or (lambda done: None)
        tell(sum(map(len, self.prompt_texts[: rows.done])))
        for filled, prompts in blocks_from(rows.done):
            rows.add(np.concatenate([filled, prompts]))
            tell(len(prompts))
        both = rows.blocks()
        count = len(self.templates)
        templates = np.stack([block[:count] for block in both])
        return GridPool.from_rows(templates, [block[count:] for block in both])

    def blocks(self, encode: Encode, start: int = 0) -> Iterator[tuple[GridRows, GridRows]]:
        """Return the rows of templates and of prompts, one class after the other.

        Only one class is held at a time, and each text of it is embedded once. All that embeds a
        pool goes this way, so that the rows are the same wherever they end up: the last bit of a
        row can depend on which texts are embedded together.
        """
        for k in range(start, len(self.class_names)):
            rows = encode(self.distinct(k))
            yield self.in_place(k, to_grid(rows, name=f"texts of {self.class_names[k]!r}"))

    def distinct(self, k: int) -> list[str]:
        """Return each text of a class once, those of its templates first."""
        return list(dict.fromkeys([*self.template_texts[k], *self.prompt_texts[k]]))

    def in_place(self, k: int, rows: GridRows) -> tuple[GridRows, GridRows]:
        """Return the rows of a class's templates and of its prompts, of those of its distinct texts."""
        position = {text: i for i, text in enumerate(self.distinct(k))}
        if len(rows) != len(position):
            raise EmbeddingError(f"{len(rows)} rows came back for {len(position)} texts")
        filled, prompts = self.template_texts[k], self.prompt_texts[k]
        return rows[[position[text] for text in filled]], rows[[position[t] for t in prompts]]

    def check_against(self, pool: GridPool) -> None:
        """Raise PoolError if the rows cannot be those of these texts."""
        for what, rows, texts in (
            ("templates", pool.templates, self.template_texts),
            ("prompts", pool.prompts, self.prompt_texts),
        ):
            row_counts, text_counts = [list(map(len, blocks)) for blocks in (rows, texts)]
            if row_counts != text_counts:
                pairs = zip(row_counts, text_counts, strict=False)
                odd = [k for k, (a, b) in enumerate(pairs) if a != b]
                where = f"{len(row_counts)} classes have rows and {len(text_counts)} texts"
                if odd:
                    where = f"class {odd[0]} has {row_counts[odd[0]]} rows and {text_counts[odd[0]]} texts"
                raise PoolError(f"{what}: rows and texts do not belong together: {where}")
        if len(self.class_names) != len(self.template_texts):
            raise PoolError(
                f"{len(self.class_names)} class names for the texts of {len(self.template_texts)}"
            )
        if any(len(texts) != len(self.templates) for texts in self.template_texts):
            raise PoolError(f"each class needs {len(self.templates)} filled templates")


#: Most bytes that the rows of a pool take in memory; those of a larger one are kept on disk. A mapped
#: file is as quick as memory while there is memory to spare, and needs none otherwise.
MOST_IN_MEMORY = 256 * 2**20

# Texts embedded at a time: how often the bar moves. The store is written to as often.
_AT_ONCE = 256


def fits_memory(texts: PoolTexts, embedders: Sequence[Embedder]) -> bool:
    """Tell whether the rows of a pool are kept in memory."""
    dim = max(one.encoder.dim for one in embedders) * len(embedders)
    return texts.n_bytes(dim) <= MOST_IN_MEMORY


@dataclass(frozen=True)
class PoolRows:
    """The rows of a pool, and where they are."""

    texts: PoolTexts
    grid: GridPool
    folder: Path | None = None  # None if they are in memory

    @classmethod
    def embed(
        cls,
        texts: PoolTexts,
        embedder: Embedder,
        folder: Path | None = None,
        further: Sequence[Embedder] = (),
        engine: "Engine | None" = None,
    ) -> "PoolRows":
        """Embed a pool; the rows are the same wherever they are kept.

        A pool too large for memory is embedded, read and composed on by the processes of an `engine`, if
        there is one.

        Without a `folder`, a pool too large for memory has a place that does not outlive this process.
        In it, rows of the same pool and encoder are gone on with, and all others are deleted. The rows
        of `further` embedders are put side by side with those of the first.
        """
        every = (embedder, *further)
        if fits_memory(texts, every):
            if folder is not None:
                _remove(folder)  # a larger pool of an earlier fit may have left something there
            with encoding(texts, *every) as encode:
                return cls(texts, _marked(texts.embed(encode), len(every)))
        if folder is not None:
            return cls._on_disk(texts, every, folder, engine)
        passing = Path(tempfile.mkdtemp(prefix="promptboost-"))
        try:
            rows = cls._on_disk(texts, every, passing, engine)
        except BaseException:
            _remove(passing)
            raise
        weakref.finalize(rows, _remove, passing)
        return rows

    @classmethod
    def _on_disk(
        cls,
        texts: PoolTexts,
        embedders: Sequence[Embedder],
        folder: Path,
        engine: "Engine | None" = None,
    ) -> "PoolRows":
        fingerprint = embedders[0].encoder.fingerprint
        if len(embedders) > 1:
            every = "\n".join(one.encoder.fingerprint for one in embedders)
            fingerprint = hashlib.blake2b(every.encode(), digest_size=16).hexdigest()
        if folder.is_symlink():  # all in it but the rows would be deleted
            folder.unlink()
        rows_folder = folder / f"{texts.fingerprint[:16]}-{fingerprint[:16]}"
        for other in folder.iterdir() if folder.exists() else ():
            if other != rows_folder:
                _remove(other)
        if engine is None:
            with encoding(texts, *embedders) as encode:
                grid = texts.embed_to(rows_folder, encode, encoder_fingerprint=fingerprint)
        else:
            grid = texts.write_to(
                rows_folder,
                lambda start: _from_workers(texts, embedders, engine, rows_folder, start),
                encoder_fingerprint=fingerprint,
            )
            grid = replace(grid, keeper=_keeper(texts, grid, engine, rows_folder))
        return cls(texts, _marked(grid, len(embedders)), folder)

    def of(self, number: int, dim: int) -> GridPool:
        """Return the rows of one encoder of several, by its number and the length of its embeddings."""
        start = number * (self.grid.templates.shape[2] // self.grid.encoders)
        part = slice(start, start + dim)
        return GridPool(
            self.grid.templates[..., part], tuple(P[:, part] for P in self.grid.prompts)
        )

    def release(self) -> None:
        """Delete what is on disk, once nobody will go on with it."""
        if self.folder is not None:
            _remove(self.folder)


def _marked(grid: GridPool, encoders: int) -> GridPool:
    """Note of how many encoders the rows are; their scales are for the fit to say."""
    return replace(grid, scales=(1.0,) * encoders)


def _from_workers(
    texts: PoolTexts, embedders: Sequence[Embedder], engine: "Engine", folder: Path, start: int
) -> Iterator[tuple[GridRows, GridRows]]:
    """Return rows that the workers of an engine embed, one class after the other."""
    from promptboost.distributed.class_blocks import embedded_blocks

    total = sum(map(len, texts.prompt_texts[start:])) * len(embedders)
    with embedders[0].bar(total, "texts", "texts") as bar:
        blocks = [embedded_blocks(engine, one, texts, start, folder, bar) for one in embedders]
        for k, rows in enumerate(zip(*blocks, strict=True), start=start):
            joined = rows[0] if len(rows) == 1 else side_by_side(rows, name="texts")
            yield texts.in_place(k, joined)
    for leftover in ("units", "lists"):
        _remove(folder / leftover)


def _keeper(texts: PoolTexts, grid: GridPool, engine: "Engine", folder: Path) -> "Keeper":
    """Return what composes on the classes in the processes of an engine."""
    from promptboost.distributed.class_blocks import SharedKeeper

    number = len(texts.templates)
    sizes = [number + len(prompts) for prompts in texts.prompt_texts]
    return SharedKeeper(engine, folder / _ROWS, grid.templates.shape[2], sizes, number)


def encode_in_parts(
    embedder: Embedder, texts: list[str], done: Callable[[int], object] = lambda count: None
) -> UnitRows:
    """Embed texts of one class, always as many at a time: the last bit of a row can depend on that."""
    quiet = replace(embedder, progress=False)  # it would draw a bar for every call
    rows = np.empty((len(texts), embedder.encoder.dim), dtype=np.float32)
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        rows[start : start + len(some)] = quiet.texts(some)(some)
        done(len(some))
    return rows


@contextmanager
def encoding(texts: PoolTexts, *embedders: Embedder) -> Iterator[Encode]:
    """Return what embeds the texts of a pool a class at a time, with one bar for all classes.

    Rows of several embedders are put side by side.
    """
    total = sum(map(len, texts.prompt_texts)) * len(embedders)
    with progress_bar(total, "texts", "texts", shown=embedders[0].progress) as bar:

        def done(count: int) -> None:
            # Templates that are no prompts are embedded too, and not counted before.
            bar.update(min(count, total - bar.n))

        def encode(wanted: list[str]) -> ArrayLike:
            rows = [encode_in_parts(embedder, wanted, done) for embedder in embedders]
            return rows[0] if len(rows) == 1 else side_by_side(rows, name="texts")

        yield encode


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
