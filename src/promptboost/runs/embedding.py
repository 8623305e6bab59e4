"""Pictures and texts to rows, through the store."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from promptboost.encoders import Encoder, load_encoder
from promptboost.encoders.base import UnitRows

if TYPE_CHECKING:
    from promptboost.data import Dataset
    from promptboost.encoders.store import EmbeddingStore

__all__ = ["Embedder", "TextRows"]

# Crops of a picture are the same in all runs, so that runs with other seeds find them in the store.
_VIEW_SEED = 0


@dataclass(frozen=True)
class TextRows:
    """Rows of texts, found by text; calling it gives the rows of a list.

    Examples
    --------
    >>> import numpy as np
    >>> rows = TextRows({"a cat": 0, "a dog": 1}, np.eye(2, dtype=np.float32))
    >>> rows(["a dog", "a dog"])
    array([[0., 1.],
           [0., 1.]], dtype=float32)
    """

    position: dict[str, int]
    matrix: UnitRows

    def __call__(self, texts: Sequence[str]) -> UnitRows:
        """Give one row for each text."""
        return self.matrix[[self.position[text] for text in texts]]


@dataclass
class Embedder:
    """An encoder with a store, that knows how long it took.

    Attributes
    ----------
    encoder : Encoder
        The model itself.
    store : EmbeddingStore or None
        Where rows of earlier runs are found and new ones kept; None computes everything.
    progress : bool
        Show progress bars on a terminal.
    seconds : dict of str to float
        Time spent on ``"pictures"`` and on ``"texts"``.

    Examples
    --------
    >>> embedder = Embedder.open("fake:16-0", cache=False, progress=False)
    >>> embedder.texts(["a cat", "a dog", "a cat"]).matrix.shape
    (2, 16)
    """

    encoder: Encoder
    store: "EmbeddingStore | None" = None
    progress: bool = True
    seconds: dict[str, float] = field(default_factory=lambda: {"pictures": 0.0, "texts": 0.0})

    @classmethod
    def open(
        cls, name: str, *, cache: bool = True, progress: bool = True, device: str | None = None
    ) -> "Embedder":
        """Load an encoder by its name, with the user's store unless told otherwise."""
        encoder = load_encoder(name, device=device)
        if not cache:
            return cls(encoder, None, progress)
        from promptboost.encoders.store import EmbeddingStore

        return cls(encoder, EmbeddingStore(), progress)

    def pictures(self, data: "Dataset", *, views: int = 0, view_scale: float = 0.5) -> UnitRows:
        """Embed each picture and some crops of it.

        Returns
        -------
        float32 array of shape (n, 1 + views, dim)
            The picture itself, then its crops.
        """
        from promptboost.data import embed_pictures

        with self._timed("pictures"):
            return embed_pictures(
                data,
                self.encoder,
                views=range(1 + views),
                seed=_VIEW_SEED,
                scale=(view_scale, 1.0),
                store=self.store,
                progress=self.progress,
            )

    def originals(self, data: "Dataset") -> UnitRows:
        """Embed each picture as it is: shape (n, dim)."""
        return self.pictures(data)[:, 0]

    def texts(self, texts: Iterable[str]) -> TextRows:
        """Embed texts, each distinct one once."""
        distinct = list(dict.fromkeys(texts))
        position = {text: i for i, text in enumerate(distinct)}
        with self._timed("texts"):
            return TextRows(position, self._encode(distinct))

    def _encode(self, texts: list[str]) -> UnitRows:
        if self.store is None:
            return np.asarray(self.encoder.encode_texts(texts))
        from tqdm import tqdm

        from promptboost.encoders.store import StoredEncoder

        hidden = None if self.progress else True  # None: shown on a terminal only
        # 256 texts between two writes: what a killed run can lose, and how often the bar moves.
        with tqdm(
            total=len(texts), desc="texts", unit=" texts", disable=hidden, leave=False
        ) as bar:
            stored = StoredEncoder(self.encoder, self.store, batch=256, progress=bar.update)
            return stored.encode_texts(texts)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start
